"""Upkeep: everything is bounded, nothing is deleted that a state could still name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dedup.core.manifest import Bucket, Expired, Manifest
from dedup.core.policy import FPR_MARGIN, GROWTH, MAX_OPEN_SEGMENTS
from dedup.core.sizing import blocks_for
from dedup.core.upkeep import MAX_DELETES, MAX_EXPIRED_NAMES, MERGE_STRIDE
from tests.support.shard_driver import STABLE_OR_NOT, Driver, Rec, X, Y, drive


def fill(driver: Driver, batches: int, *, step_ms: int = 0, ids: int = 1, start_ms: int = 0) -> int:
    """Feed new IDs, so many per micro-batch; the highest number of segments in a bucket."""
    most = 0
    for n in range(batches):
        time_ms = start_ms + n * step_ms
        driver.feed([Rec(b"%d-%d-%d" % (start_ms, n, i), time_ms) for i in range(ids)])
        most = max([most, *(len(b.segments) for b in driver.state.manifest.buckets)])
    return most


def bucket_of(driver: Driver, start_ms: int) -> Bucket:
    return next(b for b in driver.state.manifest.buckets if b.start_ms == start_ms)


# Sealing.


def test_the_tail_is_kept_within_half_of_the_budget() -> None:
    driver = drive(state_budget_bytes=2_000, horizon_ms=10_000, bucket_ms=1_000, lateness_ms=9_000)
    sizes = []
    for n in range(60):
        driver.feed([Rec(b"%04d" % (n * 10 + i), n * 10) for i in range(3)])
        sizes.append(driver.state.tail.nbytes)
    assert max(sizes) <= 1_000
    # It is not sealed before it has to be, and then not for a handful.
    assert max(sizes) > 900
    assert driver.store.written / 2 <= 5


def test_stragglers_stay_in_the_tail() -> None:
    """The fullest buckets are written first, until a quarter of the budget is left."""
    driver = drive(state_budget_bytes=4_000, lateness_ms=60)
    crowd = [Rec(b"c%04d" % n, 100 + n % 10) for n in range(120)]
    driver.feed([Rec(b"early", 55), Rec(b"other", 77), *crowd])
    assert [b.start_ms for b in driver.state.manifest.buckets] == [100]
    assert sorted(driver.state.tail.keys) == [b"early", b"other"]
    assert driver.named([Rec(b"early", 55), Rec(b"other", 80), crowd[3]]) == ["DUPLICATE"] * 3


def test_only_as_many_buckets_as_it_takes_are_sealed() -> None:
    driver = drive(state_budget_bytes=4_000, lateness_ms=60)
    fullest = [Rec(b"f%04d" % n, 105) for n in range(60)]
    fuller = [Rec(b"g%04d" % n, 95) for n in range(50)]
    full = [Rec(b"h%04d" % n, 85) for n in range(40)]
    driver.feed([*full, *fuller, *fullest])
    assert [b.start_ms for b in driver.state.manifest.buckets] == [90, 100]
    assert driver.state.tail.bucket_starts(10).tolist() == [80] * 40


# Merging.


def test_one_segment_per_closed_bucket_after_a_few_batches() -> None:
    driver = drive(state_budget_bytes=0, horizon_ms=500)
    fill(driver, 8, step_ms=1, ids=20)
    assert len(bucket_of(driver, 0).segments) > 1
    fill(driver, MERGE_STRIDE, start_ms=50)
    (segment,) = bucket_of(driver, 0).segments
    assert segment.count == 160
    # Its filter is built again for exactly what is in it. A lookup probes up to 51 such buckets.
    piece = driver.store.filters[segment.name]
    fpr = FPR_MARGIN * 0.01 / 51
    assert piece.fpr == pytest.approx(fpr)
    assert (piece.count, piece.blocks) == (160, blocks_for(160, fpr))


def test_many_buckets_that_close_at_once_are_merged_one_after_another() -> None:
    driver = drive(state_budget_bytes=0, horizon_ms=5_000, lateness_ms=200)
    for _ in range(3):
        fill(driver, 1, ids=1)
        driver.feed([Rec(b"%d-%d" % (driver.batch, t), t) for t in range(0, 100, 10)])
    fill(driver, 1, start_ms=1_000)
    merged = []
    for n in range(12 * MERGE_STRIDE):
        fill(driver, 1, start_ms=1_001 + n)
        merged.append(driver.count("segments_merged"))
        assert driver.count("segments_written") <= 3
    assert all(len(bucket_of(driver, t).segments) == 1 for t in range(0, 100, 10))
    assert max(merged) <= 14


@pytest.mark.parametrize("shard", range(MERGE_STRIDE))
def test_shards_take_turns(shard: int) -> None:
    driver = drive(state_budget_bytes=0, horizon_ms=500, bucket_ms=100)
    driver.shard = shard
    fill(driver, 4, step_ms=1)
    merged_at = None
    for n in range(2 * MERGE_STRIDE):
        fill(driver, 1, start_ms=150 + n)
        if len(bucket_of(driver, 0).segments) == 1 and merged_at is None:
            merged_at = driver.batch - 1
    assert merged_at is not None
    assert merged_at % MERGE_STRIDE == shard


def test_a_closed_bucket_takes_its_stragglers_along() -> None:
    driver = drive(state_budget_bytes=0, horizon_ms=500, lateness_ms=20)
    fill(driver, 3)
    driver.policy = replace(driver.policy, state_budget_bytes=1 << 20)
    driver.feed([Rec(b"straggler", 3), Rec(b"elsewhere", 15), Rec(None, 40)])
    driver.feed([Rec(b"future", 99_999)])  # substituted, in its own bucket
    assert not bucket_of(driver, 0).clamped
    fill(driver, MERGE_STRIDE, start_ms=45)
    (segment,) = bucket_of(driver, 0).segments
    assert segment.count == 4
    assert b"straggler" not in list(driver.state.tail.keys)
    assert b"elsewhere" in list(driver.state.tail.keys)
    assert driver.named([Rec(b"straggler", 45)]) == ["DUPLICATE"]


# Filters in the state row.


def sized_rates(driver: Driver, start_ms: int) -> list[float]:
    """The target rates of a bucket's filters, oldest first."""
    return [driver.store.filters[s.name].fpr for s in bucket_of(driver, start_ms).segments]


def sealing(stable: bool) -> Driver:
    """A driver that seals every micro-batch, in eight buckets per horizon."""
    return drive(
        state_budget_bytes=0, horizon_ms=800, bucket_ms=100, lateness_ms=100,
        stable_timestamps=stable,
    )  # fmt: skip


@STABLE_OR_NOT
def test_filters_get_their_rate_in_proportion_to_their_ids(stable: bool) -> None:
    driver = sealing(stable)
    # The bucket grows, to six times its IDs or more. Ten as large are probed if copies may differ.
    times = GROWTH if stable else 10
    fill(driver, 1, ids=300)
    fill(driver, 1, ids=100, start_ms=1)
    part = FPR_MARGIN * 0.01 / times
    assert sized_rates(driver, 0) == pytest.approx([part, part / 4])
    # A larger bucket shows how large this one may become, and all IDs count if copies may differ.
    fill(driver, 1, ids=9_000, start_ms=100)
    fill(driver, 1, ids=100, start_ms=50)
    probed = 9_000 if stable else 9_500
    assert sized_rates(driver, 0)[-1] == pytest.approx(FPR_MARGIN * 0.01 * 100 / probed)


@STABLE_OR_NOT
def test_the_filter_of_a_tiny_run_gets_the_least_share(stable: bool) -> None:
    """A still lower rate would save nothing, and needs a large filter."""
    driver = sealing(stable)
    fill(driver, 1, ids=900)
    fill(driver, 1, ids=1, start_ms=1)
    times = GROWTH if stable else 10
    least = FPR_MARGIN * 0.01 / (MAX_OPEN_SEGMENTS * times)
    assert sized_rates(driver, 0)[-1] == pytest.approx(least)


@pytest.mark.parametrize("lateness_ms", [0, 100])
def test_the_merge_of_a_closed_bucket_sizes_its_filter_by_its_share(lateness_ms: int) -> None:
    driver = drive(
        state_budget_bytes=0, horizon_ms=800, bucket_ms=100, lateness_ms=lateness_ms,
        stable_timestamps=True,
    )  # fmt: skip
    fill(driver, 3, ids=100)
    fill(driver, 1, ids=600, start_ms=100)
    fill(driver, 2 * MERGE_STRIDE, start_ms=250)
    # Nothing enters the bucket any more, and a lookup for its time asks this filter alone. The
    # largest bucket gets the whole target, and one of half the size gets half.
    assert sized_rates(driver, 0) == pytest.approx([FPR_MARGIN * 0.01 / 2])


# Expiry and deletion.


def test_nothing_is_deleted_while_history_has_branched() -> None:
    """Another run continues from a copy of the checkpoint, and may need what expired here."""
    driver = drive(state_budget_bytes=0)
    driver.feed([Rec(b"a", 0)])
    driver.state = replace(driver.state, branches=1)
    for newest_ms in (100, 101, 102):
        driver.feed([Rec(b"n%d" % newest_ms, newest_ms)])
    assert driver.state.manifest.expired
    assert driver.store.deleted == []
    driver.state = replace(driver.state, branches=0)
    driver.feed([Rec(b"b", 103)])
    assert driver.store.deleted != []


def test_deletes_per_batch_are_bounded_and_oldest_first() -> None:
    driver = drive()
    waiting = tuple(Expired(f"e{n:03d}", 0, 0) for n in range(MAX_DELETES + 10))
    driver.state = replace(driver.state, epoch=4, bucket_ms=10, manifest=Manifest((), waiting))
    driver.batch = 5
    driver.policies = [driver.policy] * 5
    driver.history = [driver.state] * 5
    driver.feed([])
    assert driver.count("segments_deleted") == MAX_DELETES
    assert driver.state.manifest.expired == waiting[MAX_DELETES:]
    driver.feed([])
    assert driver.state.manifest.expired == ()


def test_many_expired_segments_leave_the_row_and_are_deleted_in_time() -> None:
    """Their names go to objects at the root; the row stays small under any `keep_expired`."""
    driver = drive(state_budget_bytes=0, keep_expired_ms=500_000, retain_epochs=3)
    for n in range(MAX_EXPIRED_NAMES + 200):
        driver.feed([Rec(b"%d" % n, n * 100)], now_ms=1_000_000 + n * 100)
        assert len(driver.state.manifest.expired) <= MAX_EXPIRED_NAMES
    manifest = driver.state.manifest
    # No more in each than are deleted in one micro-batch.
    assert [pending_list.count for pending_list in manifest.pending_lists] == [MAX_DELETES] * 4
    assert manifest.pending > MAX_EXPIRED_NAMES + 100
    lists = [driver.store.pending_lists[each.name] for each in manifest.pending_lists]
    held = {name for names in lists for name in names}
    assert all(name in driver.store.segments for name in held)
    # Half an hour later nothing that Spark could roll back to names them.
    for _ in range(driver.policy.retain_epochs + 5):
        driver.feed([], now_ms=driver.now_ms + 500_000)
        assert driver.count("segments_deleted") <= 2 * MAX_DELETES
    assert driver.state.manifest.pending_lists == ()
    assert not any(name in driver.store.segments for name in held)


@pytest.mark.parametrize("new_bucket_ms", [1, 7, 40])
def test_the_tail_is_sealed_under_the_grid_that_it_was_filled_under(new_bucket_ms: int) -> None:
    driver = drive(horizon_ms=10, bucket_ms=5, lateness_ms=200)
    driver.feed([Rec(X, t) for t in (0, 11, 22)])
    assert len(driver.state.tail) == 3
    # In one bucket of the new grid x would occur twice.
    driver.retune(horizon_ms=40, bucket_ms=new_bucket_ms)
    driver.feed([Rec(Y, 23)])
    assert [b.range for b in driver.state.manifest.buckets] == [(0, 5), (10, 15), (20, 25)]
    assert list(driver.state.tail.keys) == [Y]
    assert driver.named([Rec(X, 62), Rec(X, 63)]) == ["DUPLICATE", "UNIQUE"]
