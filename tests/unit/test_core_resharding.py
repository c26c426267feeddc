"""Resharding: the new shards judge every record as the old ones would have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest

from dedup import kernel
from dedup.core.arrival import Verdict
from dedup.core.clocks import NEVER_MS
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.records import Records
from dedup.core.resharding import Resharding
from dedup.core.sharding import shards_of
from dedup.core.state import ShardState
from dedup.errors import SegmentDamaged
from tests.support.memory_store import HASH_KEY, MemoryStore
from tests.support.shard_driver import SMALL, Driver, Rec

STEP_MS = 7
SHARD_KEY = bytes(range(16, 32))
POLICIES = {
    "any": SMALL,
    "late": replace(SMALL, lateness_ms=30),
    "stable": replace(SMALL, stable_timestamps=True, late="drop", lateness_ms=20),
    "payload": replace(SMALL, payload="a"),
    "tail": replace(SMALL, state_budget_bytes=1 << 20),
}


@dataclass
class OneOfMany(Driver):
    """A shard whose clocks observe the records of all shards."""

    everything: Sequence[Rec] = ()

    def _records(self, recs: Sequence[Rec], given: Sequence[Rec]) -> Records:
        return super()._records(recs, self.everything)


@cache
def hash_of(name: bytes, key: bytes) -> int:
    keys = Keys.from_list([name])
    return int(kernel.hash64(keys.data, keys.offsets, key)[0])


def shard_of(name: bytes, shards: int) -> int:
    return int(shards_of(np.array([hash_of(name, SHARD_KEY)], np.uint64), shards)[0])


@dataclass
class Query:
    drivers: list[OneOfMany]

    @staticmethod
    def of(policy: Policy, shards: int) -> Query:
        return Query([OneOfMany(policy, shard=shard) for shard in range(shards)])

    def feed(self, recs: Sequence[Rec], now_ms: int) -> list[tuple[Rec, Verdict]]:
        verdicts: list[tuple[Rec, Verdict]] = []
        shards = len(self.drivers)
        for driver in self.drivers:
            own = [rec for rec in recs if shard_of(rec.id or b"", shards) == driver.shard]
            driver.everything = recs
            verdicts += zip(own, driver.feed(own, now_ms), strict=True)
        return sorted(verdicts, key=lambda one: recs.index(one[0]))

    def retune(self, **changes: object) -> None:
        for driver in self.drivers:
            driver.retune(**changes)

    def resharding(
        self, shards: int, without: Collection[bytes] = frozenset()
    ) -> tuple[Resharding, list[MemoryStore]]:
        new = [MemoryStore() for _ in range(shards)]
        states = [driver.state for driver in self.drivers]
        stores = [driver.store for driver in self.drivers]
        policy = self.drivers[0].policy
        work = Resharding(
            states, stores, new, SHARD_KEY, HASH_KEY, frozenset(without), policy.segment_ids
        )
        return work, new

    def resharded(self, shards: int, without: Collection[bytes] = frozenset()) -> Query:
        """Return a new query that remembers the same, and the oracle's view of it."""
        work, stores = self.resharding(shards, without)
        passed = [
            (shard_of(p.id, shards), replace(p, batch=-1))
            for driver in self.drivers
            for p in driver.passed
            if p.id not in without
        ]
        first = self.drivers[0]
        return Query(
            [
                OneOfMany(
                    first.policy,
                    store,
                    state,
                    shard,
                    run_id="new",
                    now_ms=first.now_ms,
                    passed=[one for its_shard, one in passed if its_shard == shard],
                )
                for shard, (store, state) in enumerate(zip(stores, work.run(), strict=True))
            ]
        )

    def clamped(self) -> set[tuple[int, bytes]]:
        """Return bucket and ID of everything in a bucket that holds a replaced time."""
        return {
            (start_ms, name)
            for driver in self.drivers
            for start_ms, name, *_ in Query([driver]).entries()
            if start_ms in starts_of_clamped(driver.state)
        }

    def entries(self) -> list[tuple[int, bytes, int, str, int]]:
        """Return bucket, ID, time and digest of everything that the shards remember.

        Digests of different sets of columns differ by the set's name.
        """
        seen: list[Any] = []
        for driver in self.drivers:
            tail, sets = driver.state.tail, ("", *driver.state.payloads)
            for bucket in driver.state.manifest.buckets:
                for coverage in bucket.coverages():
                    _, held = driver.store.segments[coverage.segment.name]
                    digests = driver.store.digests.get(coverage.segment.name, {})
                    for name, time_ms in held.items():
                        done = hash_of(name, HASH_KEY) * coverage.hash_ranges >> 64
                        if done >= coverage.ranges_done:
                            digest = digests.get(name, 0)
                            seen.append((bucket.start_ms, name, time_ms, digest, sets))
            no_digests = np.zeros(len(tail), np.uint64)
            beside = (no_digests if tail.digests is None else tail.digests).tolist()
            starts = tail.bucket_starts(max(driver.state.bucket_ms, 1)).tolist()
            for one in zip(starts, tail.keys, tail.times_ms.tolist(), beside, strict=True):
                seen.append((*one, sets))
        return sorted(
            (start, name, time_ms, sets[digest >> 56], digest & (1 << 56) - 1)
            for start, name, time_ms, digest, sets in seen
        )


def stream(random: Random, policy: Policy, batches: range) -> list[list[Rec]]:
    """Return micro-batches of records, some of them repeated, late, without a time, or ahead."""
    made = []
    for batch in batches:
        recs = []
        for number in random.sample(range(300), random.randrange(40)):
            now_ms = batch * STEP_MS
            time_ms = random.choice([now_ms, now_ms - random.randrange(40), None, now_ms + 10**6])
            if policy.stable_timestamps:
                number = now_ms - random.randrange(40)
                time_ms = None if number % 7 == 0 else number
            recs.append(Rec(b"id-%d" % number, time_ms, payload=random.randrange(2)))
        made.append(recs)
    return made


def fed(query: Query, random: Random, batches: range) -> list[list[tuple[Rec, Verdict]]]:
    """Feed a stream, and return all verdicts."""
    policy = query.drivers[0].policy
    made = zip(batches, stream(random, policy, batches), strict=True)
    return [query.feed(recs, batch * STEP_MS) for batch, recs in made]


def starts_of_clamped(state: ShardState) -> set[int]:
    starts = state.tail.where(state.tail.clamped).bucket_starts(max(state.bucket_ms, 1)).tolist()
    return {*starts, *(bucket.start_ms for bucket in state.manifest.buckets if bucket.clamped)}


def dropped(verdicts: Sequence[tuple[Rec, Verdict]]) -> list[tuple[Rec, bool]]:
    return [(rec, verdict in (Verdict.LATE, Verdict.DUPLICATE)) for rec, verdict in verdicts]


def started(policy: Policy, seed: int) -> tuple[Query, Random]:
    """Return a query after 15 micro-batches, the last three with another set of columns."""
    random = Random(seed)
    query = Query.of(policy, random.choice([1, 2, 3, 8]))
    if policy.payload:
        for driver in query.drivers[1::2]:
            # These shards numbered the sets of columns the other way round.
            driver.state = replace(driver.state, payloads=("b",))
    fed(query, random, range(12))
    if policy.payload:
        query.retune(payload="b")
    fed(query, random, range(12, 15))
    return query, random


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_the_new_shards_remember_the_same_and_judge_as_the_old_ones(
    policy: Policy, seed: int
) -> None:
    old, random = started(policy, seed)
    new = old.resharded(random.choice([1, 2, 5, 8, 20]))
    assert old.entries()
    assert old.entries() == new.entries()
    assert old.clamped() <= new.clamped()
    more = random.randrange(10**6)
    before, after = (fed(query, Random(more), range(16, 24)) for query in (old, new))
    assert list(map(dropped, before)) == list(map(dropped, after))
    # Otherwise it depends on the time of sealing which of both a late duplicate is.
    assert policy.forgets_at_late or before == after


def test_the_streams_leave_everything_that_a_state_can_hold() -> None:
    states = [
        driver.state
        for policy in POLICIES.values()
        for seed in range(3)
        for driver in started(policy, seed)[0].drivers
    ]
    buckets = [bucket for state in states for bucket in state.manifest.buckets]
    assert any(len(state.tail) and state.manifest.buckets for state in states)
    assert any(len(bucket.runs) > 1 for bucket in buckets)
    assert any(merge.ranges_done for bucket in buckets for merge in bucket.merges)
    assert any(bucket.clamped for bucket in buckets)
    assert any(not bucket.clamped for bucket in buckets)
    assert any(len(state.payloads) == 2 for state in states)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_an_id_that_is_left_out_passes_again_and_no_other_one(policy: Policy) -> None:
    old, random = started(policy, 1)
    known = sorted({name for _, name, *_ in old.entries()})
    chosen = set(random.sample(known, len(known) // 3))
    new = old.resharded(5, {*chosen, b"unknown"})
    assert new.entries() == [entry for entry in old.entries() if entry[1] not in chosen]
    work, _ = old.resharding(5, {*chosen, b"unknown"})
    work.run()
    assert work.left_out == chosen


def test_large_buckets_become_segments_of_the_usual_size() -> None:
    old = Query.of(replace(SMALL, segment_ids=10**6), 3)
    old.feed([Rec(b"%d" % n, 5) for n in range(400)], 10)
    old.retune(segment_ids=8)
    for shards in (1, 7):
        new = old.resharded(shards)
        sizes = [s.count for d in new.drivers for s in d.state.manifest.segments()]
        assert max(sizes) <= 2 * 8
        assert len(sizes) >= 400 // 8
        assert all(len(b.runs) == 1 for d in new.drivers for b in d.state.manifest.buckets)
        assert old.entries() == new.entries()


def test_filters_keep_their_rate() -> None:
    old = Query.of(replace(SMALL, segment_ids=10**6, fpr=0.02, state_budget_bytes=0), 2)
    old.feed([Rec(b"%d" % n, 5) for n in range(4000)], 10)
    rates = [
        [f.fpr for d in query.drivers for f in d.store.filters.values()]
        for query in (old, old.resharded(5))
    ]
    assert rates[1] == pytest.approx([sum(rates[0]) / len(rates[0])] * 5, rel=0.1)


def test_a_damaged_segment_stops_it_unless_its_loss_is_accepted() -> None:
    old = Query.of(replace(SMALL, state_budget_bytes=0), 2)
    old.feed([Rec(b"%d" % n, 5) for n in range(40)], 10)
    driver = old.drivers[1]
    (segment,) = driver.state.manifest.segments()
    driver.store.damaged.add(segment.name)
    with pytest.raises(SegmentDamaged):
        old.resharded(3)
    driver.store.accepted.add(segment.name)
    new = old.resharded(3)
    assert [d.state.segments_lost for d in new.drivers] == [1, 0, 0]
    assert len(new.entries()) == 40 - segment.count


def test_clocks_and_promises_of_the_query_stay() -> None:
    old, _ = started(POLICIES["stable"], 2)
    new = old.resharded(4)
    before = old.drivers[0].state
    for driver in new.drivers:
        state = driver.state
        assert state.clocks.gc_watermark_ms == before.clocks.gc_watermark_ms > NEVER_MS
        assert state.forgotten_before_ms == before.forgotten_before_ms > NEVER_MS
        assert (state.epoch, state.run_began, state.bucket_ms) == (-1, 0, before.bucket_ms)
