"""Which sorted runs of a bucket are worth merging."""

from __future__ import annotations

import math
from collections import defaultdict

from dedup.core.bucket import SortedRun, ids_in
from dedup.core.hash_ranges import MAX_HASH_RANGES
from dedup.core.policy import MAX_OPEN_SEGMENTS

#: From which depth of a growing bucket on how many runs of one size are merged; the deepest first.
MERGE_FAN_IN = ((14, 2), (12, 3), (10, 4))
#: From which depth of a growing bucket on runs are merged, however soon it ends.
DEEP = 14
#: How many full segments a micro-batch at least merges of a bucket that is deep.
HURRIED_ROOM = 2
#: So many runs make a merge worth while in a bucket whose time is over, while stragglers may come.
ENDED_FAN_IN = 4
#: A run is rewritten with smaller ones that hold at least one ID for so many of its own.
SIZE_RATIO = 4


def growing_choice(
    runs: tuple[SortedRun, ...], depth: int, grown: float, share: float
) -> tuple[SortedRun, ...] | None:
    """Return the runs to merge of a bucket that may still grow, None where it does without.

    A bucket that will end before it is too deep is merged once, when it has ended. It waits only
    as long as a merge of all that it has by then would be done in time.

    Parameters
    ----------
    runs : tuple of SortedRun
        Those that no merge has yet.
    depth : int
        Segments that one ID of the bucket may be in.
    grown : float
        How much of the bucket's time is over; from 1 on only late records enter it.
    share : float
        How many segments of full size the runs make.
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
    """Return whether a bucket stays within its depth while a merge of that size goes on.

    That is so where every micro-batch but the one that begins it adds a segment.
    """
    ranges = ranges_of(share)
    at_once = math.ceil(HURRIED_ROOM / step_cost(share / ranges))
    return depth + math.ceil(ranges / at_once) - 1 <= MAX_OPEN_SEGMENTS


def ranges_of(share: float) -> int:
    """Return into how many ranges of hashes a merge that makes so many full segments is split."""
    return min(1 << math.ceil(math.log2(max(share, 1))), MAX_HASH_RANGES)


def step_cost(share: float) -> float:
    """Return what a step costs that makes so much of a segment: a small one, its files."""
    return max(share, 1 / 2)


def _to_come(runs: tuple[SortedRun, ...], grown: float) -> float:
    """Return about how many runs as small as those now the rest of a bucket's time will bring."""
    if grown >= 1:
        return 0.0
    sizes = sorted(max(ids_in(run), 1) for run in runs)
    if not sizes or grown <= 0:
        return math.inf
    # Merged runs are larger, and a few stragglers smaller than what is sealed.
    sealed = sum(sizes) / sizes[len(sizes) // 4]
    return sealed * (1 - grown) / grown


def ended_choice(runs: tuple[SortedRun, ...], *, closed: bool) -> tuple[SortedRun, ...] | None:
    """Return the runs of a bucket whose time is over to merge, None where it is not worth it.

    Of a closed bucket they are all, for the rate of its filter is that of one. While stragglers may
    come they are all but those that outweigh all smaller ones: a handful does not rewrite a bucket.
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
