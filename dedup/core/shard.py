"""One shard, one micro-batch: verdicts, and the state that goes on.

A pure function of base state, records and what the named segments hold. Spark calls it again
after a retry, a restart or a second action, from the same base state, and gets the same answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dedup import kernel
from dedup.core.admission import FLAG_FUTURE, FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED
from dedup.core.arrays import I64
from dedup.core.arrival import Verdict, judge
from dedup.core.clocks import NEVER_MS, Clocks, Observed
from dedup.core.keys import Keys
from dedup.core.lookup import DistinctIds, lookup
from dedup.core.policy import Policy
from dedup.core.ports import SegmentStore
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.core.upkeep import Upkeep
from dedup.errors import ConfigError

#: Later than every timestamp.
_FOREVER_MS = -NEVER_MS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Records:
    """A shard's records of one micro-batch, in any order.

    Parameters
    ----------
    keys : Keys, length n
        Canonical IDs; empty bytes where the ID is null.
    times_ms : int64 array, shape (n,)
        Timestamps, future and null ones already substituted by the micro-batch's time; ignored in
        processing-time mode, and of untimed records.
    flags : uint8 array, shape (n,)
        FLAG_NULL_ID, FLAG_FUTURE, FLAG_NULL_TIME, FLAG_UNTIMED.
    sources : uint64 array, shape (n,), or None
        Hash of each record's source partition, for counting.
    observed : mapping of source partition to Observed
        From the whole micro-batch.
    source_hashes : mapping of source partition to int
        The hashes used in `sources`.
    tie_rank : callable
        Ranks of the given records by order columns, then row hash.
    """

    keys: Keys
    times_ms: I64
    flags: npt.NDArray[np.uint8]
    observed: Mapping[str, Observed]
    tie_rank: Callable[[I64], I64]
    sources: npt.NDArray[np.uint64] | None = None
    source_hashes: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Which micro-batch this is, and for whom.

    Parameters
    ----------
    number : int
        Micro-batch ID.
    run_id : str
        The query's run.
    now_ms, worker_now_ms : int
        Time of the micro-batch, stable under replay; the worker's own clock.
    shard : int
    hash_key : bytes
        16 bytes: the key of the filters' hash.
    """

    number: int
    run_id: str
    now_ms: int
    worker_now_ms: int
    shard: int
    hash_key: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Verdict of each record (uint8, shape (n,)), the state that goes on, and counts."""

    verdicts: npt.NDArray[np.uint8]
    state: ShardState
    counts: Mapping[str, int]


def process(
    state: ShardState,
    records: Records,
    policy: Policy,
    store: SegmentStore,
    epoch: Epoch,
    on_stage_end: Callable[[str], None] = lambda stage: None,
) -> Outcome:
    """Judge a shard's records and remember those that are taken.

    Parameters
    ----------
    state : ShardState
        Base state of the micro-batch.
    records : Records
    policy : Policy
    store : SegmentStore
    epoch : Epoch
    lap : callable
        Called with a stage's name when it ends.

    Raises
    ------
    ClockError
        If the processing time cannot be right (invariant 11).
    ConfigError
        If late records would pass whose IDs were forgotten under another option.
    SegmentDamaged
        If a segment that must be read is damaged or missing at the root.
    """
    clocks = state.clocks
    _check_late(state, policy)
    clocks.check_jump(
        now_ms=epoch.now_ms, worker_now_ms=epoch.worker_now_ms, run_id=epoch.run_id, policy=policy
    )
    counts: defaultdict[str, int] = defaultdict(int)
    state = _on_grid(state, policy, store, epoch, counts)

    times_ms, late = _effective(records, clocks, policy, epoch)
    verdicts = np.full(len(records.flags), Verdict.UNTIMED, np.uint8)
    verdicts[(records.flags & FLAG_NULL_ID) != 0] = Verdict.NULL_ID
    some = np.flatnonzero((records.flags & (FLAG_NULL_ID | FLAG_UNTIMED)) == 0)
    lost: list[SegmentRef] = []
    if len(some):
        taken, lost = _judge_identified(
            state,
            records,
            some,
            times_ms,
            late,
            verdicts,
            policy,
            store,
            epoch,
            counts,
            on_stage_end,
        )
        state = replace(state, tail=state.tail.append(taken))
    advanced = clocks.advance(
        records.observed, now_ms=epoch.now_ms, run_id=epoch.run_id, policy=policy
    )
    upkeep = _upkeep(
        replace(state, epoch=epoch.number, clocks=advanced), policy, store, epoch, counts
    )
    for segment in lost:
        upkeep.drop_lost(segment)
    state = upkeep.run()
    on_stage_end("upkeep")
    _count_records(counts, records, verdicts, late, clocks, policy)
    return Outcome(verdicts, state, dict(counts))


def _check_late(state: ShardState, policy: Policy) -> None:
    """Refuse to let late records pass while their IDs may be forgotten already."""
    if policy.late == "emit" and state.clocks.gc_watermark_ms < state.forgotten_before_ms:
        raise ConfigError(
            'late="emit" after late="drop" with stable timestamps: IDs of the last horizon were '
            "forgotten because late records were dropped anyway; a late copy of one would pass "
            'again. Stay with late="drop", or begin anew with another checkpoint.',
            remedy="changed-settings",
        )


def _on_grid(
    state: ShardState,
    policy: Policy,
    store: SegmentStore,
    epoch: Epoch,
    counts: defaultdict[str, int],
) -> ShardState:
    """The state with its tail on the policy's bucket grid: old open buckets are sealed."""
    if state.bucket_ms == policy.bucket_ms:
        return state
    if len(state.tail):
        state = _upkeep(state, policy, store, epoch, counts).seal_all()
    return replace(state, bucket_ms=policy.bucket_ms)


def _upkeep(
    state: ShardState,
    policy: Policy,
    store: SegmentStore,
    epoch: Epoch,
    counts: defaultdict[str, int],
) -> Upkeep:
    return Upkeep(
        state, policy, store, epoch.shard, epoch.number, epoch.now_ms, epoch.hash_key, counts
    )


def _effective(
    records: Records, clocks: Clocks, policy: Policy, epoch: Epoch
) -> tuple[I64, npt.NDArray[np.bool_]]:
    """Effective timestamps, and which records are behind the late watermark."""
    n = len(records.flags)
    if not policy.event_time:
        now = np.full(n, clocks.effective_now(epoch.now_ms), np.int64)
        return now, np.zeros(n, np.bool_)
    late = records.times_ms < clocks.late_watermark_ms
    return np.maximum(records.times_ms, np.int64(clocks.late_watermark_ms)), late


def _judge_identified(
    state: ShardState,
    records: Records,
    some: I64,
    times_ms: I64,
    late: npt.NDArray[np.bool_],
    verdicts: npt.NDArray[np.uint8],
    policy: Policy,
    store: SegmentStore,
    epoch: Epoch,
    counts: defaultdict[str, int],
    on_stage_end: Callable[[str], None],
) -> tuple[Tail, list[SegmentRef]]:
    """Fill in the verdicts of records with ID and time; return the entries to remember."""
    whole = len(some) == len(verdicts)
    keys = records.keys if whole else records.keys.take(some)
    times, is_late = times_ms[some], late[some]
    own_ms = records.times_ms[some] if policy.event_time else times
    # A time in the future was not carried over; a copy may have been taken under it before the
    # clock was set back. A null one may be any.
    flags = records.flags[some]
    own_last_ms = np.where((flags & (FLAG_FUTURE | FLAG_NULL_TIME)) != 0, _FOREVER_MS, own_ms)
    own_ms = np.where((flags & FLAG_NULL_TIME) != 0, NEVER_MS, own_ms)
    hashes = kernel.hash64(keys.data, keys.offsets, epoch.hash_key)
    first = kernel.first_occurrence(keys.data, keys.offsets, hashes)
    distinct = _distinct_ids(keys, hashes, first, times, own_ms, own_last_ms)
    on_stage_end("hash")
    matches = lookup(
        state, distinct, policy, store, hash_key=epoch.hash_key, on_stage_end=on_stage_end
    )
    droppable = is_late if policy.late == "drop" else np.zeros(len(some), np.bool_)
    judged = judge(
        first,
        times,
        matches,
        droppable,
        policy.horizon_ms,
        lambda index: records.tie_rank(some[index]),
    )
    taken = np.flatnonzero(judged == Verdict.UNIQUE)
    judged[taken[is_late[taken]]] = Verdict.LATE
    verdicts[some] = judged
    counts["filter_negative"] += matches.negative
    counts["filter_true_positive"] += matches.true_positive
    counts["filter_false_positive"] += matches.false_positive
    substituted = (records.flags[some[taken]] & (FLAG_FUTURE | FLAG_NULL_TIME)) != 0
    entries = Tail(
        keys if len(taken) == len(keys) else keys.take(taken),
        times[taken],
        substituted | is_late[taken],
    )
    on_stage_end("judge")
    return entries, matches.lost


def _distinct_ids(
    keys: Keys,
    hashes: npt.NDArray[np.uint64],
    first: I64,
    times_ms: I64,
    own_ms: I64,
    own_last_ms: I64,
) -> DistinctIds:
    own = first == np.arange(len(first))
    if own.all():
        return DistinctIds(keys, hashes, times_ms, times_ms, own_ms, own_last_ms)
    distinct, repeats = np.flatnonzero(own), np.flatnonzero(~own)
    repeated = np.searchsorted(distinct, first[repeats])

    def least(values: I64) -> I64:
        result = values[distinct]
        np.minimum.at(result, repeated, values[repeats])
        return result

    def most(values: I64) -> I64:
        result = values[distinct]
        np.maximum.at(result, repeated, values[repeats])
        return result

    return DistinctIds(
        keys.take(distinct),
        hashes[distinct],
        least(times_ms),
        most(times_ms),
        least(own_ms),
        most(own_last_ms),
    )


def _count_records(
    counts: defaultdict[str, int],
    records: Records,
    verdicts: npt.NDArray[np.uint8],
    late: npt.NDArray[np.bool_],
    base: Clocks,
    policy: Policy,
) -> None:
    per_verdict = np.bincount(verdicts, minlength=len(Verdict))
    counts["records_in"] = len(verdicts)
    for verdict in Verdict:
        counts[verdict.name.lower()] = int(per_verdict[verdict])
    counts["future"] = int(np.count_nonzero(records.flags & FLAG_FUTURE))
    counts["null_timestamp"] = int(np.count_nonzero(records.flags & FLAG_NULL_TIME))
    counts["returned_from_idle"] = 0
    if records.sources is not None and records.source_hashes is not None:
        away = base.idle_sources(policy)
        if policy.idle_timeout_ms is not None:
            # Idle ones are forgotten once the GC watermark has passed them.
            away |= records.source_hashes.keys() - base.sources.keys()
        returned = [number for name, number in records.source_hashes.items() if name in away]
        if returned:
            from_idle = np.isin(records.sources, np.array(returned, np.uint64))
            counts["returned_from_idle"] = int(np.count_nonzero(from_idle & late))
