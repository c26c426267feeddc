"""The manifest: the live segments of a shard, and the expired segments that wait for deletion.

The manifest is part of Spark's state. It alone decides which segments exist (invariant 1). A file
at the catalog root that no manifest names counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from dedup.core.bucket import Bucket
from dedup.core.segment import SegmentRef
from dedup.values.parse import count, integer, name, record, row, tuple_of


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment that expired in micro-batch `epoch`, at `since_ms`, and waits for its deletion."""

    name: str
    epoch: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class PendingList:
    """An object at the catalog root that lists ``count`` expired segments.

    The manifest names the list instead of the segments. `epoch` and `since_ms` are those of the
    segment that expired last.
    """

    name: str
    count: int
    epoch: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Live buckets in order of time, and expired segments in order of expiry."""

    buckets: tuple[Bucket, ...] = ()
    expired: tuple[Expired, ...] = ()
    pending_lists: tuple[PendingList, ...] = ()

    @property
    def pending(self) -> int:
        """Number of expired segments that wait for their deletion."""
        return len(self.expired) + sum(pending_list.count for pending_list in self.pending_lists)

    def segments(self) -> Iterator[SegmentRef]:
        for bucket in self.buckets:
            yield from bucket.segments

    @property
    def ids(self) -> int:
        return sum(bucket.ids for bucket in self.buckets)

    def live_bytes(self) -> tuple[int, int]:
        """Return the segment bytes and the sidecar bytes of all live segments."""
        segments = list(self.segments())
        return sum(s.sst_bytes for s in segments), sum(s.filter_bytes for s in segments)

    def names(self) -> set[str]:
        waiting = {e.name for e in self.expired} | {g.name for g in self.pending_lists}
        return waiting | {s.name for s in self.segments()}

    def changed_in(self, epoch: int) -> bool:
        """Return whether micro-batch ``epoch`` added segments or let segments expire."""
        prefix = f"{epoch:012d}-"
        return any(entry.epoch == epoch for entry in self.expired) or any(
            segment.name.startswith(prefix) for segment in self.segments()
        )

    def bucket(self, start_ms: int, end_ms: int) -> Bucket:
        """Return the bucket of this time range, or an empty bucket if the manifest has none."""
        range_ms = (start_ms, end_ms)
        return next((b for b in self.buckets if b.range == range_ms), Bucket(*range_ms))

    def with_bucket(self, bucket: Bucket) -> Manifest:
        """Return the manifest with the bucket added. It replaces a bucket of the same range."""
        others = [b for b in self.buckets if b.range != bucket.range]
        return replace(self, buckets=tuple(sorted([*others, bucket], key=lambda b: b.range)))

    def expiring(self, segments: Iterable[SegmentRef], *, epoch: int, now_ms: int) -> Manifest:
        """Return the manifest with ``segments``, which no bucket holds any more, as expired."""
        added = tuple(Expired(name, epoch, now_ms) for name in sorted(s.name for s in segments))
        return replace(self, expired=(*self.expired, *added))

    def without(self, segment: SegmentRef) -> Manifest:
        """Return the manifest without a segment whose loss the user accepted.

        The segment does not become expired, so its files stay.
        """
        buckets = (bucket.without(segment.name) for bucket in self.buckets)
        return replace(self, buckets=tuple(b for b in buckets if b.segments))

    def expire(
        self, *, gc_watermark_ms: int, unclamped_ms: int, epoch: int, now_ms: int
    ) -> Manifest:
        """Return the manifest with the segments of all expired buckets moved to `expired`.

        A bucket with clamped IDs expires if it ends at or before the GC watermark. Any other bucket
        expires if it ends at or before ``unclamped_ms``. This time equals the GC watermark unless
        the policy lets IDs expire earlier.
        """
        kept: list[Bucket] = []
        segments: list[SegmentRef] = []
        for bucket in self.buckets:
            if bucket.end_ms <= (gc_watermark_ms if bucket.clamped else unclamped_ms):
                segments += bucket.segments
            else:
                kept.append(bucket)
        return replace(self, buckets=tuple(kept)).expiring(segments, epoch=epoch, now_ms=now_ms)

    def deletable(
        self, *, epoch: int, now_ms: int, retain_epochs: int, keep_ms: int
    ) -> tuple[list[str], list[PendingList]]:
        """Return the expired segments and pending lists that no rollback of Spark can need."""

        def due(entry: Expired | PendingList) -> bool:
            return epoch - entry.epoch > retain_epochs and now_ms - entry.since_ms >= keep_ms

        return [e.name for e in self.expired if due(e)], [g for g in self.pending_lists if due(g)]

    def spilling(self, pending_list: str, count: int) -> Manifest:
        """Return the manifest with its ``count`` oldest expired segments in ``pending_list``."""
        spilled, rest = self.expired[:count], self.expired[count:]
        newest = PendingList(
            pending_list,
            len(spilled),
            max(e.epoch for e in spilled),
            max(e.since_ms for e in spilled),
        )
        return replace(self, expired=rest, pending_lists=(*self.pending_lists, newest))

    def without_pending(self, names: Iterable[str]) -> Manifest:
        deleted = set(names)
        return replace(
            self,
            expired=tuple(e for e in self.expired if e.name not in deleted),
            pending_lists=tuple(g for g in self.pending_lists if g.name not in deleted),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "buckets": [bucket.to_json() for bucket in self.buckets],
            "expired": [list(astuple(entry)) for entry in self.expired],
            "pending_lists": [list(astuple(listed)) for listed in self.pending_lists],
        }

    @staticmethod
    def from_json(value: object) -> Manifest:
        fields = record(value, _PARSERS)
        return Manifest(
            fields["buckets"],
            tuple(Expired(*entry) for entry in fields["expired"]),
            tuple(PendingList(*entry) for entry in fields["pending_lists"]),
        )


_PARSERS = {
    "buckets": tuple_of(Bucket.from_json),
    "expired": tuple_of(row(name, integer, integer)),
    "pending_lists": tuple_of(row(name, count, integer, integer)),
}
