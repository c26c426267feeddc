"""Process one micro-batch of one shard: return the verdicts of its records, and its next state.

The result depends only on the *base state* (the state before the micro-batch), the records, and the
segments that the base state names. If Spark runs the micro-batch again, it begins from the same
base state and gets the same result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dedup.core.admission import FLAG_FUTURE, FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED
from dedup.core.arrival import Verdict, judge
from dedup.core.clocks import NEVER_MS, Clocks
from dedup.core.filter import hash_key_id
from dedup.core.keys import Keys
from dedup.core.lookup import Matches, distinct_ids, lookup
from dedup.core.payload import Digested, compare, digests_of, numbered
from dedup.core.policy import Policy
from dedup.core.ports import SegmentStore
from dedup.core.records import Epoch, Outcome, Records
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.core.upkeep import Upkeep
from dedup.errors import ConfigError
from dedup.kernel.arrays import BOOL, I64, U8, U64

#: Later than every timestamp.
_FOREVER_MS = -NEVER_MS


@dataclass(frozen=True, slots=True, eq=False)
class _Judging:
    policy: Policy
    store: SegmentStore
    epoch: Epoch
    records: int
    on_stage_end: Callable[[str], None]
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def upkeep(self, state: ShardState) -> Upkeep:
        return Upkeep(state, self.policy, self.store, self.epoch, self.records, self.counts)

    def judge(
        self, state: ShardState, judgeable: _Judgeable, tie_rank: Callable[[I64], I64]
    ) -> tuple[U8, Tail, list[SegmentRef]]:
        """Return the verdicts, the entries to remember, and the segments whose loss is accepted."""
        policy, hash_key = self.policy, self.epoch.hash_key
        distinct, first = distinct_ids(
            judgeable.keys,
            judgeable.times_ms,
            judgeable.own_first_ms,
            judgeable.own_last_ms,
            hash_key=hash_key,
        )
        self.on_stage_end("hash")
        matches = lookup(
            state, distinct, policy, self.store, hash_key=hash_key, on_stage_end=self.on_stage_end
        )
        self.counts.update(matches.counts)
        verdicts = judge(
            first,
            judgeable.times_ms,
            matches,
            judgeable.late & (policy.late == "drop"),
            policy.horizon_ms,
            lambda index: tie_rank(judgeable.index[index]),
        )
        taken = np.flatnonzero(verdicts == Verdict.UNIQUE)
        verdicts[taken[judgeable.late[taken]]] = Verdict.LATE
        if judgeable.digests is not None:
            records = Digested(first, judgeable.times_ms, judgeable.digests)
            self._mark_conflicts(verdicts, records, taken, matches)
        entries = judgeable.entries(taken)
        self.on_stage_end("judge")
        return verdicts, entries, matches.lost

    def _mark_conflicts(
        self, verdicts: U8, records: Digested, taken: I64, matches: Matches
    ) -> None:
        """Change the verdict of duplicates whose payload differs from the emitted record's."""
        first_records = np.flatnonzero(records.groups == np.arange(len(records.groups)))
        assert matches.digests is not None, "the policy asks for them"
        remembered = Digested(
            np.concatenate([first_records[matches.index], records.groups[taken]]),
            np.concatenate([matches.first_ms, records.times_ms[taken]]),
            np.concatenate([matches.digests, records.digests[taken]]),
        )
        duplicates = np.flatnonzero(verdicts == Verdict.DUPLICATE)
        digested = records.take(duplicates)
        conflicts, unknown = compare(digested, remembered, self.policy.horizon_ms)
        verdicts[duplicates[conflicts]] = Verdict.CONFLICT
        self.counts["payload_unknown"] = int(unknown.sum())


def process(
    state: ShardState,
    records: Records,
    policy: Policy,
    store: SegmentStore,
    epoch: Epoch,
    on_stage_end: Callable[[str], None] = lambda stage: None,
) -> Outcome[ShardState]:
    """Judge a shard's records, and remember the IDs of emitted records.

    Raises ClockError if the processing time cannot be right (invariant 11), ConfigError if late
    copies could pass because an earlier run with other options forgot their IDs early, and
    SegmentDamaged if a segment that must be read is damaged or missing at the root.
    """
    clocks, behind = state.clocks, behind_window(state, records, policy, epoch)
    _check_late(state, policy)
    clocks.check_jump(
        now_ms=epoch.now_ms, worker_now_ms=epoch.worker_now_ms, run_id=epoch.run_id, policy=policy
    )
    judging = _Judging(policy, store, epoch, len(records.flags), on_stage_end)
    judging.counts["horizon_cut_ms"] = state.horizon_cut_ms(policy.horizon_ms)
    if state.bucket_ms != policy.bucket_ms:
        state = replace(judging.upkeep(state).seal_all(), bucket_ms=policy.bucket_ms)
    digests = None
    if policy.payload is not None and records.payload_hashes is not None:
        payloads, column_set = numbered(state.payloads, policy.payload)
        state = replace(state, payloads=payloads)
        digests = digests_of(records.payload_hashes, column_set)

    times_ms, late = effective_times(records, clocks, policy, epoch)
    verdicts = np.full(len(records.flags), Verdict.UNTIMED, np.uint8)
    no_id = (records.flags & FLAG_NULL_ID) != 0
    verdicts[no_id] = np.where(behind[no_id], Verdict.LATE, Verdict.NULL_ID)
    judgeable = records.judgeable
    lost: list[SegmentRef] = []
    if policy.guarantee == "at-least-once":
        verdicts[judgeable] = np.where((late | behind)[judgeable], Verdict.LATE, Verdict.UNIQUE)
        judging.counts["unchecked"] += len(judgeable)
    elif len(judgeable):
        times = times_ms[judgeable], late[judgeable], behind[judgeable]
        to_judge = _Judgeable.of(records, judgeable, times, policy, digests)
        verdicts[judgeable], taken, lost = judging.judge(state, to_judge, records.tie_rank)
        # A conflict may pass, but not into a window that would drop it.
        verdicts[behind & (verdicts == Verdict.CONFLICT)] = Verdict.DUPLICATE
        state = replace(state, tail=state.tail.append(taken))
    advanced = clocks.advance(
        records.observed, now_ms=epoch.now_ms, run_id=epoch.run_id, policy=policy
    )
    key_id = hash_key_id(epoch.hash_key)
    state = replace(state, epoch=epoch.number, clocks=advanced, hash_key_id=key_id)
    upkeep = judging.upkeep(state)
    for segment in lost:
        upkeep.drop_lost(segment)
    state = upkeep.run()
    on_stage_end("upkeep")
    judging.counts["returned_from_idle"] = _returned_from_idle(records, late, clocks, policy)
    judging.counts.update(records.counts(verdicts, Verdict))
    return Outcome(verdicts, state, dict(judging.counts))


def _check_late(state: ShardState, policy: Policy) -> None:
    """Raise ConfigError if late copies could pass because their IDs were forgotten early.

    That can happen if an earlier run dropped late records and this run emits them.
    """
    if policy.late == "emit" and state.clocks.gc_watermark_ms < state.forgotten_before_ms:
        raise ConfigError(
            'late is "emit" now and was "drop", with stable timestamps. IDs of the last horizon '
            "were forgotten because late records were dropped anyway, so late copies would pass "
            'again. Keep late="drop", or start over with a new checkpoint.',
            remedy="changed-settings",
        )


def effective_times(
    records: Records, clocks: Clocks, policy: Policy, epoch: Epoch
) -> tuple[I64, BOOL]:
    """Return each record's effective timestamp, and whether the record is late."""
    n, late_ms = len(records.flags), clocks.late_watermark_ms
    if not policy.event_time:
        return np.full(n, clocks.effective_now(epoch.now_ms), np.int64), np.zeros(n, np.bool_)
    return np.maximum(records.times_ms, np.int64(late_ms)), records.times_ms < late_ms


def behind_window(state: ShardState, records: Records, policy: Policy, epoch: Epoch) -> BOOL:
    """Return which records are late for a window after the operator.

    These are the records behind the window's watermark, and those in the future: one of them would
    move the watermark ahead of all others. Null timestamps do not concern a window.
    """
    if policy.window_delay_ms is None:
        return np.zeros(len(records.flags), np.bool_)
    follows = epoch.number == state.epoch + 1
    watermark_ms = state.clocks.window_watermark_ms(policy, follows=follows)
    future = (records.flags & FLAG_FUTURE) != 0
    timed = (records.flags & (FLAG_NULL_TIME | FLAG_UNTIMED)) == 0
    behind: BOOL = timed & (future | (records.times_ms < watermark_ms))
    return behind


@dataclass(frozen=True, slots=True, eq=False)
class _Judgeable:
    """The n records of a micro-batch that have an ID and a time."""

    #: Positions of these records among all records.
    index: I64
    keys: Keys
    #: Effective timestamps.
    times_ms: I64
    #: Whether the timestamp is behind the late watermark, or late for a window.
    late: BOOL
    #: Whether another time replaced the timestamp, because it was null, in the future, or behind
    #: the late watermark.
    clamped: BOOL
    #: Earliest and latest timestamp that each record may have carried itself.
    own_first_ms: I64
    own_last_ms: I64
    #: Digests of payloads, or None unless the policy compares payloads.
    digests: U64 | None

    @staticmethod
    def of(
        records: Records,
        index: I64,
        times: tuple[I64, BOOL, BOOL],
        policy: Policy,
        digests: U64 | None,
    ) -> _Judgeable:
        keys, flags = records.keys, records.flags[index]
        times_ms, late, behind = times
        own_ms = records.times_ms[index] if policy.event_time else times_ms
        # A replaced future time is not kept. Another copy may have been taken with that time before
        # somebody set the clock back. A null time may stand for any time.
        null = (flags & FLAG_NULL_TIME) != 0
        substituted = null | ((flags & FLAG_FUTURE) != 0)
        return _Judgeable(
            index=index,
            keys=keys.take(index) if len(index) < len(keys) else keys,
            times_ms=times_ms,
            late=late | behind,
            clamped=substituted | late,
            own_first_ms=np.where(null, NEVER_MS, own_ms),
            own_last_ms=np.where(substituted, _FOREVER_MS, own_ms),
            digests=None if digests is None else digests[index],
        )

    def entries(self, taken: I64) -> Tail:
        return Tail(
            self.keys if len(taken) == len(self.keys) else self.keys.take(taken),
            self.times_ms[taken],
            self.clamped[taken],
            None if self.digests is None else self.digests[taken],
        )


def _returned_from_idle(records: Records, late: BOOL, base: Clocks, policy: Policy) -> int:
    if records.sources is None or records.source_hashes is None:
        return 0
    idle = base.idle_sources(policy)
    if policy.idle_timeout_ms is not None:
        # Idle partitions are forgotten once the GC watermark has passed them.
        idle |= records.source_hashes.keys() - base.sources.keys()
    returned = [number for name, number in records.source_hashes.items() if name in idle]
    if not returned:
        return 0
    return int(np.count_nonzero(np.isin(records.sources, np.array(returned, np.uint64)) & late))
