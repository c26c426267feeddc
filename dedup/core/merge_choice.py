"""Choose which sorted runs of a bucket to merge.

A bucket *ends* when only late records can still enter it, and *closes* when no record can. The
*depth* of a bucket is the largest number of segments that may hold one ID. *Stragglers* are late
records. Amounts are in *full segments*, the largest segments that a merge writes.
"""

from __future__ import annotations

import math
from collections import defaultdict

from dedup.core.bucket import SortedRun, ids_in
from dedup.core.hash_ranges import MAX_HASH_RANGES
from dedup.core.policy import MAX_OPEN_SEGMENTS

#: Pairs (depth, runs), deepest first. A growing bucket that has reached the depth merges runs of
#: similar size as soon as it has this many of them.
MERGE_FAN_IN = ((14, 2), (12, 3), (10, 4))
#: A growing bucket with at least this depth merges runs even if it ends soon.
DEEP = 14
#: In a deep bucket every micro-batch merges at least this many full segments.
HURRIED_ROOM = 2
#: While stragglers may come, an ended bucket merges only if it can merge at least this many runs.
ENDED_FAN_IN = 4
#: While stragglers may come, a merge includes a run only if all smaller runs together hold at least
#: 1 / SIZE_RATIO as many IDs.
SIZE_RATIO = 4


def growing_choice(
    runs: tuple[SortedRun, ...], depth: int, grown: float, share: float
) -> tuple[SortedRun, ...] | None:
    """Return the runs to merge in a bucket that may still grow, or None if no merge is due.

    No merge is due if the bucket is likely to end before it is too deep, because a merge after its
    end is cheaper. The bucket must also leave enough time to merge all its runs and the next run.
    ``runs`` are in no merge yet, and ``share`` is their size in full segments. ``grown`` is the
    fraction of the bucket's time that is over. From 1 on, only late records enter the bucket.
    """
    least = merge_fan_in(depth)
    if least is None:
        return None
    next_share = share + share / max(len(runs), 1)
    may_wait = depth < DEEP and is_done_in_time(depth + 1, next_share)
    if may_wait and depth + _to_come(runs, grown) <= MAX_OPEN_SEGMENTS:
        return None
    return smallest_tier(runs, least)


def is_done_in_time(depth: int, share: float) -> bool:
    """Return whether a bucket of this depth stays within its bound while it is merged.

    ``share`` is the size of the merge in full segments. Assumes that every micro-batch after the
    first one of the merge adds a segment to the bucket.
    """
    ranges = ranges_of(share)
    at_once = math.ceil(HURRIED_ROOM / step_cost(share / ranges))
    return depth + math.ceil(ranges / at_once) - 1 <= MAX_OPEN_SEGMENTS


def ranges_of(share: float) -> int:
    """Return the number of hash ranges of a merge whose output is ``share`` full segments."""
    return min(1 << math.ceil(math.log2(max(share, 1))), MAX_HASH_RANGES)


def step_cost(share: float) -> float:
    """Return the cost of a merge step that writes ``share`` full segments.

    The cost is at least half a segment, because writing files takes time however small they are.
    """
    return max(share, 1 / 2)


def _to_come(runs: tuple[SortedRun, ...], grown: float) -> float:
    """Estimate how many more runs will be sealed into the bucket before it ends."""
    if grown >= 1:
        return 0.0
    sizes = sorted(max(ids_in(run), 1) for run in runs)
    if not sizes or grown <= 0:
        return math.inf
    # The run at the first quartile stands for a freshly sealed run. Merged runs are larger, and
    # runs of a few stragglers smaller.
    sealed = sum(sizes) / sizes[len(sizes) // 4]
    return sealed * (1 - grown) / grown


def ended_choice(runs: tuple[SortedRun, ...], *, closed: bool) -> tuple[SortedRun, ...] | None:
    """Return the runs to merge in an ended bucket, or None if a merge is not worth it.

    A closed bucket merges all its runs, because the false-positive target of closed buckets assumes
    one filter per bucket. A bucket that is not closed leaves out runs that are much larger than all
    smaller runs together. So a few late IDs do not cause the whole bucket to be rewritten.
    """
    if closed:
        return runs if len(runs) > 1 else None
    in_order = sorted(runs, key=ids_in)
    sizes = [ids_in(run) for run in in_order]
    for count in range(len(sizes), ENDED_FAN_IN - 1, -1):
        if sizes[count - 1] <= SIZE_RATIO * sum(sizes[: count - 1]):
            return tuple(in_order[:count])
    return None


def merge_fan_in(depth: int) -> int | None:
    """Return how many runs of similar size are worth merging, or None if the depth is low.

    A deeper bucket merges fewer runs at a time. That rewrites IDs more often, but leaves fewer
    segments.
    """
    return next((runs for limit, runs in MERGE_FAN_IN if depth >= limit), None)


def smallest_tier(runs: tuple[SortedRun, ...], least: int | None) -> tuple[SortedRun, ...] | None:
    """Return the smallest runs of similar size, or None if no size has ``least`` runs.

    Runs are grouped by size: all runs of a group have the same number of IDs within a factor of
    four. So merges rewrite an ID about once per group.
    """
    tiers: defaultdict[int, list[SortedRun]] = defaultdict(list)
    for run in runs:
        tiers[int(math.log(max(ids_in(run), 1), 4))].append(run)
    enough = (tier for tier in sorted(tiers) if least is not None and len(tiers[tier]) >= least)
    return next((tuple(tiers[tier]) for tier in enough), None)
