"""For metrics: how much will expire as the GC watermark advances, and what holds it back."""

from __future__ import annotations

from heapq import nsmallest

import numpy as np

from dedup.core.clocks import NEVER_MS
from dedup.core.policy import Policy
from dedup.core.state import ShardState

#: Number of equal parts of the horizon in the forecast. The last part also counts everything that
#: expires later.
BANDS = 8
#: Largest number of source partitions in the metrics, and of characters of a partition's name.
SLOWEST_SOURCES, MAX_NAME = 10, 200


def expiry_bands(state: ShardState, policy: Policy) -> list[tuple[int, int]]:
    """Return how many IDs and bytes expire while the GC watermark advances, in eight steps.

    Item ``k`` counts what expires after the watermark has advanced by more than ``k`` and at most
    ``k + 1`` eighths of the horizon. Bytes count segments and sidecars. The IDs of the tail
    count, but its bytes do not, because they are in the state row.
    """
    ids, sizes = [0] * BANDS, [0] * BANDS
    clocks = state.clocks
    early_ms = clocks.late_watermark_ms if policy.forgets_at_late else clocks.gc_watermark_ms

    def band(end_ms: int, clamped: bool) -> int:
        ahead_ms = end_ms - (clocks.gc_watermark_ms if clamped else early_ms)
        return min(max(0, ahead_ms * BANDS - 1) // policy.horizon_ms, BANDS - 1)

    for bucket in state.manifest.buckets:
        at = band(bucket.end_ms, bucket.clamped)
        ids[at] += bucket.ids
        sizes[at] += sum(s.sst_bytes + s.filter_bytes for s in bucket.segments)
    if len(state.tail):
        # A few IDs are clamped and expire a little later. The forecast ignores that.
        starts, counts = np.unique(state.tail.bucket_starts(state.bucket_ms), return_counts=True)
        for start_ms, count in zip(starts.tolist(), counts.tolist(), strict=True):
            ids[band(start_ms + state.bucket_ms, clamped=False)] += count
    return list(zip(ids, sizes, strict=True))


def slowest_sources(state: ShardState, policy: Policy, most: int) -> list[tuple[str, int, bool]]:
    """Return the ``most`` source partitions with the lowest clocks, active partitions first.

    Each item has the partition's name, the time of its clock in ms, and whether it is idle.
    """
    idle = state.clocks.idle_sources(policy)
    clocks = (
        (name in idle, clock.time_ms, name)
        for name, clock in state.clocks.sources.items()
        if clock.time_ms != NEVER_MS
    )
    slowest = nsmallest(most, clocks)
    return [(name[:MAX_NAME], time_ms, silent) for silent, time_ms, name in slowest]
