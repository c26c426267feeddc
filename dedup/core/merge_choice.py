"""Which sorted runs of a bucket are worth merging."""

from __future__ import annotations

import math
from collections import defaultdict

from dedup.core.bucket import SortedRun, ids_in

#: From which depth of a bucket on how many runs of one size are merged; the deepest first.
MERGE_FAN_IN = ((14, 2), (12, 3), (10, 4))


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
