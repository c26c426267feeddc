"""Which filters the state row holds: of the newest buckets, as many as the load pays for, or fit.

Spark reads and writes the whole row in every micro-batch. So each byte of a filter in the row costs
time and room in the checkpoint once per micro-batch, however many records the micro-batch has. A
filter in a sidecar costs a read per page that is probed. Many records pay for many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dedup.core.filter import SplitBlockFilter
from dedup.core.manifest import Manifest
from dedup.core.segment import SegmentRef

#: Bytes of filters in the row that any micro-batch pays for, and bytes that each record adds.
LEAST_BYTES = 768 << 10
BYTES_PER_RECORD = 16
#: If the load falls, a micro-batch evicts at most this part of the bytes.
EVICTED_PART = 8


def room_bytes(records: int, held_bytes: int, most_bytes: int, *, by_load: bool) -> int:
    """Return how many bytes of filters the row may hold after a micro-batch.

    If `by_load` is false, it may hold ``most_bytes``, whatever the load. ``held_bytes`` are in the
    row before. After a smaller micro-batch than usual the row keeps most of them, because the next
    one may be larger again.
    """
    if not by_load:
        return most_bytes
    paid_bytes = LEAST_BYTES + BYTES_PER_RECORD * records
    return min(most_bytes, max(paid_bytes, held_bytes - held_bytes // EVICTED_PART))


def filters_for_row(
    manifest: Manifest,
    filters: Mapping[str, SplitBlockFilter],
    most_bytes: int,
    load: Callable[[SegmentRef], SplitBlockFilter | None],
    *,
    by_load: bool,
) -> dict[str, SplitBlockFilter]:
    """Return the filters that the row should hold. The newest buckets come last.

    ``filters`` are at hand. ``load`` returns the filter of a sidecar, or None if it has none.
    Filters return from sidecars until the room is full: at once, or if the room depends on the load
    and thus changes with every micro-batch, only when half of it is empty.
    """
    newest = [c.segment for bucket in manifest.buckets for c in bucket.coverages()][::-1]
    chosen: dict[str, SplitBlockFilter] = {}
    used_bytes = 0
    for segment in newest:
        if segment.name in filters and used_bytes + segment.filter_bytes <= most_bytes:
            chosen[segment.name] = filters[segment.name]
            used_bytes += segment.filter_bytes
    if not by_load or 2 * used_bytes < most_bytes:
        for segment in newest:
            if segment.name in chosen or used_bytes + segment.filter_bytes > most_bytes:
                continue
            loaded = load(segment)
            if loaded is not None:
                chosen[segment.name] = loaded
                used_bytes += segment.filter_bytes
    order = [segment.name for segment in reversed(newest) if segment.name in chosen]
    return {name: chosen[name] for name in order}
