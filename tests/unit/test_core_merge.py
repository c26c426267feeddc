"""Merging in bounded steps: after each range of hashes, every ID is found once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.core.bucket import Bucket, Merge, ids_in
from dedup.core.filter import SplitBlockFilter
from dedup.core.hash_ranges import hash_range
from dedup.core.keys import Keys
from dedup.core.merge_choice import DEEP, ended_choice, growing_choice, merge_fan_in, smallest_tier
from dedup.core.policy import MAX_OPEN_SEGMENTS
from dedup.core.records import Epoch
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.core.upkeep import MERGE_STRIDE, SEGMENT_BYTES, Upkeep
from dedup.errors import CatalogError, SegmentDamaged
from tests.support.memory_store import HASH_KEY, MemoryStore
from tests.support.needs import long
from tests.support.shard_driver import STABLE_OR_NOT, Driver, Rec, drive


def growing(**changes: object) -> Driver:
    """Every micro-batch seals one segment of twenty IDs into the same bucket."""
    return drive(
        state_budget_bytes=0, horizon_ms=2_000, bucket_ms=1_000, lateness_ms=100, segment_ids=64,
        **changes,
    )  # fmt: skip


def feed(driver: Driver, number: int, time_ms: int = 0) -> list[str]:
    return driver.named([Rec(b"%d-%d" % (number, i), time_ms) for i in range(20)])


def feed_all(driver: Driver, numbers: range) -> None:
    for number in numbers:
        feed(driver, number)


def merges_of(driver: Driver) -> list[Merge]:
    return [merge for bucket in driver.state.manifest.buckets for merge in bucket.merges]


def test_no_step_is_larger_than_a_segment_and_every_id_is_found_in_between() -> None:
    driver = growing()
    half_done = 0
    for n in range(60):
        assert feed(driver, n) == ["UNIQUE"] * 20
        # IDs of every range, before, while and after they are moved.
        again = [Rec(b"%d-%d" % (m, i), 0) for m in range(0, n + 1, 7) for i in range(20)]
        assert set(driver.named(again)) == {"DUPLICATE"}
        half_done += any(merge.ranges_done for merge in merges_of(driver))
    assert half_done >= 3
    counts = [ref.count for ref, _ in driver.store.segments.values()]
    assert max(counts) <= 2 * 64, "hashes spread almost evenly"


def test_a_closed_bucket_becomes_one_run_of_bounded_segments() -> None:
    driver = growing()
    feed_all(driver, range(8))
    steps = 0
    for n in range(60):
        driver.named([Rec(b"later%d" % n, 1_500)])
        steps += driver.count("segments_written") - 1
        merged = driver.state.manifest.buckets[0]
        if len(merged.runs) == 1 and not merged.merges:
            break
    (run,) = merged.runs
    assert [(s.hash_ranges, s.range_index) for s in run] == [(4, 0), (4, 1), (4, 2), (4, 3)]
    assert sum(s.count for s in run) == merged.ids == 160
    assert steps == 4
    again = [Rec(b"%d-%d" % (n, i), 0) for n in range(8) for i in range(20)]
    assert driver.named(again) == ["DUPLICATE"] * 160


@dataclass
class Load:
    """A growing bucket's upkeep alone, on IDs of a few bytes: thousands of seals in seconds."""

    segment_ids: int
    shard: int = 0
    lateness_ms: int = 0
    stable: bool = False
    state: ShardState = field(default_factory=lambda: replace(ShardState(), bucket_ms=1_000))
    store: MemoryStore = field(default_factory=MemoryStore)
    merged_ids: list[int] = field(default_factory=list)
    sealed_ids: int = 0
    deepest: int = 0

    def seal(self, count: int, time_ms: int = 0, *, low_ms: int = 0) -> None:
        number = len(self.merged_ids)
        policy = replace(
            drive().policy, horizon_ms=4_000, bucket_ms=1_000, state_budget_bytes=0,
            segment_ids=self.segment_ids, lateness_ms=self.lateness_ms,
            stable_timestamps=self.stable,
        )  # fmt: skip
        late_ms = low_ms - self.lateness_ms
        clocks = replace(self.state.clocks, low_watermark_ms=low_ms, late_watermark_ms=late_ms)
        self.state = replace(self.state, clocks=clocks)
        keys = Keys.from_list([b"%d.%d" % (number, i) for i in range(count)])
        entries = Tail(keys, np.full(count, time_ms), np.zeros(count, np.bool_))
        epoch = Epoch(
            number=number, run_id="", now_ms=number, worker_now_ms=number, shard=self.shard,
            hash_key=HASH_KEY,
        )  # fmt: skip
        tail = self.state.tail.append(entries)
        upkeep = Upkeep(replace(self.state, tail=tail), policy, self.store, epoch, records=0)
        self.state = upkeep.run()
        self.sealed_ids += count
        self.merged_ids.append(upkeep.counts["ids_written"] - count)
        depths = [b.depth for b in self.state.manifest.buckets if b.end_ms > late_ms]
        self.deepest = max([self.deepest, *depths])
        gone = [e.name for e in self.state.manifest.expired]
        self.store.delete(gone)
        self.state = replace(self.state, manifest=self.state.manifest.without_pending(gone))


@pytest.mark.parametrize(
    ("sealed", "segment_ids", "shard"), [long(4, 8, 0), (4, 8, 3), (4, 32, 3), (4, 200, 0)]
)
def test_work_and_depth_stay_bounded_however_long_a_bucket_grows(
    sealed: int, segment_ids: int, shard: int
) -> None:
    """No merge waits for others, and none is forced: thousands of seals cost what tens do."""
    load = Load(segment_ids, shard)
    for _ in range(1_500):
        load.seal(sealed)
    # A few merges at once, one step too many each, and segments uneven at random.
    assert max(load.merged_ids) <= 16 * segment_ids
    assert load.deepest <= MAX_OPEN_SEGMENTS
    assert sum(load.merged_ids) / load.sealed_ids < 14
    (bucket,) = load.state.manifest.buckets
    assert bucket.ids == load.sealed_ids


def test_one_micro_batch_does_not_do_all_merges_of_a_deep_bucket() -> None:
    load = Load(segment_ids=256)
    for n in range(4 * 190):
        load.seal(16, 1_000 * n // 190, low_ms=1_000 * n // 190)
    assert max(load.merged_ids) <= 3 * 256
    # Runs that wait for smaller ones to be merged are rewritten together with what those became.
    assert sum(load.merged_ids) / load.sealed_ids < 3
    assert load.deepest <= MAX_OPEN_SEGMENTS


def test_a_trickle_after_a_flood_does_not_stop_merging() -> None:
    load = Load(segment_ids=64)
    for _ in range(14):
        load.seal(400)
    for _ in range(2_000):
        load.seal(2)
    assert max(load.merged_ids[20:]) <= 8 * 64
    assert load.deepest <= MAX_OPEN_SEGMENTS
    assert sum(load.merged_ids) / load.sealed_ids < 10
    # The flood's merge was done long ago.
    inputs = [s for b in load.state.manifest.buckets for m in b.merges for s in m.inputs]
    assert all(int(s.name[1:]) > 20 for s in inputs)


@settings(max_examples=20, deadline=None)
@given(
    seals=st.lists(
        st.tuples(st.sampled_from([1, 8, 32, 64]), st.sampled_from([0, 20, 80]), st.booleans()),
        min_size=40,
        max_size=100,
    ),
    lateness_ms=st.sampled_from([0, 1_000, 4_000]),
)
def test_no_open_bucket_is_too_deep_however_its_clock_moves(
    seals: list[tuple[int, int, bool]], lateness_ms: int
) -> None:
    load = Load(segment_ids=64, lateness_ms=lateness_ms)
    low_ms = 0
    for ids, step_ms, late in seals:
        low_ms += step_ms
        load.seal(ids, max(0, low_ms - late * lateness_ms * 3 // 4), low_ms=low_ms)
    assert load.deepest <= MAX_OPEN_SEGMENTS


@STABLE_OR_NOT
@pytest.mark.parametrize(("lateness_ms", "buckets"), [(0, 5), (1_000, 5), (4_000, 9)])
def test_the_filters_that_one_lookup_asks_stay_within_their_rate(
    lateness_ms: int, buckets: int, stable: bool
) -> None:
    """Late records in every bucket, before and after it was merged."""
    load = Load(segment_ids=1 << 20, lateness_ms=lateness_ms, stable=stable)
    worst = 0.0
    for n in range(15 * 13):
        low_ms = n * 1_000 // 13
        load.seal(20, max(0, low_ms - lateness_ms * (n % 5) // 5), low_ms=low_ms)
        live = [b for b in load.state.manifest.buckets if b.start_ms > low_ms - 1_000 * buckets]
        rates = [sum(load.store.filters[c.segment.name].fpr for c in b.coverages()) for b in live]
        worst = max(worst, max(rates) if stable else sum(rates))
    assert 0.005 < worst <= 0.01
    closed = [b for b in load.state.manifest.buckets if b.end_ms <= low_ms - lateness_ms - 400]
    assert len(closed) > 3
    assert {bucket.depth for bucket in closed} == {1}


def test_a_bucket_that_stragglers_feed_does_not_delay_the_others() -> None:
    load = Load(segment_ids=1 << 20, lateness_ms=4_000)
    for n in range(4 * 9):
        load.seal(20, n * 1_000 // 9, low_ms=n * 1_000 // 9)
    for _ in range(60):
        load.seal(40, 0, low_ms=4_000)
    depths = [bucket.depth for bucket in load.state.manifest.buckets]
    assert len(depths) == 4
    assert max(depths[1:]) == 1


def test_a_change_of_grid_merges_step_by_step() -> None:
    driver = growing()
    feed_all(driver, range(13))
    driver.retune(bucket_ms=500)
    worst = 0
    for n in range(100, 140):
        feed(driver, n, 200)
        worst = max(worst, driver.count("ids_written") - 20)
    assert worst <= 4 * 64
    old = next(b for b in driver.state.manifest.buckets if b.range == (0, 1_000))
    assert len(old.runs) == 1


class LongIds(MemoryStore):
    """Of which every ID takes a MiB."""

    def write_segment(self, *args: Any, **kwargs: Any) -> tuple[SegmentRef, SplitBlockFilter]:
        ref, made = super().write_segment(*args, **kwargs)
        return replace(ref, sst_bytes=ref.count << 20), made


def test_segments_of_long_ids_hold_fewer_and_merge_as_fast() -> None:
    load = Load(segment_ids=1 << 20, store=LongIds())
    for _ in range(40):
        load.seal(10)
    (bucket,) = load.state.manifest.buckets
    assert max(s.sst_bytes for s in bucket.segments if s.hash_ranges > 1) <= 2 * SEGMENT_BYTES
    assert max(s.hash_ranges for s in bucket.segments) >= 4
    for _ in range(360):
        load.seal(10)
    assert load.deepest <= MAX_OPEN_SEGMENTS


def test_in_usual_buckets_an_id_is_written_at_most_three_times() -> None:
    for seals in (8, 12, 25):
        driver = growing()
        written = 0
        for n in range(seals + 150):
            if n < seals:
                feed(driver, n)
            else:
                driver.feed([Rec(b"later", 1_500)])
            written += driver.count("ids_written")
        runs = driver.state.manifest.buckets[0].runs
        assert sum(map(ids_in, runs)) == seals * 20
        assert len(runs) <= 2
        assert 2 * max(map(ids_in, runs)) > seals * 20
        assert written / (seals * 20) < 3.1


def test_the_smallest_tier_of_runs_is_merged() -> None:
    def sizes(least: int | None, *ids: int) -> list[int] | None:
        runs = tuple((ref(f"{i}", count=n),) for i, n in enumerate(ids))
        found = smallest_tier(runs, least)
        return found if found is None else [segment.count for (segment,) in found]

    assert sizes(4, 5, 5, 5, 5) == [5, 5, 5, 5]
    assert sizes(4, 5, 5, 5) is None
    assert sizes(None, 5, 5, 5, 5, 5) is None
    assert sizes(2, 60, 5, 50, 5) == [5, 5]
    assert sizes(2, 60, 5, 50) == [60, 50]
    assert [merge_fan_in(depth) for depth in (0, 9, 10, 12, 14, 99)] == [None, None, 4, 3, 2, 2]


def test_a_bucket_that_ends_soon_is_left_alone_until_then() -> None:
    def merged(count: int, grown: float, *, depth: int | None = None, share: float = 0.5) -> int:
        runs = tuple((ref(f"{i}", count=1000 if i else 100),) for i in range(count))
        return len(growing_choice(runs, depth or count, grown, share) or ())

    assert merged(10, 10 / 13) == 0
    assert merged(13, 12.5 / 13) == 0
    assert merged(10, 10 / 20) == 9, "more than 16 would come"
    assert merged(14, 0.99) == 13, "too deep to wait"
    assert merged(10, -0.5) == 9, "no one knows what comes"
    assert merged(10, 1.0) == 0, "none but stragglers come"
    assert merged(10, 10 / 13, share=20) == merged(10, 1.0, share=20) == 9, "it would last too long"
    assert merged(13, 12.5 / 13, share=8) == 12
    assert merged(9, 0.1) == 0
    assert merged(9, 0.1, depth=14) == 8


def test_stragglers_do_not_rewrite_a_bucket() -> None:
    def sizes(closed: bool, *ids: int) -> list[int] | None:
        runs = tuple((ref(f"{i}", count=n),) for i, n in enumerate(ids))
        found = ended_choice(runs, closed=closed)
        return found if found is None else [segment.count for (segment,) in found]

    assert sizes(False, 3, 29, 29, 29) == [3, 29, 29, 29]
    assert sizes(False, 29, 29, 29) is None
    assert sizes(False, 100, 8, 8, 8) is None
    assert sizes(False, 100, 1, 1, 1, 1) == [1, 1, 1, 1]
    assert sizes(True, 100, 1, 1) == [100, 1, 1], "its budget is one filter's"
    assert sizes(True, 100) is sizes(True) is None


def test_a_deep_bucket_does_not_wait_for_the_shards_turn() -> None:
    driver = drive(
        state_budget_bytes=0,
        horizon_ms=2_000,
        bucket_ms=1_000,
        lateness_ms=100,
        segment_ids=1 << 20,
    )
    off_turn = 0
    for n in range(80):
        driver.feed([Rec(b"%d" % n, 990)])  # as if it would end at once
        (bucket,) = driver.state.manifest.buckets
        assert bucket.depth < DEEP
        off_turn += bool(driver.count("segments_merged") and (driver.batch - 1) % MERGE_STRIDE)
    assert off_turn > 3


def test_a_bucket_that_expires_during_a_merge_expires_whole() -> None:
    driver, numbers = growing(), count()
    while not any(merge.output for merge in merges_of(driver)):
        feed(driver, next(numbers))
    before = {s.name for s in driver.state.manifest.segments()}
    driver.feed([Rec(b"far", 50_000)], now_ms=60_000)
    driver.feed([], now_ms=60_001)
    assert {s.name for s in driver.state.manifest.segments()}.isdisjoint(before)
    assert before <= {e.name for e in driver.state.manifest.expired} | set(driver.store.deleted)


def under_way() -> Driver:
    driver, numbers = growing(), count()
    while not any(0 < merge.ranges_done < merge.hash_ranges - 1 for merge in merges_of(driver)):
        feed(driver, next(numbers))
    return driver


@pytest.mark.parametrize("which", ["input", "output", "all"])
def test_a_loss_accepted_during_a_merge_removes_the_lost_segments(which: str) -> None:
    driver = under_way()
    (merge,) = merges_of(driver)
    lost = {"input": merge.inputs[:1], "output": merge.output[:1], "all": merge.inputs}[which]
    names = {segment.name for segment in lost}
    driver.store.damaged |= names
    with pytest.raises(SegmentDamaged):
        feed_all(driver, range(1_000, 1_020))
    driver.store.accepted |= names
    gone = {key for segment in lost for key in driver.ids_of(segment)}
    driver.passed = [p for p in driver.passed if p.id not in gone]
    feed_all(driver, range(2_000, 2_030))
    live = {s.name for s in driver.state.manifest.segments()}
    assert live.isdisjoint(names)
    assert driver.state.segments_lost == len(names)


def test_a_merge_that_would_lose_an_id_stops_the_query() -> None:
    driver = under_way()
    (merge,) = merges_of(driver)
    wrong = replace(merge.output[0], count=merge.output[0].count - 1)
    bucket = driver.state.manifest.buckets[0]
    broken = replace(merge, output=(wrong, *merge.output[1:]))
    merges = tuple(broken if m is merge else m for m in bucket.merges)
    manifest = driver.state.manifest.with_bucket(replace(bucket, merges=merges))
    driver.state = replace(driver.state, manifest=manifest)
    driver.store.filters[wrong.name].count -= 1
    with pytest.raises(CatalogError, match="report this as a defect"):
        feed_all(driver, range(1_000, 1_020))


def ref(name: str, hash_ranges: int = 1, range_index: int = 0, count: int = 1) -> SegmentRef:
    return SegmentRef(name, 0, 10, count, 100, 1, 64, 2, hash_ranges, range_index)


def test_during_a_merge_its_inputs_answer_for_the_ranges_not_yet_done() -> None:
    one, two = (ref("a1", 2, 0), ref("a2", 2, 1)), (ref("b"),)
    bucket = Bucket(0, 10, runs=(one, two, (ref("c"),))).beginning((one, two), 4)
    for part in range(2):
        bucket, on, gone = bucket.advancing(bucket.merges[0], ref(f"m{part}", 4, part))
        assert on is bucket.merges[0]
        assert gone == ()
    answering = {r.segment.name: (r.hash_ranges, r.ranges_done) for r in bucket.coverages()}
    # The first half is done, so a1 answers for nothing any more.
    assert answering == {"c": (1, 0), "m0": (1, 0), "m1": (1, 0), "a2": (4, 2), "b": (4, 2)}
    assert bucket.depth == 3
    assert Bucket.from_json(json.loads(json.dumps(bucket.to_json()))) == bucket
    for part in (2, 3):
        bucket, on, gone = bucket.advancing(bucket.merges[0], ref(f"m{part}", 4, part))
    assert on is None
    assert [s.name for s in gone] == ["a1", "a2", "b"]
    assert [[s.name for s in run] for run in bucket.runs] == [["c"], ["m0", "m1", "m2", "m3"]]


def test_ranges_of_hashes_cover_all_once() -> None:
    edges = [0, 1, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
    hashes = np.array(edges, np.uint64)
    for parts in (1, 2, 4, 1 << 16):
        some = range(parts) if parts < 10 else (0, 1, 2**14 - 1, 2**14, 2**15 - 1, 2**15, 2**16 - 1)
        found = [h for part in some for h in hashes[hash_range(hashes, parts, part)].tolist()]
        assert found == edges
    assert hash_range(hashes, 1, 1) == slice(7, 7)
    assert hash_range(hashes, 4, 4) == slice(7, 7)


def test_a_loss_leaves_other_merges_as_they_are() -> None:
    """They are compared by identity: a copy would be advanced beside its original."""
    bucket = Bucket(0, 10, runs=tuple((ref(name),) for name in "abcd"))
    bucket = bucket.beginning(bucket.runs[:2], 2).beginning(bucket.runs[2:], 2)
    kept = bucket.merges[1]
    bucket = bucket.without("a")
    assert bucket.merges[1] is kept
    bucket, _, _ = bucket.advancing(kept, ref("m", 2, 0))
    assert [len(merge.inputs) for merge in bucket.merges] == [1, 2]
