"""Which sorted runs of a bucket are worth merging."""

from __future__ import annotations

import math
from collections import defaultdict

from dedup.core.bucket import SortedRun, ids_in
from dedup.core.policy import MAX_OPEN_SEGMENTS

#: From which depth of a growing bucket on how many runs of one size are merged; the deepest first.
MERGE_FAN_IN = ((14, 2), (12, 3), (10, 4))
#: From which depth of a growing bucket on runs are merged, however soon it ends.
DEEP = 14
#: So many runs make a merge worth while in a bucket whose time is over, while stragglers may come.
ENDED_FAN_IN = 4
#: A run is rewritten with smaller ones that hold at least one ID for so many of its own.
SIZE_RATIO = 4


def growing_choice(
    runs: tuple[SortedRun, ...], depth: int, grown: float
) -> tuple[SortedRun, ...] | None:
    """Return the runs to merge of a bucket that may still grow, None where it does without.

    A bucket that will end before it is too deep is merged once, when it has ended.

    Parameters
    ----------
    runs : tuple of SortedRun
        Those that no merge has yet.
    depth : int
        Segments that one ID of the bucket may be in.
    grown : float
        How much of the bucket's time is over; from 1 on only late records enter it, and nothing
        says how many.
    """
    least = merge_fan_in(depth)
    if least is None or (depth < DEEP and depth + _to_come(runs, grown) <= MAX_OPEN_SEGMENTS):
        return None
    return smallest_tier(runs, least)


def _to_come(runs: tuple[SortedRun, ...], grown: float) -> float:
    """Return about how many runs as small as those now the rest of a bucket's time will bring."""
    sizes = sorted(max(ids_in(run), 1) for run in runs)
    if not sizes or not 0 < grown < 1:
        return math.inf
    # Merged runs are larger, and a few stragglers smaller than what is sealed.
    sealed = sum(sizes) / sizes[len(sizes) // 4]
    return sealed * (1 - grown) / grown


def ended_choice(runs: tuple[SortedRun, ...], *, closed: bool) -> tuple[SortedRun, ...] | None:
    """Return the runs of a bucket whose time is over to merge, None where it is not worth it.

    They are all but those that outweigh all smaller ones: a handful of stragglers does not rewrite
    a bucket.
    """
    least = 2 if closed else ENDED_FAN_IN
    in_order = sorted(runs, key=ids_in)
    sizes = [ids_in(run) for run in in_order]
    for count in range(len(sizes), least - 1, -1):
        if sizes[count - 1] <= SIZE_RATIO * sum(sizes[: count - 1]):
            return tuple(in_order[:count])
    return None


def merge_fan_in(depth: int) -> int | None:
    """Return how many runs of a size make a merge worth while; None: no number does.

    The deeper the bucket, the fewer: an ID is rewritten more often then, but is in few segments.
    """
    return next((runs for limit, runs in MERGE_FAN_IN if depth >= limit), None)


def smallest_tier(runs: tuple[SortedRun, ...], least: int | None) -> tuple[SortedRun, ...] | None:
    """Return the runs of the smallest size of which there are enough, None where there are not.

    Sizes are powers of four of the ID count, so an ID is rewritten about once per size.
    """
    tiers: defaultdict[int, list[SortedRun]] = defaultdict(list)
    for run in runs:
        tiers[int(math.log(max(ids_in(run), 1), 4))].append(run)
    enough = (tier for tier in sorted(tiers) if least is not None and len(tiers[tier]) >= least)
    return next((tuple(tiers[tier]) for tier in enough), None)
