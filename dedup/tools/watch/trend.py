"""Whether a lag grows.

A lag jumps about as micro-batches do. It grows if both its least and its greatest value rise from
each third of the known micro-batches to the next, and from the first to the last third of the
newest window, each time by more than a twentieth of the time in between.

So a lag that comes and goes does not grow, because its least value stays, and neither does one that
jumps once, whether or not it comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: With fewer micro-batches than these, chance alone makes the thirds rise too often.
LEAST_COUNT = 9
#: Milliseconds a lag must grow per millisecond: less is a drift that no horizon feels.
LEAST_SLOPE = 0.05


class _Third(NamedTuple):
    begin_ms: int
    least_ms: int
    greatest_ms: int


def growth(times_ms: Sequence[int], lags_ms: Sequence[int], newest: int) -> tuple[int, int] | None:
    """Return by how much a lag grew, and in what time, or None if it did not grow.

    Parameters
    ----------
    times_ms : sequence of int
        Rising.
    lags_ms : sequence of int
        The lag at each of them.
    newest : int
        So many of the last ones are the newest window, in which it must still grow.

    Returns
    -------
    tuple of (int, int) or None
        Milliseconds by which the least lag grew, and of time, from the first to the last third.
    """
    if len(times_ms) < LEAST_COUNT:
        return None
    first, second, last = _thirds(times_ms, lags_ms)
    before, _, now = _thirds(times_ms[-newest:], lags_ms[-newest:])
    if _rises(first, second) and _rises(second, last) and _rises(before, now):
        return last.least_ms - first.least_ms, last.begin_ms - first.begin_ms
    return None


def _thirds(times_ms: Sequence[int], lags_ms: Sequence[int]) -> list[_Third]:
    third = len(times_ms) // 3
    parts = (slice(0, third), slice(third, 2 * third), slice(2 * third, None))
    return [_Third(times_ms[p][0], min(lags_ms[p]), max(lags_ms[p])) for p in parts]


def _rises(one: _Third, other: _Third) -> bool:
    least_ms = LEAST_SLOPE * (other.begin_ms - one.begin_ms)
    rise_ms = min(other.least_ms - one.least_ms, other.greatest_ms - one.greatest_ms)
    return rise_ms > least_ms
