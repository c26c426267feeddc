"""Look up a micro-batch's IDs in a shard: in the tail, then filters, then the exact catalog.

A remembered ID with its time is an *entry*. Entries that make all of an ID's records duplicates
*settle* the ID. The tail is exact and in memory. If the tail does not settle an ID, the lookup
probes the filters of all segments that could hold the ID. Only if a filter answers "maybe", the
lookup reads that segment from the RocksDB catalog.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np

from dedup import kernel
from dedup.core.bucket import Bucket, Coverage
from dedup.core.filter import blocks_in
from dedup.core.hash_ranges import hash_range
from dedup.core.horizon import within_horizon
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.ports import ABSENT_MS, SegmentStore
from dedup.core.segment import SegmentRef
from dedup.core.sizing import Floats, predicted_fpr
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.errors import SegmentDamaged
from dedup.kernel.arrays import BOOL, I64, U64

_T = TypeVar("_T")
#: Bound of a filter's false-positive rate. At a rate of 1 the estimate of lost IDs is infinite.
_MAX_FALSE_RATE = 0.999999


@dataclass(frozen=True, slots=True, eq=False)
class DistinctIds:
    """The distinct IDs of a micro-batch, and the times at which they occur."""

    keys: Keys
    hashes: U64
    #: Earliest and latest effective timestamp of each ID's records.
    first_ms: I64
    last_ms: I64
    #: Earliest and latest timestamp that each ID's records may have carried themselves.
    own_first_ms: I64
    own_last_ms: I64

    def __len__(self) -> int:
        return len(self.keys)


def distinct_ids(
    keys: Keys, times_ms: I64, own_first_ms: I64, own_last_ms: I64, *, hash_key: bytes
) -> tuple[DistinctIds, I64]:
    """Return the distinct IDs of records, and each record's index of the first record with its ID.

    ``times_ms`` are effective timestamps. ``own_first_ms`` and ``own_last_ms`` are the earliest and
    the latest timestamp that each record may have carried itself.
    """
    hashes = kernel.hash64(keys.data, keys.offsets, hash_key)
    first = kernel.first_occurrence(keys.data, keys.offsets, hashes)
    is_first = first == np.arange(len(first))
    if is_first.all():
        return DistinctIds(keys, hashes, times_ms, times_ms, own_first_ms, own_last_ms), first
    distinct, repeats = np.flatnonzero(is_first), np.flatnonzero(~is_first)
    repeated = (np.cumsum(is_first) - 1)[first[repeats]]

    def over_copies(choose: np.ufunc, values: I64) -> I64:
        chosen = values[distinct]
        choose.at(chosen, repeated, values[repeats])
        return chosen

    ids = DistinctIds(
        keys.take(distinct),
        hashes[distinct],
        over_copies(np.minimum, times_ms),
        over_copies(np.maximum, times_ms),
        over_copies(np.minimum, own_first_ms),
        over_copies(np.maximum, own_last_ms),
    )
    return ids, first


@dataclass(slots=True, eq=False)
class Matches:
    """The m entries that a lookup of u distinct IDs found, as (ID, first time, last time).

    An entry from the tail or the catalog has one timestamp, so both times are equal. If only a
    filter reports an entry, its times are the range of the segment's bucket.
    """

    #: Position of each entry's ID among the distinct IDs, shape (m,).
    index: I64
    #: Earliest and latest timestamp that the entry may have been emitted with, shape (m,).
    first_ms: I64
    last_ms: I64
    #: Mask of the IDs that have an entry within the horizon of all of their records, shape (u,).
    settled: BOOL
    #: Digests of the entries' payloads, shape (m,). The digest of an entry without a payload is 0.
    #: None unless the policy compares payloads.
    digests: U64 | None = None
    #: Numbers of IDs by the answers of filters and catalog, under the names of fields of
    #: `BatchMetrics`.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: Damaged segments that the lookup skipped because the user accepted their loss.
    lost: list[SegmentRef] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """An unfinished lookup, and the entries that it has found so far."""

    distinct: DistinctIds
    policy: Policy
    store: SegmentStore
    #: As in `Matches`.
    settled: BOOL
    #: For each ID the logarithm of the chance that no filter probed so far gives a false positive,
    #: shape (u,). None unless filter hits count as seen.
    log_right: Floats | None
    index: list[I64] = field(default_factory=list)
    first_ms: list[I64] = field(default_factory=list)
    last_ms: list[I64] = field(default_factory=list)
    digests: list[U64] = field(default_factory=list)
    lost: list[SegmentRef] = field(default_factory=list)

    @property
    def wants_digests(self) -> bool:
        """Whether the policy compares payloads, which needs the digests of entries."""
        return self.policy.payload is not None

    def add(
        self, ids: I64, first_ms: I64, last_ms: I64 | None = None, digests: U64 | None = None
    ) -> None:
        """Add an entry for each of ``ids``, with its time or the range that holds its time."""
        last_ms = first_ms if last_ms is None else last_ms
        self.index.append(ids)
        self.first_ms.append(first_ms)
        self.last_ms.append(last_ms)
        if self.wants_digests:
            self.digests.append(np.zeros(len(ids), np.uint64) if digests is None else digests)
        horizon_ms = self.policy.horizon_ms
        near = within_horizon(self.distinct.first_ms[ids], first_ms, last_ms, horizon_ms)
        near &= within_horizon(self.distinct.last_ms[ids], first_ms, last_ms, horizon_ms)
        self.settled[ids[near]] = True

    def search_tail(self, tail: Tail, hash_key: bytes) -> None:
        ids, entries = kernel.match(
            tail.keys.data,
            tail.keys.offsets,
            tail.hashes(hash_key),
            self.distinct.keys.data,
            self.distinct.keys.offsets,
            self.distinct.hashes,
        )
        digests = None if tail.digests is None else tail.digests[entries]
        self.add(ids, tail.times_ms[entries], digests=digests)

    def probe_filters(
        self, state: ShardState, unsettled: I64
    ) -> tuple[list[tuple[SegmentRef, I64]], BOOL]:
        """Return the segments whose filters answer "maybe", each with the IDs in question.

        ``unsettled`` are the IDs to look up, in the order of their hashes. The second value marks
        those of them about which a filter outside Spark state was asked.
        """
        hits: list[tuple[SegmentRef, I64]] = []
        outside = np.zeros(len(unsettled), np.bool_)
        all_hashes = self.distinct.hashes[unsettled]
        for bucket in reversed(state.manifest.buckets):
            near = _near(bucket, self.distinct, unsettled, self.policy)
            where = None if near is None else np.flatnonzero(near)
            ids, hashes = (
                (unsettled, all_hashes) if where is None else (unsettled[where], all_hashes[where])
            )
            for coverage in bucket.coverages():
                answered = _answered(coverage, hashes)
                if answered.start == answered.stop:
                    continue
                if self.log_right is not None:
                    self.log_right[ids[answered]] += math.log1p(-_false_rate(coverage.segment))
                if coverage.segment.name not in state.filters:
                    outside[answered if where is None else where[answered]] = True
                mask = self._may_hold(state, coverage.segment, hashes[answered])
                if mask is not None and mask.any():
                    hits.append((coverage.segment, ids[answered][mask]))
        return hits, outside

    def _may_hold(self, state: ShardState, segment: SegmentRef, hashes: U64) -> BOOL | None:
        """Return the filter's answer for each hash, or None if the segment is lost."""
        in_state = state.filters.get(segment.name)
        if in_state is not None:
            return in_state.may_contain(segment.spread(hashes))
        read = partial(self.store.may_hold, segment, hashes)
        return read_unless_lost(self.store, segment, read, self.lost)

    def read_segments(self, hits: list[tuple[SegmentRef, I64]]) -> BOOL:
        """Read segments, add the entries found, and return a mask of their IDs, shape (u,).

        ``hits`` are the segments to read, each with the IDs to look up in it.
        """
        confirmed = np.zeros(len(self.distinct), np.bool_)
        if not hits:
            return confirmed
        # Copy the keys of all segments at once, because every copy checks the whole column.
        keys = self.distinct.keys.take(np.concatenate([ids for _, ids in hits]))
        end = 0
        for segment, ids in hits:
            start, end = end, end + len(ids)
            unsettled = np.flatnonzero(~self.settled[ids])
            if not len(unsettled):
                continue
            segment_keys = Keys(keys.data, keys.offsets[start : end + 1])
            if len(unsettled) < len(ids):
                ids, segment_keys = ids[unsettled], segment_keys.take(unsettled)
            digests = np.zeros(len(ids), np.uint64) if self.wants_digests else None
            read = partial(self.store.lookup, segment, segment_keys, self.distinct.hashes[ids])
            if digests is not None:
                read = partial(read, digests)
            times_ms = read_unless_lost(self.store, segment, read, self.lost)
            if times_ms is not None:
                present = times_ms != ABSENT_MS
                confirmed[ids[present]] = True
                entry_digests = None if digests is None else digests[present]
                self.add(ids[present], times_ms[present], digests=entry_digests)
        return confirmed

    def believe_filters(self, hits: list[tuple[SegmentRef, I64]]) -> None:
        """Treat every filter hit as an entry, without reading the segment.

        The time of such an entry may be any time of the segment's bucket. The bucket may be longer
        than the horizon, because the user may have shortened the horizon since.
        """
        for segment, ids in hits:
            ids = ids[~self.settled[ids]]
            first_ms = np.full(len(ids), segment.start_ms, np.int64)
            self.add(ids, first_ms, np.full(len(ids), segment.end_ms - 1, np.int64))

    def expected_lost(self, clear: I64) -> float:
        """Estimate how many new IDs filters wrongly reported, given those that none reported."""
        if self.log_right is None:
            return 0.0
        # If n new IDs are probed with a chance p of a wrong answer, n (1 - p) come out clear.
        return float(np.expm1(-self.log_right[clear]).sum())


def lookup(
    state: ShardState,
    distinct: DistinctIds,
    policy: Policy,
    store: SegmentStore,
    *,
    hash_key: bytes,
    on_stage_end: Callable[[str], None],
) -> Matches:
    """Return the entries that decide whether the records of a micro-batch are duplicates.

    An ID is settled by one entry within the horizon of all of its records. For every other ID the
    result has all entries in the buckets that overlap the horizon around its records. With stable
    timestamps only buckets with clamped IDs, and the buckets of the records' own and effective
    times, are searched.

    Raises SegmentDamaged if a segment that must be read is damaged or missing at the root.
    """
    believes = policy.guarantee == "at-most-once"
    log_right = np.zeros(len(distinct)) if believes else None
    settled = np.zeros(len(distinct), np.bool_)
    search = _Search(distinct, policy, store, settled, log_right)
    search.search_tail(state.tail, hash_key)
    on_stage_end("tail")
    unsettled = np.flatnonzero(~search.settled)
    if state.manifest.buckets:
        # Hash order reads every filter and segment sequentially.
        in_order = kernel.sort_keys(distinct.keys.data, distinct.keys.offsets, distinct.hashes)
        unsettled = in_order[~search.settled[in_order]]
    hits, outside = search.probe_filters(state, unsettled)
    on_stage_end("probe")
    maybe = np.zeros(len(distinct), np.bool_)
    for _, ids in hits:
        maybe[ids] = True
    confirmed = np.zeros(len(distinct), np.bool_)
    if believes:
        search.believe_filters(hits)
    else:
        confirmed = search.read_segments(hits)
    on_stage_end("lookup")
    is_clear = ~maybe[unsettled]
    clear = unsettled[is_clear]
    return Matches(
        np.concatenate(search.index),
        np.concatenate(search.first_ms),
        np.concatenate(search.last_ms),
        search.settled,
        np.concatenate(search.digests) if search.wants_digests else None,
        {
            "filter_negative": len(clear),
            "filter_sidecar": int(outside[is_clear].sum()),
            "filter_true_positive": int(confirmed.sum()),
            "filter_false_positive": 0 if believes else int((maybe & ~confirmed).sum()),
            "filter_unconfirmed": int(maybe.sum()) if believes else 0,
            "expected_lost_millionths": round(1e6 * search.expected_lost(clear)),
        },
        search.lost,
    )


def _near(bucket: Bucket, distinct: DistinctIds, ids: I64, policy: Policy) -> BOOL | None:
    """Return a mask of the IDs to look up in the bucket, or None to look up all."""
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
    near: BOOL = distinct.last_ms[ids] >= from_ms
    return near & (distinct.first_ms[ids] <= to_ms)


@lru_cache(maxsize=4096)
def _false_rate(segment: SegmentRef) -> float:
    return min(predicted_fpr(segment.count, blocks_in(segment.filter_bytes)), _MAX_FALSE_RATE)


def _answered(coverage: Coverage, hashes: U64) -> slice:
    """Return the slice of the sorted hashes to look up in the segment of ``coverage``."""
    within = coverage.segment.within(hashes)
    if not coverage.ranges_done:
        return within
    start = hash_range(hashes, coverage.hash_ranges, coverage.ranges_done).start
    return slice(max(within.start, start), max(within.stop, start))


def read_unless_lost(
    store: SegmentStore, segment: SegmentRef, read: Callable[[], _T], lost: list[SegmentRef]
) -> _T | None:
    """Return what ``read`` returns.

    If the segment is damaged and its loss accepted, adds it to ``lost`` and returns None.
    """
    try:
        return read()
    except SegmentDamaged:
        if not store.loss_accepted(segment):
            raise
    lost.append(segment)
    return None
