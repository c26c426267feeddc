"""Upkeep of a shard's memory at the end of a micro-batch: seal, merge, expire, delete.

Everything here works under new names and returns a new state; what it leaves behind is deleted
only when no state that Spark could roll back to names it (invariants 2 and 4).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dedup.core.bucket import Bucket, Merge, Run
from dedup.core.clocks import NEVER_MS
from dedup.core.filter import SplitBlockFilter
from dedup.core.keys import Keys
from dedup.core.manifest import Manifest
from dedup.core.policy import MAX_OPEN_SEGMENTS, Policy
from dedup.core.ports import I64, MAX_PARTS, U64, SegmentRef, SegmentStore
from dedup.core.recall import read_unless_lost
from dedup.core.state import ShardState
from dedup.errors import CatalogError

#: A shard that seals little merges in every fourth micro-batch, shards taking turns.
MERGE_STRIDE = 4
#: IDs merged per ID sealed, so that merging keeps up; more where a bucket that grows is deep.
MERGE_RATE = 2
#: Runs that are not being merged yet, at which a bucket that grows begins to merge some; less
#: what may be added before a shard that takes turns has its own.
MERGE_RUNS = 14
#: Expired segments deleted per shard and micro-batch, besides one grave.
MAX_DELETES = 64
#: Expired segments whose names the state row holds itself.
MAX_EXPIRED_NAMES = 256


@dataclass(slots=True)
class Upkeep:
    """One shard's upkeep in one micro-batch; `state` is the work in progress."""

    state: ShardState
    policy: Policy
    store: SegmentStore
    shard: int
    epoch: int
    now_ms: int
    hash_key: bytes
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def run(self) -> ShardState:
        """The state after expiry, sealing, merging, deletion, within its budget."""
        self._expire()
        self._seal()
        self._merge()
        self._delete()
        self._bury()
        self._evict_slices()
        return self.state

    def seal_all(self) -> ShardState:
        """The state with an empty tail: what a change of the bucket grid asks for."""
        for start_ms in np.unique(self.state.tail.bucket_starts(self.state.bucket_ms)):
            self._seal_bucket(int(start_ms))
        return self.state

    def _expire(self) -> None:
        clocks = self.state.clocks
        gc_ms = clocks.gc_watermark_ms
        unclamped_ms = clocks.late_watermark_ms if self.policy.forgets_at_late else gc_ms
        before = len(self.state.manifest.expired)
        manifest = self.state.manifest.expire(
            gc_watermark_ms=gc_ms, unclamped_ms=unclamped_ms, epoch=self.epoch, now_ms=self.now_ms
        )
        self.counts["segments_expired"] = len(manifest.expired) - before
        tail = self.state.tail
        if len(tail):
            ends_ms = tail.bucket_starts(self.state.bucket_ms) + self.state.bucket_ms
            tail = tail.where(ends_ms > np.where(tail.clamped, gc_ms, unclamped_ms))
        self._update(
            manifest=manifest,
            tail=tail,
            forgotten_before_ms=max(
                self.state.forgotten_before_ms, NEVER_MS if unclamped_ms == gc_ms else unclamped_ms
            ),
        )

    def _seal(self) -> None:
        """Write the fullest buckets of the tail until what is left is half of its share.

        Stragglers of old buckets stay in the tail, so that no segment is written for a handful.
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
        """Move a bucket's entries from the tail to a segment, if it has any."""
        inside = self.state.tail.bucket_starts(self.state.bucket_ms) == start_ms
        tail, rest = self.state.tail.where(inside), self.state.tail.where(~inside)
        if not len(tail):
            return
        end_ms = start_ms + self.state.bucket_ms
        segment = self._write(
            start_ms,
            end_ms,
            (tail.keys, tail.hashes(self.hash_key), tail.times_ms),
            self.policy.open_slice_fpr,
        )
        bucket = self.state.manifest.bucket(start_ms, end_ms)
        clamped = bool(tail.clamped.any())
        self.counts["ids_sealed"] += len(tail)
        self._update(tail=rest)
        self._put(bucket.adding((segment,), clamped=clamped))

    def _merge(self) -> None:
        """Size-tiered in buckets that grow; down to one run in those that are closed.

        Every step makes one segment of bounded size. Steps taken keep up with what is sealed; a
        shard that seals little takes turns with the others.
        """
        sealed_ids = self.counts["ids_sealed"]
        room_ids = 0
        if self._seals_much() or self.epoch % MERGE_STRIDE == self.shard % MERGE_STRIDE:
            growing = [b.depth for b in self.state.manifest.buckets if not self._closed(b)]
            rate = max([MERGE_RATE, *(depth - 10 for depth in growing)])
            room_ids = max(self.policy.segment_ids, rate * sealed_ids)
        while (job := self._next_merge(urgent=room_ids <= 0)) is not None:
            # A small step costs its files.
            room_ids -= max(self._step(*job), self.policy.segment_ids // 2)

    def _next_merge(self, *, urgent: bool) -> tuple[Bucket, Merge] | None:
        """The smallest merge there is to do; if ``urgent``, only in a bucket that is too deep."""
        jobs = []
        for bucket in self.state.manifest.buckets:
            if not urgent or bucket.depth >= MAX_OPEN_SEGMENTS:
                bucket = self._beginning(bucket)
                jobs += [(bucket, merge) for merge in bucket.merges]
        return min(jobs, key=lambda job: job[1].ids, default=None)

    def _beginning(self, bucket: Bucket) -> Bucket:
        """The bucket with one more merge under way, if it is time for one."""
        if self._closed(bucket):
            if bucket.merges or len(bucket.runs) < 2:
                return bucket
            if bucket.end_ms - bucket.start_ms == self.state.bucket_ms:
                self._seal_bucket(bucket.start_ms)  # the last stragglers
                bucket = self.state.manifest.bucket(*bucket.range)
            runs = bucket.runs
        else:
            many = MERGE_RUNS - (0 if self._seals_much() else MERGE_STRIDE - 1)
            deep = bucket.depth >= MAX_OPEN_SEGMENTS - 1 and len(bucket.runs) > 1
            if len(bucket.runs) < many and not deep:
                return bucket
            runs = cheapest(bucket.runs)
        ids = sum(ids_in(run) for run in runs)
        parts = 1 << max(0, math.ceil(math.log2(max(1, ids) / self.policy.segment_ids)))
        bucket = bucket.beginning(runs, min(parts, MAX_PARTS))
        self._put(bucket)
        return bucket

    def _seals_much(self) -> bool:
        """Whether the shard seals so much at a time that it must merge in every micro-batch."""
        return self.counts["ids_sealed"] >= self.policy.segment_ids // 4

    def _closed(self, bucket: Bucket) -> bool:
        """No record can enter the bucket any more: its time is over, or its grid is."""
        length_ms = bucket.end_ms - bucket.start_ms
        on_grid = length_ms == self.state.bucket_ms and bucket.start_ms % length_ms == 0
        return bucket.end_ms <= self.state.clocks.late_watermark_ms or not on_grid

    def _step(self, bucket: Bucket, merge: Merge) -> int:
        """Merge one more range of hashes; how many IDs it holds."""
        pieces, lost = [], []
        for segment in merge.inputs:
            if not _overlap(segment, merge.parts, merge.done):
                continue
            read = partial(self.store.read_segment, segment, merge.parts, merge.done)
            content, gone = read_unless_lost(self.store, segment, read)
            lost += gone
            if content is not None:
                pieces.append(content)
        if lost:
            # Begin the range again without them.
            for segment in lost:
                self.forget(segment)
            return 0
        new = None
        if pieces:
            keys, hashes, times_ms = zip(*pieces, strict=True)
            content = Keys.concat(keys), np.concatenate(hashes), np.concatenate(times_ms)
            fpr = self.policy.open_slice_fpr
            if self._closed(bucket):
                fpr = self.policy.closed_slice_fpr
            new = self._write(*bucket.range, content, fpr, merge.parts, merge.done)
        merged_ids = bucket.ids
        bucket, gone_segments = bucket.advancing(merge, new)
        if bucket.ids != merged_ids and not self.state.forgotten:
            raise CatalogError(
                f"merging {len(merge.inputs)} segments of bucket {bucket.range} made {bucket.ids} "
                f"record IDs of {merged_ids}. Nothing is lost: start the query again, and check "
                "the catalog with dedup catalog verify."
            )
        self._put(bucket)
        self._update(
            manifest=self.state.manifest.expiring(
                gone_segments, epoch=self.epoch, now_ms=self.now_ms
            )
        )
        self.counts["segments_merged"] += len(gone_segments)
        return new.count if new is not None else 0

    def forget(self, segment: SegmentRef) -> None:
        """Take a damaged segment whose loss the user accepted out of the manifest."""
        self._update(
            manifest=self.state.manifest.without(segment), forgotten=self.state.forgotten + 1
        )

    def _write(
        self,
        start_ms: int,
        end_ms: int,
        content: tuple[Keys, U64, I64],
        fpr: float,
        parts: int = 1,
        part: int = 0,
    ) -> SegmentRef:
        segment, piece = self.store.write_segment(start_ms, end_ms, *content, fpr, parts, part)
        self.counts["segments_written"] += 1
        self.counts["ids_written"] += segment.count
        self._update(slices={**self.state.slices, segment.name: piece})
        return segment

    def _evict_slices(self) -> None:
        """Keep the newest filters that the budget has room for; sidecars serve for the others."""
        live = {segment.name for segment in self.state.manifest.segments()}
        newest = [(n, p) for n, p in self.state.slices.items() if n in live][::-1]
        room_bytes = self.policy.state_budget_bytes - self.state.tail.nbytes
        if newest and newest[0][1].nbytes <= room_bytes:
            room_bytes -= self.state.head_bytes_without_slices()
        kept: dict[str, SplitBlockFilter] = {}
        for name, piece in newest:
            # With its length, and its name in the head.
            room_bytes -= piece.nbytes + 4 + len(name) + len('"",')
            if room_bytes < 0:
                break
            kept[name] = piece
        self._update(slices=dict(reversed(list(kept.items()))))

    def _delete(self) -> None:
        names, graves = self.state.manifest.deletable(
            epoch=self.epoch,
            now_ms=self.now_ms,
            retain_epochs=self.policy.retain_epochs,
            keep_ms=self.policy.keep_expired_ms,
        )
        names = names[:MAX_DELETES]
        if names:
            self.store.delete(names)
        buried = graves[:1]  # one holds MAX_EXPIRED_NAMES, and no more come in a micro-batch
        for grave in buried:
            self.store.unbury(grave.name)
        deleted = len(names) + sum(grave.count for grave in buried)
        if deleted:
            self.counts["segments_deleted"] = deleted
            gone = [*names, *(grave.name for grave in buried)]
            self._update(manifest=self.state.manifest.forgetting(gone))

    def _bury(self) -> None:
        """Keep the row small while many expired segments wait: name them in an object."""
        expired = self.state.manifest.expired
        if len(expired) > MAX_EXPIRED_NAMES:
            grave = self.store.bury([entry.name for entry in expired])
            self._update(manifest=self.state.manifest.burying(grave))

    def _put(self, bucket: Bucket) -> None:
        self._update(manifest=self.state.manifest.with_bucket(bucket))

    def _update(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]


def cheapest(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The smallest runs, as many as cost least to merge for each that there are fewer then."""
    by_size = sorted(runs, key=ids_in)
    sizes = np.cumsum([ids_in(run) for run in by_size])[1:]
    costs = sizes / np.arange(1, len(by_size))
    # Of equals the most: fewer steps later.
    most = len(costs) - 1 - int(np.argmin(costs[::-1]))
    return tuple(by_size[: most + 2])


def ids_in(run: Run) -> int:
    """IDs in a run."""
    return sum(segment.count for segment in run)


def _overlap(segment: SegmentRef, parts: int, part: int) -> bool:
    """Whether a segment's range of hashes and another one have hashes in common."""
    starts_before = segment.part * parts < (part + 1) * segment.parts
    ends_behind = (segment.part + 1) * parts > part * segment.parts
    return starts_before and ends_behind


def live_manifest_bytes(manifest: Manifest) -> tuple[int, int]:
    """Segment bytes and sidecar bytes of the live segments."""
    segments = list(manifest.segments())
    return sum(s.sst_bytes for s in segments), sum(s.filter_bytes for s in segments)
