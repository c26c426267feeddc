"""Verdicts of a micro-batch in numpy."""

from __future__ import annotations

import itertools

import numpy as np

from dedup.kernel import _checks
from dedup.kernel._types import I64, U8

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
    # Only candidates can be taken; the next one taken is the first beyond the horizon, so the
    # taken are those that the first candidate of a group leads to.
    candidates = np.flatnonzero(verdict == 0)
    if not len(candidates):
        return verdict
    g = np.cumsum(np.r_[False, ~same])[candidates]
    t = time_ms[candidates]
    times = np.unique(t)
    # The sum may wrap round, and is then not used.
    limit = np.where(t > _INT64_MAX - horizon_ms, _INT64_MAX, t + np.int64(horizon_ms))
    span = len(times) + 1
    place = g * span + np.searchsorted(times, t)
    following = np.searchsorted(place, g * span + np.searchsorted(times, limit, side="right"))
    end = len(candidates)
    following = np.where(np.r_[g, -1][following] == g, following, end)
    taken = np.zeros(end + 1, bool)
    taken[:end] = np.r_[True, g[1:] != g[:-1]]
    jump = np.r_[following, end]
    for _ in itertools.repeat(None):
        reached = taken.copy()
        reached[jump[taken]] = True
        if (jump == end).all():
            taken = reached
            break
        taken, jump = reached, jump[jump]
    chosen = candidates[taken[:end]]
    # Everything else within the horizon of the last taken one of its group is a duplicate.
    last = np.full(n, -1, np.int64)
    last[chosen] = chosen
    last = np.maximum.accumulate(last)
    group_number = np.cumsum(np.r_[False, ~same])
    near = (last >= 0) & (group_number[last] == group_number)
    age = time_ms.astype(np.uint64) - time_ms[last].astype(np.uint64)
    near &= age <= np.uint64(horizon_ms)
    near[chosen] = False
    verdict[near] = 1
    return verdict
