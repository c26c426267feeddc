"""Upkeep of a shard at the end of a micro-batch: expire buckets, seal the tail, merge, delete.

Upkeep writes new objects under new names, and returns a new state. It deletes an object only when
no state that Spark could roll back to names the object (invariants 2 and 4). What *ended*, *closed*
and *depth* of a bucket mean is in `dedup.core.merge_choice`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dedup.core.bucket import Bucket, Merge, SortedRun, ids_in
from dedup.core.clocks import NEVER_MS
from dedup.core.entries import Entries
from dedup.core.filter_choice import filters_for_row, room_bytes
from dedup.core.lookup import read_unless_lost
from dedup.core.merge_choice import (
    DEEP,
    HURRIED_ROOM,
    ended_choice,
    growing_choice,
    is_done_in_time,
    ranges_of,
    step_cost,
)
from dedup.core.policy import GROWTH, Policy
from dedup.core.ports import SegmentStore
from dedup.core.records import Epoch
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.core.state import ShardState

#: A shard that seals little merges only once in this many micro-batches. Shards take turns.
MERGE_STRIDE = 4
#: In a micro-batch every merge writes this many times as much as the micro-batch sealed.
MERGE_RATE = 2
#: A merge writes segments of at most about this many bytes.
SEGMENT_BYTES = 32 << 20
#: Largest number of expired segments that a shard deletes in a micro-batch, and that a pending list
#: names.
MAX_DELETES = 64
#: Largest number of expired segments whose names the state row holds itself.
MAX_EXPIRED_NAMES = 256


@dataclass(slots=True)
class Upkeep:
    """The upkeep of one shard in one micro-batch. `state` is the next state so far."""

    state: ShardState
    policy: Policy
    store: SegmentStore
    epoch: Epoch
    #: Number of records of the micro-batch.
    records: int
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    sealed: float = field(default=0.0, init=False)

    def run(self) -> ShardState:
        """Expire, seal, merge and delete, and return the next state, which fits its budget."""
        held_bytes = sum(held.nbytes for held in self.state.filters.values())
        self._expire()
        self._shorten()
        self._seal()
        self._merge()
        self._delete()
        self._spill_pending()
        self._choose_filters(held_bytes)
        return self.state

    def seal_all(self) -> ShardState:
        """Seal the whole tail, and return the next state.

        A change of the length of buckets needs this, because a tail has buckets of one length.
        """
        for start_ms in np.unique(self.state.tail.bucket_starts(self.state.bucket_ms)):
            self._seal_bucket(int(start_ms))
        return self.state

    def _expire(self) -> None:
        clocks = self.state.clocks
        gc_ms = clocks.gc_watermark_ms
        unclamped_ms = clocks.late_watermark_ms if self.policy.forgets_at_late else gc_ms
        self._forget(gc_ms, unclamped_ms)
        self._update(
            forgotten_before_ms=max(
                self.state.forgotten_before_ms, NEVER_MS if unclamped_ms == gc_ms else unclamped_ms
            )
        )

    def _forget(self, clamped_ms: int, unclamped_ms: int) -> None:
        """Forget the buckets that end at or before a time, which may differ for clamped IDs."""
        before, tail = len(self.state.manifest.expired), self.state.tail
        manifest = self.state.manifest.expire(
            gc_watermark_ms=clamped_ms,
            unclamped_ms=unclamped_ms,
            epoch=self.epoch.number,
            now_ms=self.epoch.now_ms,
        )
        self.counts["segments_expired"] += len(manifest.expired) - before
        if len(tail):
            ends_ms = tail.bucket_starts(self.state.bucket_ms) + self.state.bucket_ms
            tail = tail.where(ends_ms > np.where(tail.clamped, clamped_ms, unclamped_ms))
        self._update(manifest=manifest, tail=tail)

    def _shorten(self) -> None:
        """If there are too many IDs, forget the oldest buckets that no record can enter."""
        state, most = self.state, self.policy.max_live_ids
        excess = 0 if most is None else state.manifest.ids + len(state.tail) - most
        if excess <= 0:
            return
        before_ms, late_ms = NEVER_MS, state.clocks.late_watermark_ms
        ends_ms = state.tail.bucket_starts(state.bucket_ms) + state.bucket_ms
        held = Counter(ends_ms[ends_ms <= late_ms].tolist())
        for bucket in state.manifest.buckets:
            held[bucket.end_ms] += bucket.ids
        for end_ms in sorted(held):
            if excess <= 0 or end_ms > late_ms:
                break
            excess -= held[end_ms]
            self.counts["ids_forgotten_early"] += held[end_ms]
            before_ms = end_ms
        self._forget(before_ms, before_ms)
        self._update(capped_before_ms=max(state.capped_before_ms, before_ms))

    def _seal(self) -> None:
        """If the tail is full, write its fullest buckets as segments until it is half empty.

        Buckets with few IDs stay in the tail, so that no segment is written for a few IDs.
        """
        limit_bytes = self.policy.state_budget_bytes // 2
        if self.state.tail.nbytes <= limit_bytes:
            return
        starts, counts = np.unique(
            self.state.tail.bucket_starts(self.state.bucket_ms), return_counts=True
        )
        for start_ms in starts[np.argsort(-counts, kind="stable")]:
            self._seal_bucket(int(start_ms))
            if self.state.tail.nbytes <= limit_bytes // 2:
                return

    def _seal_bucket(self, start_ms: int) -> None:
        inside = self.state.tail.bucket_starts(self.state.bucket_ms) == start_ms
        tail, rest = self.state.tail.where(inside), self.state.tail.where(~inside)
        if not len(tail):
            return
        end_ms = start_ms + self.state.bucket_ms
        digests = tail.digests
        if digests is not None and not digests.any():
            digests = None
        hashes = tail.hashes(self.epoch.hash_key)
        entries = Entries.in_order(tail.keys, hashes, tail.times_ms, digests)
        bucket = self.state.manifest.bucket(start_ms, end_ms)
        fpr = self._filter_fpr(bucket, len(entries), new=len(entries))
        segment = self._write(SegmentPlan(start_ms, end_ms, fpr), [entries])
        clamped = bool(tail.clamped.any())
        self.sealed += self._share(segment.count, segment.sst_bytes)
        self._update(tail=rest)
        self._put(bucket.adding((segment,), clamped=clamped))

    def _merge(self) -> None:
        """Begin the merges that are due, and advance every unfinished merge.

        Each step writes one segment of bounded size, and the number of steps keeps up with sealing.
        All merges advance, because no other merge can include the runs of a merge that waits. A
        shard that seals little takes turns with the other shards, unless a bucket is deep.
        """
        its_turn = self.epoch.number % MERGE_STRIDE == self.epoch.shard % MERGE_STRIDE
        deep = any(map(self._deep, self.state.manifest.buckets))
        if self.sealed < 1 / MERGE_STRIDE and not its_turn and not deep:
            return
        self._begin_merges()
        for bucket in self.state.manifest.buckets:
            for merge in bucket.merges:
                deep = self._deep(self.state.manifest.bucket(*bucket.range))
                room = max(HURRIED_ROOM if deep else 1, MERGE_RATE * self.sealed)
                rest: Merge | None = merge
                while rest is not None and room > 0:
                    rest, share = self._step(self.state.manifest.bucket(*bucket.range), rest)
                    room -= step_cost(share)

    def _deep(self, bucket: Bucket) -> bool:
        return bucket.depth >= DEEP and not self._closed(bucket)

    def _begin_merges(self) -> None:
        """Begin the due merges: at most one per growing bucket, and one in all ended buckets."""
        self._begin_ended()
        for bucket in self.state.manifest.buckets:
            if self._closed(bucket):
                continue
            grown = (self.state.clocks.low_watermark_ms - bucket.start_ms) / self.state.bucket_ms
            if runs := self._growing_choice(bucket, grown):
                self._begin(bucket, runs)

    def _growing_choice(self, bucket: Bucket, grown: float) -> tuple[SortedRun, ...] | None:
        runs = growing_choice(bucket.runs, bucket.depth, grown, self._share_of(bucket.runs))
        # True if the bucket will probably receive less than half a segment before it ends.
        is_over = (1 - grown) * bucket.depth < 1 / 2
        return runs and ((self._whole(bucket) if is_over else None) or runs)

    def _begin_ended(self) -> None:
        """Begin a merge in one ended bucket, unless an ended bucket is being merged.

        Closed buckets come first, and then the bucket with the most runs to merge. So a bucket fed
        by stragglers does not delay all others.
        """
        ended = [bucket for bucket in self.state.manifest.buckets if self._ended(bucket)]
        if any(bucket.merges for bucket in ended):
            return
        worth_while = [bucket for bucket in ended if self._ended_choice(bucket)]
        if not worth_while:
            return
        bucket = max(worth_while, key=lambda b: (self._closed(b), len(self._ended_choice(b) or ())))
        if bucket.end_ms - bucket.start_ms == self.state.bucket_ms:
            self._seal_bucket(bucket.start_ms)  # its stragglers so far
            bucket = self.state.manifest.bucket(*bucket.range)
        self._begin(bucket, self._ended_choice(bucket) or bucket.runs)

    def _ended_choice(self, bucket: Bucket) -> tuple[SortedRun, ...] | None:
        if self._closed(bucket):
            return ended_choice(bucket.runs, closed=True)
        # If an ended bucket closes within one bucket length, its merge waits until then, and so
        # includes the stragglers.
        return self._whole(bucket) if self.policy.lateness_ms > self.state.bucket_ms else None

    def _whole(self, bucket: Bucket) -> tuple[SortedRun, ...] | None:
        """Return the runs to merge in an ended bucket, or None if no merge is worth it or fits."""
        runs = ended_choice(bucket.runs, closed=False)
        fits = runs is not None and is_done_in_time(bucket.depth, self._share_of(runs))
        return runs if fits else None

    def _share(self, ids: int, sst_bytes: int) -> float:
        """Convert an amount of IDs and bytes to full segments, the unit that paces merging."""
        return max(ids / self.policy.segment_ids, sst_bytes / SEGMENT_BYTES)

    def _share_of(self, runs: tuple[SortedRun, ...]) -> float:
        ids = sum(ids_in(run) for run in runs)
        return self._share(ids, sum(segment.sst_bytes for run in runs for segment in run))

    def _begin(self, bucket: Bucket, runs: tuple[SortedRun, ...]) -> None:
        self._put(bucket.beginning(runs, ranges_of(self._share_of(runs))))

    def _closed(self, bucket: Bucket) -> bool:
        """Return whether no record can enter the bucket.

        Either the late watermark has passed the bucket, or the length of buckets has changed.
        """
        length_ms = bucket.end_ms - bucket.start_ms
        on_grid = length_ms == self.state.bucket_ms and bucket.start_ms % length_ms == 0
        return bucket.end_ms <= self.state.clocks.late_watermark_ms or not on_grid

    def _ended(self, bucket: Bucket) -> bool:
        """Return whether only late records can enter the bucket."""
        return self._closed(bucket) or bucket.end_ms <= self.state.clocks.low_watermark_ms

    def _step(self, bucket: Bucket, merge: Merge) -> tuple[Merge | None, float]:
        """Merge one more range of hashes.

        Returns the merge and the amount written, in full segments. If the merge has ended, returns
        None in its place.
        """
        pieces: list[Entries] = []
        lost: list[SegmentRef] = []
        for segment in merge.inputs:
            if not segment.overlaps(merge.hash_ranges, merge.ranges_done):
                continue
            read = partial(self.store.read_segment, segment, merge.hash_ranges, merge.ranges_done)
            content = read_unless_lost(self.store, segment, read, lost)
            if content is not None:
                pieces.append(content)
        for segment in lost:
            self.drop_lost(segment)
        if lost:
            return None, 0.0  # the next step merges the range without the lost segments
        new = None
        if pieces:
            fpr = self._filter_fpr(bucket, merge.ids)
            plan = SegmentPlan(*bucket.range, fpr, merge.hash_ranges, merge.ranges_done)
            new = self._write(plan, pieces)
        bucket, rest, merged = bucket.advancing(merge, new)
        if merged:
            merge.check_complete(new)
        self._put(bucket)
        self._update(
            manifest=self.state.manifest.expiring(
                merged, epoch=self.epoch.number, now_ms=self.epoch.now_ms
            )
        )
        self.counts["segments_merged"] += len(merged)
        return rest, self._share(new.count, new.sst_bytes) if new is not None else 0.0

    def _filter_fpr(self, bucket: Bucket, ids: int, *, new: int = 0) -> float:
        """Return the target rate of the filter of a run of ``ids`` IDs in a bucket.

        ``new`` of them are not in the manifest yet.
        """
        manifest, own = self.state.manifest, bucket.ids + new
        if self.policy.stable_timestamps:
            largest = max((b.ids for b in manifest.buckets), default=0)
            times = 1
        else:
            largest = manifest.ids + new
            # While the first horizon fills, every bucket counts as large as this one.
            times = self.policy.buckets_probed
        if not self._closed(bucket):
            times = max(times, GROWTH)
        probed = max(largest, times * own)
        return self.policy.filter_fpr(ids / probed)

    def drop_lost(self, segment: SegmentRef) -> None:
        """Remove a damaged segment from the manifest. The user has accepted its loss."""
        self._update(
            manifest=self.state.manifest.without(segment),
            segments_lost=self.state.segments_lost + 1,
        )

    def _write(self, plan: SegmentPlan, pieces: Sequence[Entries]) -> SegmentRef:
        segment, built = self.store.write_segment(plan, pieces)
        self.counts["segments_written"] += 1
        self.counts["ids_written"] += segment.count
        self._update(filters={**self.state.filters, segment.name: built})
        return segment

    def _choose_filters(self, held_bytes: int) -> None:
        """Keep as many filters in the state row as may be there, the newest ones first.

        ``held_bytes`` of filters were in the row before the micro-batch.
        """
        by_load = self.policy.filters_by_load
        most_bytes = self.policy.max_filter_state_bytes
        room = room_bytes(self.records, held_bytes, most_bytes, by_load=by_load)
        if self.policy.guarantee == "at-least-once":
            room = 0  # no lookup probes filters
        state = self.state
        # A batch DataFrame has no segments, and no store.
        filters = filters_for_row(
            state.manifest,
            state.filters,
            room,
            lambda segment: self.store.read_filter(segment),
            by_load=by_load,
        )
        self._update(filters=filters)

    def _delete(self) -> None:
        if self.state.branches:
            return  # another run may still need the segments that expired here
        names, pending_lists = self.state.manifest.deletable(
            epoch=self.epoch.number,
            now_ms=self.epoch.now_ms,
            retain_epochs=self.policy.retain_epochs,
            keep_ms=self.policy.keep_expired_ms,
        )
        names = names[:MAX_DELETES]
        if names:
            self.store.delete(names)
        emptied = pending_lists[:1]
        for pending_list in emptied:
            self.store.delete_pending(pending_list.name)
        deleted = len(names) + sum(pending_list.count for pending_list in emptied)
        if deleted:
            self.counts["segments_deleted"] = deleted
            names += [pending_list.name for pending_list in emptied]
            self._update(manifest=self.state.manifest.without_pending(names))

    def _spill_pending(self) -> None:
        """Move names of expired segments to pending lists if the state row has too many."""
        while len(self.state.manifest.expired) > MAX_EXPIRED_NAMES:
            oldest = self.state.manifest.expired[:MAX_DELETES]
            pending_list = self.store.spill_pending([entry.name for entry in oldest])
            self._update(manifest=self.state.manifest.spilling(pending_list, len(oldest)))

    def _put(self, bucket: Bucket) -> None:
        self._update(manifest=self.state.manifest.with_bucket(bucket))

    def _update(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
