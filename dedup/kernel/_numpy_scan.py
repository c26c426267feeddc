"""Verdicts of a micro-batch in numpy."""

from __future__ import annotations

import numpy as np

from dedup.kernel import _checks
from dedup.kernel.arrays import BOOL, I64, U8

_INT64_MAX = np.iinfo(np.int64).max


def scan_verdicts(group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int) -> U8:
    _checks.array(group, np.int64, "group")
    n = len(group)
    _checks.sized(time_ms, np.int64, n, "time_ms")
    _checks.sized(known, np.uint8, n, "known")
    _checks.sized(droppable, np.uint8, n, "droppable")
    if not isinstance(horizon_ms, int):
        raise TypeError(f"horizon_ms must be an int, not {type(horizon_ms).__name__}")
    if not 0 <= horizon_ms <= _INT64_MAX:
        raise ValueError(f"horizon_ms must be 0 to 2**63 - 1, not {horizon_ms}")
    same = group[1:] == group[:-1]
    if bool((group[1:] < group[:-1]).any()) or bool((same & (time_ms[1:] < time_ms[:-1])).any()):
        raise ValueError("records must be sorted by group, and by time within a group")
    verdict = np.where(droppable != 0, 2, 0).astype(np.uint8)
    verdict[known != 0] = 1
    # Only candidates can be taken.
    candidates = np.flatnonzero(verdict == 0)
    if not len(candidates):
        return verdict
    group_number = np.cumsum(np.r_[False, ~same])
    chosen = candidates[_taken(group_number[candidates], time_ms[candidates], horizon_ms)]
    # Any other record within the horizon of the last one taken in its group is a duplicate.
    last = np.full(n, -1, np.int64)
    last[chosen] = chosen
    last = np.maximum.accumulate(last)
    near = (last >= 0) & (group_number[last] == group_number)
    age = time_ms.astype(np.uint64) - time_ms[last].astype(np.uint64)
    near &= age <= np.uint64(horizon_ms)
    near[chosen] = False
    verdict[near] = 1
    return verdict


def _taken(group: I64, time_ms: I64, horizon_ms: int) -> BOOL:
    """Return which candidates are taken, starting with the first one of each group.

    The next one taken is always the first beyond the horizon of the one before.
    """
    times = np.unique(time_ms)
    # The sum may overflow, and is not used then.
    limit = np.where(time_ms > _INT64_MAX - horizon_ms, _INT64_MAX, time_ms + np.int64(horizon_ms))
    span = len(times) + 1
    place = group * span + np.searchsorted(times, time_ms)
    following = np.searchsorted(place, group * span + np.searchsorted(times, limit, side="right"))
    end = len(group)
    following = np.where(np.r_[group, -1][following] == group, following, end)
    taken = np.zeros(end + 1, bool)
    taken[:end] = np.r_[True, group[1:] != group[:-1]]
    jump = np.r_[following, end]
    while True:
        reached = taken.copy()
        reached[jump[taken]] = True
        if (jump == end).all():
            return reached[:end]
        taken, jump = reached, jump[jump]
