"""History: a shard that learned it judges as if it had received the records in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from random import Random

import pytest

from dedup.core import history
from dedup.core.clocks import NEVER_MS, Clocks
from dedup.core.history import History
from dedup.core.policy import Policy
from dedup.core.records import Epoch, Records
from dedup.core.state import ShardState
from tests.support.memory_store import HASH_KEY, KEY_ID
from tests.support.shard_driver import MAX_FUTURE_MS, PROCESSING, SMALL, Driver, Passed, Rec

NOW_MS = 1000
KEPT = replace(SMALL, keep_expired_ms=86_400_000, retain_epochs=100)
POLICIES = {
    "any": KEPT,
    "late": replace(KEPT, lateness_ms=30),
    "dropped": replace(KEPT, lateness_ms=30, late="drop"),
    "stable": replace(KEPT, stable_timestamps=True, late="drop", lateness_ms=200),
    "payload": replace(KEPT, payload="a"),
    "tail": replace(KEPT, state_budget_bytes=1 << 20),
    "filters alone": replace(KEPT, guarantee="at-most-once"),
    "arrival": replace(KEPT, event_time=False),
    "capped": replace(KEPT, lateness_ms=100, max_live_ids=40),
}


def records_of(driver: Driver, recs: Sequence[Rec]) -> Records:
    return replace(driver._records(recs, recs), sources=None, source_hashes=None)


def learned(policy: Policy, recs: Sequence[Rec]) -> tuple[Driver, History]:
    """Return a shard that has learned the records, which are in order of their buckets."""
    driver = Driver(policy, now_ms=NOW_MS)

    def time_of(rec: Rec) -> int:
        assert rec.time_ms is not None
        ahead = rec.time_ms > NOW_MS + MAX_FUTURE_MS
        return NOW_MS if ahead or not policy.event_time else rec.time_ms

    own = [rec.time_ms for rec in recs if rec.time_ms == time_of(rec)]
    epoch = Epoch(
        number=0, run_id="call", now_ms=NOW_MS, worker_now_ms=NOW_MS, shard=0, hash_key=HASH_KEY
    )
    made = History(policy, driver.store, epoch, max(own, default=NEVER_MS))
    waiting: list[Rec] = []
    dated = sorted(recs, key=lambda rec: time_of(rec) // policy.bucket_ms)
    for bucket, inside in groupby(dated, key=lambda rec: time_of(rec) // policy.bucket_ms):
        together = list(inside)
        waiting += together
        if len(waiting) > 20:
            end_ms = (bucket + 1) * policy.bucket_ms
            made.learn(records_of(driver, waiting), end_ms)
            waiting = []
    driver.state = made.first_state(records_of(driver, waiting))
    for rec in sorted(recs, key=time_of):
        assert rec.id is not None
        close = (
            one for one in driver.passed
            if one.id == rec.id and time_of(rec) - one.time_ms <= policy.horizon_ms
        )  # fmt: skip
        if next(close, None) is None:
            passed = Passed(rec.id, time_of(rec), -1, rec.payload, policy.payload)
            driver.passed.append(passed)
    return driver, made


def records(random: Random, policy: Policy, since_ms: int, until_ms: int, count: int) -> list[Rec]:
    made = []
    for _ in range(count):
        time_ms = random.randrange(since_ms, until_ms)
        # If copies carry one time, the ID decides about it.
        number = time_ms if policy.stable_timestamps else random.randrange(300)
        made.append(Rec(b"id-%d" % number, time_ms, payload=random.randrange(2)))
    return made


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("part", [7, history.PART_RECORDS], ids=["parts", "whole"])
def test_the_shard_judges_as_if_it_had_received_history_in_order(
    policy: Policy, seed: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver compares each verdict with all that passed, in history and after it."""
    monkeypatch.setattr(history, "PART_RECORDS", part)
    random = Random(seed)
    driver, _ = learned(policy, records(random, policy, 0, 900, 400))
    verdicts = []
    for batch in range(12):
        since_ms = 900 - policy.lateness_ms + 20 * batch
        live = records(random, policy, since_ms, since_ms + 60, 30)
        verdicts += driver.named(live, NOW_MS + batch)
    assert {"UNIQUE", "DUPLICATE"} <= set(verdicts)


def test_of_too_much_history_live_records_that_are_not_late_stay() -> None:
    policy = replace(KEPT, lateness_ms=100, max_live_ids=10)
    driver, _ = learned(policy, [Rec(b"h%d" % n, n) for n in range(0, 900, 10)])
    live = [Rec(b"%d" % n, 705 + n) for n in range(40)] + [Rec(b"newest", 801)]
    assert driver.named(live) == ["UNIQUE"] * 41
    assert driver.named(live) == ["DUPLICATE"] * 41


def test_history_makes_no_live_record_late() -> None:
    driver, _ = learned(KEPT, [Rec(b"x", 900), Rec(b"y", 100)])
    assert driver.state.clocks == replace(
        Clocks(), window_watermarks_ms=driver.state.clocks.window_watermarks_ms
    )
    assert driver.named([Rec(b"z", 10), Rec(b"x", 1090)]) == ["UNIQUE", "DUPLICATE"]


def test_a_stream_may_begin_further_back_than_late_records_are_remembered() -> None:
    """A query that drops late records forgets their IDs at 699, but this one has no clock yet."""
    driver, _ = learned(POLICIES["stable"], [Rec(b"x", 600), Rec(b"y", 899)])
    assert driver.named([Rec(b"x", 600)]) == ["DUPLICATE"]


def test_a_copy_within_history_does_not_prolong_the_life_of_its_id() -> None:
    """It passed at 0, a copy was dropped at 150, and it passes again at 250."""
    driver, _ = learned(KEPT, [Rec(b"x", 0), Rec(b"x", 150), Rec(b"y", 240)])
    assert driver.named([Rec(b"x", 250)]) == ["UNIQUE"]


def test_rows_that_are_forgotten_already_are_counted_and_their_segments_deleted() -> None:
    policy = replace(KEPT, lateness_ms=30, state_budget_bytes=0)
    recs = [Rec(b"%d" % n, n) for n in range(0, 1000, 5)]
    driver, made = learned(policy, recs)
    # The newest is 995, so what ends by 765 is forgotten.
    assert made.too_old == 750 // 5
    assert driver.state.manifest.ids == (1000 - 750) // 5
    assert not driver.state.manifest.pending_lists
    # Only what the last step replaced still waits.
    assert all(entry.epoch == -1 for entry in driver.state.manifest.expired)
    assert len(driver.store.segments) == len(driver.state.manifest.names())
    assert driver.store.deleted


def test_times_in_the_future_count_as_now() -> None:
    driver, made = learned(KEPT, [Rec(b"x", 10**9), Rec(b"y", 900)])
    assert made.future == 1
    assert made.too_old == 0
    assert driver.named([Rec(b"x", NOW_MS + 200), Rec(b"y", 900)]) == ["DUPLICATE", "DUPLICATE"]


def test_a_shard_without_rows_starts_empty() -> None:
    driver, _ = learned(PROCESSING, [])
    state = ShardState.from_bytes(driver.state.to_bytes(), hash_key_id=KEY_ID)
    assert (state.epoch, state.bucket_ms, state.live_buckets) == (-1, PROCESSING.bucket_ms, 0)
    assert driver.named([Rec(b"x", 5)]) == ["UNIQUE"]
