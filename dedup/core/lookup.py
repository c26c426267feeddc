"""What a shard remembers of a micro-batch's IDs: tail, then filters, then the exact catalog.

The tail is exact and in memory. An ID that it does not settle is probed in the filters of all
segments that could hold it; only where a filter says "maybe" is the RocksDB catalog read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dedup import kernel
from dedup.core.arrays import I64
from dedup.core.bucket import Bucket, Coverage
from dedup.core.hash_ranges import hash_range
from dedup.core.horizon import within_horizon
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.ports import ABSENT_MS, SegmentStore
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.errors import SegmentDamaged

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class DistinctIds:
    """The distinct IDs of a micro-batch, and the times at which they occur.

    Parameters
    ----------
    keys : Keys, length u
    hashes : uint64 array, shape (u,)
    first_ms, last_ms : int64 array, shape (u,)
        Range of the effective timestamps of the ID's records.
    own_first_ms, own_last_ms : int64 array, shape (u,)
        Range of the timestamps that the records carried themselves, as far as it is known.
    """

    keys: Keys
    hashes: npt.NDArray[np.uint64]
    first_ms: I64
    last_ms: I64
    own_first_ms: I64
    own_last_ms: I64

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(slots=True, eq=False)
class Matches:
    """The answer: every remembered entry that matters, as (ID, emitted timestamp) pairs.

    Parameters
    ----------
    index : int64 array, shape (m,)
        Positions among the distinct IDs.
    times_ms : int64 array, shape (m,)
        Emitted timestamps.
    negative, true_positive, false_positive : int
        IDs that no filter knew / that a filter knew and the catalog confirmed / refuted.
    lost : list of SegmentRef
        Segments found damaged whose loss the user had accepted.
    """

    index: I64
    times_ms: I64
    negative: int = 0
    true_positive: int = 0
    false_positive: int = 0
    lost: list[SegmentRef] = field(default_factory=list)


def lookup(
    state: ShardState,
    distinct: DistinctIds,
    policy: Policy,
    store: SegmentStore,
    *,
    hash_key: bytes,
    on_stage_end: Callable[[str], None],
) -> Matches:
    """All remembered entries that can settle whether the IDs are duplicates.

    Entries found cover at least: for every ID, one entry within the horizon of all of its
    records, or else every entry in every bucket that overlaps the horizon round them (with
    stable timestamps: in the buckets of their own and effective times, and in clamped ones).
    """
    u = len(distinct)
    settled = np.zeros(u, np.bool_)

    def mark_settled(index: I64, times_ms: I64) -> None:
        near = within_horizon(times_ms, distinct.first_ms[index], policy.horizon_ms)
        near &= within_horizon(times_ms, distinct.last_ms[index], policy.horizon_ms)
        settled[index[near]] = True

    tail = state.tail
    index, entry = kernel.match(
        tail.keys.data,
        tail.keys.offsets,
        tail.hashes(hash_key),
        distinct.keys.data,
        distinct.keys.offsets,
        distinct.hashes,
    )
    found_index, found_ms = [index], [tail.times_ms[entry]]
    mark_settled(index, tail.times_ms[entry])
    on_stage_end("tail")

    open_ids = np.flatnonzero(~settled)
    if state.manifest.buckets:
        # In hash order every filter and segment is read from its start to its end.
        in_order = kernel.sort_keys(distinct.keys.data, distinct.keys.offsets, distinct.hashes)
        open_ids = in_order[~settled[in_order]]
    lost: list[SegmentRef] = []
    hits: list[tuple[SegmentRef, I64]] = []
    open_hashes = distinct.hashes[open_ids]
    for bucket in reversed(state.manifest.buckets):
        near = _near(bucket, distinct, open_ids, policy)
        ids, hashes = (
            (open_ids, open_hashes) if near is None else (open_ids[near], open_hashes[near])
        )
        for coverage in bucket.coverages():
            some = _answered(coverage, hashes)
            if some.start == some.stop:
                continue
            mask, gone = _may_hold(state, coverage.segment, hashes[some], store)
            lost += gone
            if mask is not None and mask.any():
                hits.append((coverage.segment, ids[some][mask]))
    on_stage_end("probe")

    maybe = np.zeros(u, np.bool_)
    confirmed = np.zeros(u, np.bool_)
    # All at once: a gather checks the whole column.
    wanted = [ids for _, ids in hits]
    keys = distinct.keys.take(np.concatenate(wanted)) if wanted else Keys.empty()
    end = 0
    for segment, ids in hits:
        start, end = end, end + len(ids)
        maybe[ids] = True
        still_open = np.flatnonzero(~settled[ids])
        if not len(still_open):
            continue
        asked_keys = Keys(keys.data, keys.offsets[start : end + 1])
        if len(still_open) < len(ids):
            ids, asked_keys = ids[still_open], asked_keys.take(still_open)
        read = partial(store.lookup, segment, asked_keys, distinct.hashes[ids])
        times_ms, gone = read_unless_lost(store, segment, read)
        if times_ms is None:
            lost += gone
            continue
        present = times_ms != ABSENT_MS
        ids, times_ms = ids[present], times_ms[present]
        confirmed[ids] = True
        found_index.append(ids)
        found_ms.append(times_ms)
        mark_settled(ids, times_ms)
    on_stage_end("lookup")
    return Matches(
        np.concatenate(found_index),
        np.concatenate(found_ms),
        negative=len(open_ids) - int(maybe.sum()),
        true_positive=int((maybe & confirmed).sum()),
        false_positive=int((maybe & ~confirmed).sum()),
        lost=lost,
    )


def _near(
    bucket: Bucket, distinct: DistinctIds, ids: I64, policy: Policy
) -> npt.NDArray[np.bool_] | None:
    """Which of the IDs' duplicates the bucket could hold; None for all of them."""
    last_ms = bucket.end_ms - 1
    if policy.stable_timestamps and not bucket.clamped:
        own = distinct.own_last_ms[ids] >= bucket.start_ms
        own &= distinct.own_first_ms[ids] <= last_ms
        effective = distinct.last_ms[ids] >= bucket.start_ms
        return own | (effective & (distinct.first_ms[ids] <= last_ms))
    from_ms, to_ms = bucket.start_ms - policy.horizon_ms, last_ms + policy.horizon_ms
    early = len(distinct) > 0 and int(distinct.last_ms.min()) < from_ms
    if not early and (not len(distinct) or int(distinct.first_ms.max()) <= to_ms):
        return None
    near: npt.NDArray[np.bool_] = distinct.last_ms[ids] >= from_ms
    return near & (distinct.first_ms[ids] <= to_ms)


def _answered(coverage: Coverage, hashes: npt.NDArray[np.uint64]) -> slice:
    """Which of the hashes, which never fall, the segment answers for."""
    within = coverage.segment.within(hashes)
    if not coverage.ranges_done:
        return within
    start = hash_range(hashes, coverage.hash_ranges, coverage.ranges_done).start
    return slice(max(within.start, start), max(within.stop, start))


def _may_hold(
    state: ShardState, segment: SegmentRef, hashes: npt.NDArray[np.uint64], store: SegmentStore
) -> tuple[npt.NDArray[np.bool_] | None, list[SegmentRef]]:
    """Which hashes the segment's filter may hold; None where the segment is lost."""
    piece = state.filters.get(segment.name)
    if piece is not None:
        return piece.may_contain(segment.spread(hashes)), []
    return read_unless_lost(store, segment, partial(store.may_hold, segment, hashes))


def read_unless_lost(
    store: SegmentStore, segment: SegmentRef, read: Callable[[], _T]
) -> tuple[_T | None, list[SegmentRef]]:
    """The result, or the segment as lost where it is damaged and the user accepted its loss."""
    try:
        return read(), []
    except SegmentDamaged:
        if store.loss_accepted(segment):
            return None, [segment]
        raise
