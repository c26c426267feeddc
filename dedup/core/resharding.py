"""Write the memory of a query for other shards, into other stores.

Each bucket becomes one sorted run of each new shard, split into segments of the usual size. The
newest IDs, which a state row holds itself, become segments as well. The work goes by bucket and by
a few new shards at a time, so it needs no more memory for more IDs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dedup import kernel
from dedup.core.bucket import Bucket, SortedRun, ids_in
from dedup.core.entries import Entries
from dedup.core.filter import blocks_in
from dedup.core.hash_ranges import hash_range
from dedup.core.keys import Keys
from dedup.core.lookup import read_unless_lost
from dedup.core.manifest import Manifest
from dedup.core.merge_choice import ranges_of
from dedup.core.payload import renumbered
from dedup.core.policy import MIN_FPR, SEGMENT_IDS
from dedup.core.ports import SegmentStore
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.core.sharding import shards_of
from dedup.core.sizing import predicted_fpr
from dedup.core.state import ShardState
from dedup.core.upkeep import SEGMENT_BYTES
from dedup.errors import CatalogError
from dedup.kernel.arrays import U64

#: Rate of a bucket's filters while no segment shows which rate the query uses.
_FIRST_FPR = 1e-3
#: How much is read and written at a time, in segments of the usual size.
_AT_ONCE = 1 / 4


@dataclass(slots=True, eq=False)
class Resharding:
    """What a query remembers, and the stores of the new shards.

    States and stores are in the order of shards. All states are of the same micro-batch.
    """

    states: Sequence[ShardState]
    stores: Sequence[SegmentStore]
    new_stores: Sequence[SegmentStore]
    #: The hash keys of `dedup.core.sharding.derive_keys`.
    shard_key: bytes
    filter_key: bytes
    #: Keys of the IDs to leave out.
    without: Collection[bytes] = frozenset()
    #: Largest number of IDs in a segment.
    segment_ids: int = SEGMENT_IDS
    #: Those keys to leave out that the query remembered.
    left_out: set[bytes] = field(default_factory=set, init=False)
    #: Segments that could not be read, and whose loss the user has accepted.
    lost: list[SegmentRef] = field(default_factory=list, init=False)
    _without_hashes: U64 = field(init=False)
    _payloads: tuple[str, ...] = field(init=False)
    _fpr: float = field(default=_FIRST_FPR, init=False)
    _entries_left_out: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        keys = Keys.from_list(list(self.without))
        self._without_hashes = kernel.hash64(keys.data, keys.offsets, self.filter_key)
        self._payloads = tuple(dict.fromkeys(one for s in self.states for one in s.payloads))

    def run(self) -> list[ShardState]:
        """Write all segments, and return the states before micro-batch 0 of a new checkpoint.

        Raises SegmentDamaged if a segment is missing or damaged and its loss is not accepted.
        """
        manifests = [Manifest() for _ in self.new_stores]
        spans = {bucket.range for state in self.states for bucket in state.manifest.buckets}
        for state in self.states:
            starts_ms = state.tail.bucket_starts(max(state.bucket_ms, 1)).tolist()
            spans |= {(start_ms, start_ms + state.bucket_ms) for start_ms in starts_ms}
        for span in sorted(spans):
            for shard, bucket in enumerate(self._buckets(*span)):
                if bucket.runs:
                    manifests[shard] = manifests[shard].with_bucket(bucket)
        whole = replace(
            max(self.states, key=lambda state: state.epoch),
            segments_lost=sum(state.segments_lost for state in self.states) + len(self.lost),
            forgotten_before_ms=max(state.forgotten_before_ms for state in self.states),
            capped_before_ms=max(state.capped_before_ms for state in self.states),
            payloads=self._payloads,
        )
        first, *others = (whole.restarted(whole, manifest) for manifest in manifests)
        # The sum over all shards is what users see.
        return [first, *(replace(state, segments_lost=0) for state in others)]

    def _buckets(self, start_ms: int, end_ms: int) -> Iterator[Bucket]:
        """Write what a bucket holds, and yield the bucket of each new shard."""
        parts = [self._part(state, start_ms, end_ms) for state in self.states]
        self._fpr = _fpr_of(parts) or self._fpr
        share, shards = sum(part.share for part in parts), len(self.new_stores)
        together = max(1, int(shards * _AT_ONCE / max(share, _AT_ONCE)))
        self._entries_left_out, written = 0, 0
        for first in range(0, shards, together):
            new = range(first, min(first + together, shards))
            # Shards are equal ranges of one hash, so each new one gets IDs from few others.
            old = range(new.start * len(parts) // shards, -(-new.stop * len(parts) // shards))
            clamped = any(parts[shard].clamped for shard in old)
            plan = SegmentPlan(start_ms, end_ms, self._fpr, ranges_of(share / shards))
            for run in self._runs(plan, parts, old, new):
                written += ids_in(run)
                yield Bucket(start_ms, end_ms, clamped, (run,) if run else ())
        least = sum(part.least_ids for part in parts) - self._entries_left_out
        if written < least and not self.lost:
            raise CatalogError(
                f"{written} IDs of a bucket were written, and it has {least}, though each segment "
                "was read without an error. Report this as a defect of dedup.",
                remedy="incomplete-merge",
            )

    def _runs(
        self, plan: SegmentPlan, parts: Sequence[_Part], old: range, new: range
    ) -> list[SortedRun]:
        """Write what the shards ``old`` hold for the shards ``new``, and return the new runs."""
        runs: list[SortedRun] = [() for _ in new]
        share = sum(parts[shard].share for shard in old)
        ranges = max(plan.hash_ranges, ranges_of(share / _AT_ONCE))
        chunks = ranges // plan.hash_ranges
        for index in range(plan.hash_ranges):
            pieces: list[list[Entries]] = [[] for _ in new]
            for chunk in range(index * chunks, (index + 1) * chunks):
                for shard in old:
                    for entries in self._read(
                        shard, parts[shard], plan.hash_ranges * chunks, chunk
                    ):
                        self._divide(entries, new, pieces)
            for number, shard in enumerate(new):
                if pieces[number]:
                    own = replace(plan, range_index=index)
                    segment, _ = self.new_stores[shard].write_segment(own, pieces[number])
                    runs[number] = (*runs[number], segment)
        return runs

    def _part(self, state: ShardState, start_ms: int, end_ms: int) -> _Part:
        bucket, tail = state.manifest.bucket(start_ms, end_ms), state.tail
        inside = tail.bucket_starts(max(state.bucket_ms, 1)) == start_ms
        tail = tail.where(inside & (end_ms - start_ms == state.bucket_ms))
        entries = Entries.in_order(
            tail.keys, tail.hashes(self.filter_key), tail.times_ms, tail.digests
        )
        size_bytes = tail.nbytes + sum(c.segment.sst_bytes for c in bucket.coverages())
        ids = bucket.ids + len(tail)
        share = max(ids / self.segment_ids, size_bytes / SEGMENT_BYTES)
        return _Part(bucket, entries, bucket.clamped or bool(tail.clamped.any()), share)

    def _read(self, shard: int, part: _Part, hash_ranges: int, index: int) -> Iterator[Entries]:
        """Yield what a shard holds of a bucket in range ``index`` of ``hash_ranges`` ranges."""
        store, payloads = self.stores[shard], self.states[shard].payloads
        for coverage in part.bucket.coverages():
            segment = coverage.segment
            if segment in self.lost or not segment.overlaps(hash_ranges, index):
                continue
            read = partial(store.read_segment, segment, hash_ranges, index)
            entries = read_unless_lost(store, segment, read, self.lost)
            if entries is not None:
                done = hash_range(entries.hashes, coverage.hash_ranges, coverage.ranges_done).start
                yield self._kept(entries[done : len(entries)], payloads)
        yield self._kept(part.tail[hash_range(part.tail.hashes, hash_ranges, index)], payloads)

    def _kept(self, entries: Entries, payloads: tuple[str, ...]) -> Entries:
        """Return the entries without the IDs to leave out, with new numbers in their digests."""
        if entries.digests is not None and payloads != self._payloads:
            digests = renumbered(entries.digests, payloads, self._payloads)
            entries = replace(entries, digests=digests)
        suspects = np.flatnonzero(np.isin(entries.hashes, self._without_hashes)).tolist()
        found = {i: key for i in suspects if (key := entries.keys[i]) in self.without}
        if not found:
            return entries
        self.left_out.update(found.values())
        self._entries_left_out += len(found)
        return entries.take(np.delete(np.arange(len(entries)), list(found)))

    def _divide(self, entries: Entries, new: range, pieces: list[list[Entries]]) -> None:
        """Append the entries to the pieces of their new shards."""
        hashes = kernel.hash64(entries.keys.data, entries.keys.offsets, self.shard_key)
        shards = shards_of(hashes, len(self.new_stores))
        order = np.argsort(shards, kind="stable")
        ends = np.searchsorted(shards[order], np.arange(new.start, new.stop + 1))
        for number, piece in enumerate(pieces):
            if ends[number] < ends[number + 1]:
                piece.append(entries.take(order[ends[number] : ends[number + 1]]))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What an old shard holds of one bucket."""

    #: Its segments.
    bucket: Bucket
    #: Its newest IDs.
    tail: Entries
    clamped: bool
    #: Its size in segments of the usual size.
    share: float

    @property
    def runs(self) -> tuple[SortedRun, ...]:
        return (*self.bucket.runs, *(run for merge in self.bucket.merges for run in merge.runs))

    @property
    def least_ids(self) -> int:
        """Number of IDs, without the merges whose output may lack a segment that was lost."""
        merges = [m for m in self.bucket.merges if len(m.output) == m.ranges_done]
        return len(self.tail) + sum(map(ids_in, self.bucket.runs)) + sum(m.ids for m in merges)


def _fpr_of(parts: Sequence[_Part]) -> float | None:
    """Return the mean rate of the filters that a lookup probes in a bucket, or None."""
    rates = []
    for part in parts:
        if part.runs:
            probed = (
                sum(s.count * predicted_fpr(s.count, blocks_in(s.filter_bytes)) for s in run)
                / max(ids_in(run), 1)
                for run in part.runs
            )
            rates.append(sum(probed))
    return min(max(sum(rates) / len(rates), MIN_FPR), 1 / 2) if rates else None
