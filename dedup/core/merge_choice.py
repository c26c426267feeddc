"""Choose which sorted runs of a bucket to merge."""

from __future__ import annotations

import math
from collections import defaultdict

from dedup.core.bucket import SortedRun, ids_in
from dedup.core.hash_ranges import MAX_HASH_RANGES
from dedup.core.policy import MAX_OPEN_SEGMENTS

#: Pairs (depth, runs), deepest first. A growing bucket that has reached the depth merges runs of
#: one size as soon as there are this many.
MERGE_FAN_IN = ((14, 2), (12, 3), (10, 4))
#: A growing bucket of this depth or more merges runs even if it ends soon.
DEEP = 14
#: Smallest number of full segments that a micro-batch merges in a deep bucket.
HURRIED_ROOM = 2
#: Smallest number of runs worth merging in an ended bucket while stragglers may come.
ENDED_FAN_IN = 4
#: A merge rewrites a run only if the smaller runs hold at least 1 / SIZE_RATIO as many IDs.
SIZE_RATIO = 4


def growing_choice(
    runs: tuple[SortedRun, ...], depth: int, grown: float, share: float
) -> tuple[SortedRun, ...] | None:
    """Return the runs to merge in a bucket that may still grow, or None if no merge is due.

    A bucket that will end before it is too deep waits, and is merged once it has ended. It waits
    only while a merge of all its runs and the next one would still end in time.

    Parameters
    ----------
    runs, share
        Runs that no merge includes yet, and the number of segments of full size that they make.
    depth
        Largest number of segments that may hold one ID of the bucket.
    grown
        Fraction of the bucket's time that is over. From 1 on, only late records enter the bucket.
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
    """Return whether a bucket stays within its depth during a merge of ``share`` segments.

    Assumes that every micro-batch but the first of the merge adds a segment.
    """
    ranges = ranges_of(share)
    at_once = math.ceil(HURRIED_ROOM / step_cost(share / ranges))
    return depth + math.ceil(ranges / at_once) - 1 <= MAX_OPEN_SEGMENTS


def ranges_of(share: float) -> int:
    """Return the number of hash ranges of a merge that makes ``share`` full segments."""
    return min(1 << math.ceil(math.log2(max(share, 1))), MAX_HASH_RANGES)


def step_cost(share: float) -> float:
    """Return the cost of a step that makes ``share`` of a segment, at least 1/2 for its files."""
    return max(share, 1 / 2)


def _to_come(runs: tuple[SortedRun, ...], grown: float) -> float:
    """Estimate how many more runs of the size of the present ones the bucket will add."""
    if grown >= 1:
        return 0.0
    sizes = sorted(max(ids_in(run), 1) for run in runs)
    if not sizes or grown <= 0:
        return math.inf
    # Merged runs are larger than sealed ones, and runs of a few stragglers smaller.
    sealed = sum(sizes) / sizes[len(sizes) // 4]
    return sealed * (1 - grown) / grown


def ended_choice(runs: tuple[SortedRun, ...], *, closed: bool) -> tuple[SortedRun, ...] | None:
    """Return the runs to merge in an ended bucket, or None if a merge is not worth it.

    A closed bucket merges all its runs, because its filters' target assumes one filter. While
    stragglers may come, the bucket merges all runs except those that outweigh all smaller runs, so
    that a few IDs do not rewrite a bucket.
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
    """Return how many runs of one size are worth merging, or None if the bucket is not deep.

    A deeper bucket merges fewer runs. That rewrites IDs more often, but leaves fewer segments.
    """
    return next((runs for limit, runs in MERGE_FAN_IN if depth >= limit), None)


def smallest_tier(runs: tuple[SortedRun, ...], least: int | None) -> tuple[SortedRun, ...] | None:
    """Return the runs of the smallest size with at least ``least`` runs, or None if no size has.

    Sizes are powers of four of the ID count, so an ID is rewritten about once per size.
    """
    tiers: defaultdict[int, list[SortedRun]] = defaultdict(list)
    for run in runs:
        tiers[int(math.log(max(ids_in(run), 1), 4))].append(run)
    enough = (tier for tier in sorted(tiers) if least is not None and len(tiers[tier]) >= least)
    return next((tuple(tiers[tier]) for tier in enough), None)
