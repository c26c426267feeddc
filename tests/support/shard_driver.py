"""Drives one shard of the core through micro-batches and judges it by the two clauses.

The oracle knows nothing of buckets, filters or manifests: it holds every record that passed with
its effective timestamp, and looks through all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from dedup import kernel
from dedup.core.admission import FLAG_FUTURE, FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED
from dedup.core.arrival import Verdict
from dedup.core.bucket import Bucket
from dedup.core.clocks import NEVER_MS, Clocks, Observed
from dedup.core.filter import hash_key_id
from dedup.core.keys import Keys
from dedup.core.policy import MAX_OPEN_SEGMENTS, Policy
from dedup.core.ports import SegmentStore
from dedup.core.records import Epoch, Outcome, Records
from dedup.core.segment import SegmentRef
from dedup.core.shard import process
from dedup.core.state import ShardState
from tests.support.memory_store import HASH_KEY, MemoryStore

MAX_FUTURE_MS = 50
YEAR_MS = 365 * 86_400_000
X, Y, Z = b"x", b"y", b"z"
IN_2099_MS = 4_070_908_800_000
EVENT = Policy(horizon_ms=60, bucket_ms=10, event_time=True, keep_expired_ms=0, retain_epochs=0)
PROCESSING = replace(EVENT, event_time=False)
#: So small that a few records make segments, and several of them a bucket.
SMALL = replace(
    EVENT,
    horizon_ms=200,
    bucket_ms=50,
    segment_ids=4,
    state_budget_bytes=600,
    max_filter_state_bytes=0,
)

#: Everything in segments after each micro-batch, or everything in the tail.
SEALED_OR_NOT = pytest.mark.parametrize("budget", [0, 1 << 20], ids=["sealed", "tail"])
STABLE_OR_NOT = pytest.mark.parametrize("stable", [False, True], ids=["any", "stable"])


@dataclass(frozen=True)
class Rec:
    """A record: its ID (None: null), own timestamp (None: null), source partition.

    `untimed`: no time replaces a null timestamp. `payload`: its other content. `heartbeat`: it only
    advances its clock, and gets no verdict.
    """

    id: bytes | None
    time_ms: int | None
    source: str = ""
    untimed: bool = False
    payload: int = 0
    heartbeat: bool = False

    @property
    def is_untimed(self) -> bool:
        """Whether neither the record nor a substitute gives its time."""
        return self.untimed and self.time_ms is None


@dataclass(frozen=True)
class Passed:
    """A record that passed, and the micro-batch that took it."""

    id: bytes
    time_ms: int
    batch: int
    payload: int = 0
    #: The set of columns for its comparison when it passed.
    column_set: str | None = None


@dataclass
class SparkWatermark:
    """Spark's watermark after the operator, as the given times of each micro-batch move it."""

    #: By micro-batch: the newest time so far, and the watermark at its end. The watermark is None
    #: if the option was not set.
    newest_ms: list[int] = field(default_factory=list)
    ends_ms: list[int | None] = field(default_factory=list)

    def at_end(self, batch: int, delay_ms: int) -> int:
        """The watermark that a micro-batch left; before the option was set, with its delay."""
        if batch < 0:
            return 0
        if (end_ms := self.ends_ms[batch]) is not None:
            return end_ms
        # It never falls, also if the option was set earlier, with another delay.
        earlier = (end_ms for end_ms in reversed(self.ends_ms[:batch]) if end_ms is not None)
        return max(next(earlier, 0), self.newest_ms[batch] - delay_ms)

    def end(self, own_ms: int, newest_ms: int, delay_ms: int | None) -> None:
        """A micro-batch ends, in which the window got times up to `own_ms`."""
        last = len(self.ends_ms) - 1
        if delay_ms is None:
            self.ends_ms.append(None)
        else:
            self.ends_ms.append(max(self.at_end(last, delay_ms), own_ms - delay_ms))
        self.newest_ms.append(max([newest_ms, *self.newest_ms[last:]]))

    def forget(self, first: int) -> None:
        del self.newest_ms[first:], self.ends_ms[first:]


@dataclass
class Driver:
    """One shard under test; every micro-batch is run twice, from bytes of the same base state."""

    policy: Policy
    store: MemoryStore = field(default_factory=MemoryStore)
    state: ShardState = field(default_factory=ShardState)
    shard: int = 0
    batch: int = 0
    #: The highest micro-batch ever run; Spark keeps the states of so many before it.
    highest: int = 0
    run_id: str = "run-1"
    now_ms: int = 0
    hash_key: bytes = HASH_KEY
    passed: list[Passed] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    history: list[ShardState] = field(default_factory=list)
    #: Of the last micro-batch.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: As it is, by the records that passed; and at most, by all records.
    watermark: SparkWatermark = field(default_factory=SparkWatermark)
    bound: SparkWatermark = field(default_factory=SparkWatermark)

    def feed(self, given: Sequence[Rec], now_ms: int | None = None) -> list[Verdict]:
        """Run one micro-batch, check it against the oracle, return its verdicts."""
        self.now_ms = self.now_ms if now_ms is None else now_ms
        recs = [rec for rec in given if not rec.heartbeat]
        key_id = hash_key_id(self.hash_key)
        row = replace(self.state, hash_key_id=self.state.hash_key_id or key_id).to_bytes()
        base = ShardState.from_bytes(row, hash_key_id=key_id)
        records = self._records(recs, given)
        epoch = Epoch(
            number=self.batch, run_id=self.run_id, now_ms=self.now_ms, worker_now_ms=self.now_ms,
            shard=self.shard, hash_key=self.hash_key,
        )  # fmt: skip
        orphaned = process(base, records, self.policy, self.attempt(), epoch)
        outcome = process(base, records, self.policy, self.attempt(), epoch)
        assert outcome.verdicts.tolist() == orphaned.verdicts.tolist(), "a replay answers the same"
        assert outcome.state.hash_key_id == key_id
        self.policies.append(self.policy)
        self._judge(recs, records, base, outcome)
        self._move_windows(records, outcome)
        self.history.append(self.state)
        self.highest = max(self.highest, self.batch)
        self._check_bounds(base.clocks, outcome.state)
        self.state, self.counts = outcome.state, outcome.counts
        self.batch += 1
        return [Verdict(v) for v in outcome.verdicts]

    def skip(self) -> None:
        """A micro-batch without input, which Spark runs for the window: no shard is called."""
        self.policies.append(self.policy)
        self.history.append(self.state)
        for model in (self.watermark, self.bound):
            model.end(NEVER_MS, NEVER_MS, self.policy.window_delay_ms)
        self.highest = max(self.highest, self.batch)
        self.batch += 1

    def named(self, recs: Sequence[Rec], now_ms: int | None = None) -> list[str]:
        """As `feed`; the names of the verdicts."""
        return [verdict.name for verdict in self.feed(recs, now_ms)]

    def roll_back(self, batches: int) -> None:
        """Continue from an earlier micro-batch, as after a restart that lost newer commits."""
        self.batch -= batches
        self.state = self.history[self.batch]
        del self.history[self.batch :], self.policies[self.batch :]
        self.passed = [p for p in self.passed if p.batch < self.batch]
        self.watermark.forget(self.batch)
        self.bound.forget(self.batch)

    def retune(self, **changes: Any) -> None:
        """Restart the query with other options."""
        self.policy = replace(self.policy, **changes)
        self.restart()

    def restart(self) -> None:
        """Begin another run of the query."""
        self.run_id += "x"

    def count(self, name: str) -> int:
        """A count of the last micro-batch."""
        return self.counts.get(name, 0)

    def attempt(self) -> SegmentStore:
        """The store of a new task attempt."""
        return self.store

    def ids_of(self, segment: SegmentRef) -> list[bytes]:
        """The IDs that a segment really holds."""
        return list(self.store.segments[segment.name][1])

    def lives(self, segment: SegmentRef) -> bool:
        """Whether the segment is still at the root."""
        return segment.name in self.store.segments

    def _records(self, recs: Sequence[Rec], given: Sequence[Rec]) -> Records:
        """The records among all that were given, and what the clocks observe of these."""
        own = [NEVER_MS if rec.time_ms is None else rec.time_ms for rec in recs]
        times = np.array(own, np.int64)
        flags = np.array([FLAG_NULL_ID * (rec.id is None) for rec in recs], np.uint8)
        if self.policy.event_time:
            flags[times > self.now_ms + MAX_FUTURE_MS] |= FLAG_FUTURE
            flags[times == NEVER_MS] |= FLAG_NULL_TIME
            flags[[rec.is_untimed for rec in recs]] |= FLAG_UNTIMED
        substituted = (flags & (FLAG_FUTURE | FLAG_NULL_TIME)) != 0
        observed: dict[str, Observed] = {}
        for rec in given:
            if (new := self._observed(rec)) is not None:
                observed[rec.source] = observed.get(rec.source, Observed(NEVER_MS, 0)).merge(new)
        names = sorted({rec.source for rec in given})
        return Records(
            keys=Keys.from_list([rec.id or b"" for rec in recs]),
            times_ms=np.where(substituted, self.now_ms, times),
            flags=flags,
            observed=observed,
            heartbeats=len(given) - len(recs),
            tie_rank=lambda index: index.copy(),
            sources=np.array([names.index(rec.source) for rec in recs], np.uint64),
            source_hashes={name: names.index(name) for name in observed},
            payload_hashes=np.array([rec.payload << 8 for rec in recs], np.uint64),
        )

    def _observed(self, rec: Rec) -> Observed | None:
        """What a clock observes of a record or a heartbeat."""
        time_ms = NEVER_MS if rec.time_ms is None else rec.time_ms
        if self.policy.event_time and time_ms > self.now_ms + MAX_FUTURE_MS:
            time_ms = NEVER_MS
        if rec.heartbeat:
            no_time = rec.time_ms is None or not self.policy.event_time
            return None if no_time else Observed(NEVER_MS, 1, time_ms)
        return None if self.policy.event_time and rec.is_untimed else Observed(time_ms, 1)

    def _judge(
        self, recs: Sequence[Rec], records: Records, base: ShardState, outcome: Outcome[ShardState]
    ) -> None:
        policy, late_ms = self.policy, base.clocks.late_watermark_ms
        if policy.event_time:
            effective = np.maximum(records.times_ms, late_ms)
            late = records.times_ms < late_ms
        else:
            effective = np.full(len(recs), base.clocks.effective_now(self.now_ms))
            late = np.zeros(len(recs), bool)
        behind = self._behind(records)
        late = late | behind
        arrival = np.lexsort((np.arange(len(recs)), effective))
        duplicates: list[tuple[Rec, int, Verdict]] = []
        for i in arrival:
            rec, verdict, t = recs[i], Verdict(outcome.verdicts[i]), int(effective[i])
            if rec.id is None:
                assert verdict == (Verdict.LATE if behind[i] else Verdict.NULL_ID)
                continue
            if policy.event_time and rec.is_untimed:
                assert verdict == Verdict.UNTIMED
                continue
            if policy.guarantee == "at-least-once":
                assert verdict == (Verdict.LATE if late[i] else Verdict.UNIQUE)
                continue
            if verdict == Verdict.DUPLICATE and policy.guarantee == "at-most-once":
                continue
            same = [p for p in self.passed if p.id == rec.id]
            if verdict in (Verdict.DUPLICATE, Verdict.CONFLICT):
                assert verdict == Verdict.DUPLICATE or not behind[i]
                if not behind[i]:
                    duplicates.append((rec, t, verdict))
                assert any(abs(p.time_ms - t) <= policy.horizon_ms for p in same), (
                    f"clause 2: {rec} at {t} has no reason to be dropped"
                )
                continue
            assert verdict == (Verdict.LATE if late[i] else Verdict.UNIQUE)
            emitted = verdict == Verdict.UNIQUE or policy.late == "emit"
            cut_ms = outcome.counts.get("horizon_cut_ms", 0)
            close = [p for p in same if self._within(p, t, cut_ms)]
            # If late records are dropped anyway, their duplicates need no verdict of DUPLICATE.
            if emitted or not policy.forgets_at_late:
                assert not close, f"clause 1: {rec} at {t} passed although {close} did"
            if emitted:
                self.passed.append(Passed(rec.id, t, self.batch, rec.payload, policy.payload))

        for rec, t, verdict in duplicates:
            self._judge_payload(rec, t, verdict)

    def _own(self, records: Records) -> tuple[np.ndarray, np.ndarray]:
        """Which records have their own time, and which of them are in the future."""
        future = (records.flags & FLAG_FUTURE) != 0
        return (records.flags & (FLAG_NULL_TIME | FLAG_UNTIMED)) == 0, future

    def _behind(self, records: Records) -> np.ndarray:
        """Which records must be late for the window after the operator."""
        delay_ms, last = self.policy.window_delay_ms, self.batch - 1
        if delay_ms is None:
            return np.zeros(len(records.flags), bool)
        # A new option is judged by all that was heard before.
        is_new = last >= 0 and self.bound.ends_ms[last] is None
        bound_ms = self.bound.at_end(last, delay_ms) if is_new else self._before_last(self.bound)
        own, future = self._own(records)
        return own & (future | (records.times_ms < bound_ms))

    def _before_last(self, watermark: SparkWatermark) -> int:
        """The watermark that the micro-batch before the last one left.

        If the option was new in the last one, it counts with the delay of then.
        """
        last = self.batch - 1
        delays_ms = (self.policies[last].window_delay_ms if last >= 0 else None,
                     self.policy.window_delay_ms)  # fmt: skip
        return watermark.at_end(last - 1, next(d for d in delays_ms if d is not None))

    def _move_windows(self, records: Records, outcome: Outcome[ShardState]) -> None:
        """Check that the window drops nothing that passed, and move Spark's watermark."""
        own, future = self._own(records)
        passed = np.isin(outcome.verdicts, (Verdict.UNIQUE, Verdict.NULL_ID, Verdict.CONFLICT))
        delay_ms = self.policy.window_delay_ms
        if delay_ms is not None:
            counted = records.times_ms[own & passed]
            assert (counted >= self._before_last(self.watermark)).all()
            assert not (future & passed).any(), "it would close every window"
        emitted, heard = (
            max(records.times_ms[mask & ~future].tolist(), default=NEVER_MS)
            for mask in (own & passed, own)
        )
        newest_ms = max((h.clock_ms for h in records.observed.values()), default=NEVER_MS)
        self.watermark.end(emitted, emitted, delay_ms)
        self.bound.end(heard, newest_ms, delay_ms)

    def _judge_payload(self, rec: Rec, time_ms: int, verdict: Verdict) -> None:
        """Check a duplicate against the records that passed: lookups end at the first match."""
        policy = self.policy
        same = (p for p in self.passed if p.id == rec.id)
        near = [p for p in same if abs(p.time_ms - time_ms) <= policy.horizon_ms]
        alike = [p for p in near if p.column_set == policy.payload]
        if verdict == Verdict.CONFLICT:
            assert policy.payload is not None
            assert any(p.payload != rec.payload for p in alike), f"{rec} differs from none"
        elif policy.payload is not None and len(near) == len(alike):
            assert any(p.payload == rec.payload for p in alike), f"{rec} differs from all"

    def _within(self, passed: Passed, time_ms: int, cut_ms: int) -> bool:
        """Whether the guarantee covers the pair: the shortest memory since then does.

        Too many IDs have cut the horizon of the micro-batch by `cut_ms`.
        """
        since = self.policies[passed.batch :]
        kept_ms = min(policy.horizon_ms for policy in since) - cut_ms
        return abs(passed.time_ms - time_ms) <= kept_ms

    def _check_bounds(self, base: Clocks, state: ShardState) -> None:
        policy, clocks = self.policy, state.clocks
        for bucket in state.manifest.buckets:
            # A closed one may get the last stragglers besides.
            assert bucket.depth <= MAX_OPEN_SEGMENTS
            self._check_bucket(bucket, exact=not state.segments_lost)
        assert state.tail.nbytes <= max(policy.state_budget_bytes // 2, 16)
        assert clocks.late_watermark_ms >= base.late_watermark_ms
        assert clocks.gc_watermark_ms >= base.gc_watermark_ms
        assert clocks.low_watermark_ms >= base.low_watermark_ms
        shortest_ms = min(policy.horizon_ms for policy in self.policies)
        assert clocks.gc_watermark_ms <= max(clocks.late_watermark_ms - shortest_ms, NEVER_MS)
        retained = min(policy.retain_epochs for policy in self.policies)
        oldest = max(0, self.highest - retained)
        for earlier in [*self.history[oldest:], state]:
            for segment in earlier.manifest.segments():
                assert self.lives(segment), "a state that Spark can roll back to is whole"

    def _check_bucket(self, bucket: Bucket, *, exact: bool) -> None:
        """Every ID has exactly one segment that answers for it, and counts are true."""
        answering: Counter[bytes] = Counter()
        held: set[bytes] = set()
        for reach in bucket.coverages():
            keys = Keys.from_list(self.ids_of(reach.segment))
            hashes = kernel.hash64(keys.data, keys.offsets, self.hash_key)
            for key, value in zip(keys, hashes.tolist(), strict=True):
                held.add(key)
                assert value * reach.segment.hash_ranges >> 64 == reach.segment.range_index
                answering[key] += value * reach.hash_ranges >> 64 >= reach.ranges_done
        if exact:
            assert all(answering[key] == 1 for key in held), "an ID occurs once in a bucket"
            assert bucket.ids == len(held)
        else:
            assert all(count <= 1 for count in answering.values())


def drive(policy: Policy = EVENT, **changes: Any) -> Driver:
    """A driver of a policy with some changes. The tail's budget bounds filters too."""
    if "state_budget_bytes" in changes:
        changes = {"max_filter_state_bytes": changes["state_budget_bytes"], **changes}
    return Driver(replace(policy, **changes), now_ms=10_000)


def watermarks(driver: Driver) -> tuple[int, int]:
    """Late watermark and GC watermark that the next micro-batch works under."""
    clocks = driver.state.clocks
    return clocks.late_watermark_ms, clocks.gc_watermark_ms
