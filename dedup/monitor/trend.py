"""Whether a lag grows: a trend that chance does not explain, and that still goes on.

A lag jumps about as micro-batches do. What counts is its order over all that is known (Mann 1945,
Kendall 1975: the test for a trend that needs no distribution), how large it is against the time it
took and against how far the lag ranges, and whether it goes on in the newest window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import sqrt
from statistics import median

#: Standard deviations of the order's test; chance alone gets that far once in 700 looks.
LEAST_SIGMA = 3.0
#: Milliseconds a lag must grow per millisecond: less is a drift that no horizon feels.
LEAST_SLOPE = 0.05
#: And this share of its whole range: a lag that comes and goes ranges further.
LEAST_SHARE = 0.5


def growth(times_ms: Sequence[int], lags_ms: Sequence[int], newest: int) -> tuple[int, int] | None:
    """Return by how much a lag grew, and in what time; None where it does not.

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
        Milliseconds of lag, and of time, between the first and the last third.
    """
    rise = _rise(times_ms, lags_ms)
    now = _rise(times_ms[-newest:], lags_ms[-newest:])
    if rise is None or now is None or rise[0] < LEAST_SHARE * (max(lags_ms) - min(lags_ms)):
        return None
    return rise if sigmas(lags_ms) >= LEAST_SIGMA else None


def sigmas(values: Sequence[int]) -> float:
    """Return how far the order of values is from chance, towards a rise: Mann's and Kendall's z."""
    count = len(values)
    score = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    spread = sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return (score - 1) / spread if score > 0 else 0.0


def _rise(times_ms: Sequence[int], lags_ms: Sequence[int]) -> tuple[int, int] | None:
    """Return how lag and time rose from the first to the last third; None below `LEAST_SLOPE`."""
    third = len(times_ms) // 3
    if not third:
        return None
    took_ms = median(times_ms[-third:]) - median(times_ms[:third])
    more_ms = median(lags_ms[-third:]) - median(lags_ms[:third])
    return (round(more_ms), round(took_ms)) if more_ms > LEAST_SLOPE * took_ms else None
