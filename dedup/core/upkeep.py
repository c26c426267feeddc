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

from dedup.core.clocks import NEVER_MS
from dedup.core.filter import SplitBlockFilter
from dedup.core.keys import Keys
from dedup.core.manifest import Bucket, Manifest
from dedup.core.policy import MAX_OPEN_SEGMENTS, Policy
from dedup.core.ports import I64, U64, SegmentRef, SegmentStore
from dedup.core.recall import read_unless_lost
from dedup.core.state import ShardState
from dedup.core.tail import Tail

#: Closed buckets are merged in every fourth micro-batch of a shard, shards taking turns.
MERGE_STRIDE = 4
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
        tail, rest = self._split_tail(start_ms)
        end_ms = start_ms + self.state.bucket_ms
        segment = self._write(
            start_ms, end_ms, tail.keys, tail.hashes(self.hash_key), tail.times_ms, growing=True
        )
        self._update(
            tail=rest,
            manifest=self.state.manifest.with_segments(
                start_ms, end_ms, [segment], clamped=bool(tail.clamped.any())
            ),
        )

    def _split_tail(self, start_ms: int) -> tuple[Tail, Tail]:
        inside = self.state.tail.bucket_starts(self.state.bucket_ms) == start_ms
        return self.state.tail.where(inside), self.state.tail.where(~inside)

    def _merge(self) -> None:
        """Size-tiered in buckets that grow; down to one segment in those that are closed."""
        for bucket in self.state.manifest.buckets:
            if len(bucket.segments) >= MAX_OPEN_SEGMENTS:
                self._merge_segments(bucket, smallest_tier(bucket.segments))
        waiting = [b for b in self.state.manifest.buckets if self._closed(b) and self._scattered(b)]
        turn = self.epoch % MERGE_STRIDE == self.shard % MERGE_STRIDE
        if waiting and (turn or len(waiting) > 1):
            self._merge_segments(waiting[0], waiting[0].segments)

    def _closed(self, bucket: Bucket) -> bool:
        """No record can enter the bucket any more: its time is over, or its grid is."""
        length_ms = bucket.end_ms - bucket.start_ms
        on_grid = length_ms == self.state.bucket_ms and bucket.start_ms % length_ms == 0
        return bucket.end_ms <= self.state.clocks.late_watermark_ms or not on_grid

    @staticmethod
    def _scattered(bucket: Bucket) -> bool:
        return len(bucket.segments) > 1

    def _merge_segments(self, bucket: Bucket, segments: tuple[SegmentRef, ...]) -> None:
        read, lost = [], []
        for segment in segments:
            content, gone = read_unless_lost(
                self.store, segment, partial(self.store.read_segment, segment)
            )
            lost += gone
            if content is not None:
                read.append((segment, content))
        for segment in lost:
            self.forget(segment)
        if len(read) < 2:
            return
        closed = self._closed(bucket)
        pieces = [content for _, content in read]
        if closed and bucket.range == (bucket.start_ms, bucket.start_ms + self.state.bucket_ms):
            tail, rest = self._split_tail(bucket.start_ms)
            if len(tail):
                pieces.append((tail.keys, tail.hashes(self.hash_key), tail.times_ms))
                clamped = bool(tail.clamped.any())
                self._update(
                    tail=rest,
                    manifest=self.state.manifest.with_segments(*bucket.range, (), clamped=clamped),
                )
        merged = self._write(
            *bucket.range,
            Keys.concat([keys for keys, _, _ in pieces]),
            np.concatenate([hashes for _, hashes, _ in pieces]),
            np.concatenate([times_ms for _, _, times_ms in pieces]),
            growing=not closed,
        )
        current = next(b for b in self.state.manifest.buckets if b.range == bucket.range)
        gone_segments = [segment for segment, _ in read]
        self._update(
            manifest=self.state.manifest.replacing(
                current, gone_segments, merged, epoch=self.epoch, now_ms=self.now_ms
            )
        )
        self.counts["segments_merged"] += len(gone_segments)

    def forget(self, segment: SegmentRef) -> None:
        """Take a damaged segment whose loss the user accepted out of the manifest."""
        self._update(
            manifest=self.state.manifest.without(segment), forgotten=self.state.forgotten + 1
        )

    def _write(
        self,
        start_ms: int,
        end_ms: int,
        keys: Keys,
        hashes: U64,
        times_ms: I64,
        *,
        growing: bool,
    ) -> SegmentRef:
        fpr = self.policy.open_slice_fpr if growing else self.policy.closed_slice_fpr
        segment, piece = self.store.write_segment(start_ms, end_ms, keys, hashes, times_ms, fpr)
        self.counts["segments_written"] += 1
        self.counts["ids_written"] += segment.count
        self._update(slices={**self.state.slices, segment.name: piece})
        return segment

    def _evict_slices(self) -> None:
        """Keep the newest filters that the budget has room for; sidecars serve for the others."""
        live = {segment.name for segment in self.state.manifest.segments()}
        room_bytes = self.policy.state_budget_bytes - self.state.tail.nbytes
        room_bytes -= len(replace(self.state, slices={}, tail=Tail.empty()).to_bytes())
        kept: dict[str, SplitBlockFilter] = {}
        for name, piece in reversed(list(self.state.slices.items())):
            if name not in live:
                continue
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

    def _update(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]


def smallest_tier(segments: tuple[SegmentRef, ...]) -> tuple[SegmentRef, ...]:
    """The segments to merge in a bucket that grows: the smallest size tier that has company.

    Tiers are powers of four of the ID count, so an ID is rewritten once per tier.
    """
    tiers: defaultdict[int, list[SegmentRef]] = defaultdict(list)
    for segment in segments:
        tiers[int(math.log(max(segment.count, 1), 4))].append(segment)
    for tier in sorted(tiers):
        if len(tiers[tier]) > 1:
            return tuple(tiers[tier])
    return segments


def live_manifest_bytes(manifest: Manifest) -> tuple[int, int]:
    """Segment bytes and sidecar bytes of the live segments."""
    segments = list(manifest.segments())
    return sum(s.sst_bytes for s in segments), sum(s.filter_bytes for s in segments)
