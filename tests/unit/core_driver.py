"""Drives one shard of the core through micro-batches and judges it by the two clauses.

The oracle knows nothing of buckets, filters or manifests: it holds every record that went on with
its effective timestamp, and looks through all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from memory_store import HASH_KEY, KEY_ID, MemoryStore

from dedup.core.arrival import Verdict
from dedup.core.clocks import NEVER_MS, Heard
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.shard import FLAG_FUTURE, FLAG_NULL_ID, Epoch, Outcome, Records, process
from dedup.core.state import ShardState

MAX_FUTURE_MS = 50


@dataclass(frozen=True)
class Rec:
    """A record: its ID (None: null), own timestamp, source partition."""

    id: bytes | None
    time_ms: int
    source: str = ""


@dataclass(frozen=True)
class Passed:
    """A record that went on, with the horizon in force."""

    id: bytes
    time_ms: int
    batch: int


@dataclass
class Driver:
    """One shard under test."""

    policy: Policy
    store: MemoryStore = field(default_factory=MemoryStore)
    state: ShardState = field(default_factory=ShardState)
    batch: int = 0
    run_id: str = "run-1"
    now_ms: int = 0
    passed: list[Passed] = field(default_factory=list)
    horizons: list[int] = field(default_factory=list)
    last: Outcome | None = None
    max_segments: int = 0

    def feed(self, recs: Sequence[Rec], now_ms: int | None = None) -> list[Verdict]:
        """Run one micro-batch, check it against the oracle, return its verdicts."""
        self.now_ms = self.now_ms if now_ms is None else now_ms
        base = ShardState.from_bytes(self.state.to_bytes(), hash_key_id=KEY_ID)
        records = self._records(recs)
        epoch = Epoch(
            number=self.batch,
            run_id=self.run_id,
            now_ms=self.now_ms,
            worker_now_ms=self.now_ms,
            shard=0,
            hash_key=HASH_KEY,
        )
        outcome = process(base, records, self.policy, self.store, epoch)
        again = process(base, records, self.policy, self.store, epoch)
        assert outcome.verdicts.tolist() == again.verdicts.tolist(), "a replay answers the same"
        self.horizons.append(self.policy.horizon_ms)
        self._judge(recs, records, base, outcome)
        self._check_bounds(outcome.state)
        self.state, self.last = outcome.state, outcome
        self.batch += 1
        return [Verdict(v) for v in outcome.verdicts]

    def _records(self, recs: Sequence[Rec]) -> Records:
        times = np.array([r.time_ms for r in recs], np.int64)
        flags = np.array([FLAG_NULL_ID * (r.id is None) for r in recs], np.uint8)
        future = times > self.now_ms + MAX_FUTURE_MS
        if self.policy.event_time:
            flags[future] |= FLAG_FUTURE
            times = np.where(future, self.now_ms, times)
        heard: dict[str, Heard] = {}
        for rec, ahead in zip(recs, future, strict=True):
            new = Heard(NEVER_MS if ahead else rec.time_ms, 1)
            heard[rec.source] = heard[rec.source].merge(new) if rec.source in heard else new
        return Records(
            keys=Keys.from_list([r.id or b"" for r in recs]),
            times_ms=times,
            flags=flags,
            heard=heard,
            tie_rank=lambda index: index.copy(),
        )

    def _judge(
        self, recs: Sequence[Rec], records: Records, base: ShardState, outcome: Outcome
    ) -> None:
        policy, late_ms = self.policy, base.clocks.late_watermark_ms
        if policy.event_time:
            effective = np.maximum(records.times_ms, late_ms)
            late = records.times_ms < late_ms
        else:
            effective = np.full(len(recs), max(self.now_ms, base.clocks.now_ms))
            late = np.zeros(len(recs), bool)
        arrival = np.lexsort((np.arange(len(recs)), effective))
        for i in arrival:
            rec, verdict, t = recs[i], Verdict(outcome.verdicts[i]), int(effective[i])
            if rec.id is None:
                assert verdict == Verdict.NULL_ID
                continue
            close = [p for p in self.passed if p.id == rec.id and self._within(p, t)]
            if verdict == Verdict.DUPLICATE:
                near = [
                    p
                    for p in self.passed
                    if p.id == rec.id and abs(p.time_ms - t) <= policy.horizon_ms
                ]
                assert near, f"clause 2: {rec} at {t} has no reason to be dropped"
                continue
            assert verdict == (Verdict.LATE if late[i] else Verdict.UNIQUE)
            if not (policy.forgets_at_late and verdict == Verdict.LATE):
                assert not close, f"clause 1: {rec} at {t} passed although {close} did"
            if verdict == Verdict.UNIQUE or policy.late == "emit":
                self.passed.append(Passed(rec.id, t, self.batch))

    def _within(self, passed: Passed, time_ms: int) -> bool:
        """Whether the guarantee covers the pair: the shortest horizon since then does."""
        horizon_ms = min(self.horizons[passed.batch :])
        return abs(passed.time_ms - time_ms) <= horizon_ms

    def _check_bounds(self, state: ShardState) -> None:
        policy = self.policy
        for bucket in state.manifest.buckets:
            assert len(bucket.segments) <= 16
            self.max_segments = max(self.max_segments, len(bucket.segments))
            ids = [
                key for seg in bucket.segments for key in self.store.segments[seg.name][1]
            ]
            assert len(ids) == len(set(ids)), "an ID occurs at most once in a bucket"
        assert state.tail.nbytes <= max(policy.state_budget_bytes // 2, 16)
        clocks = state.clocks
        assert clocks.gc_watermark_ms <= max(
            clocks.late_watermark_ms - min(self.horizons), NEVER_MS
        )
