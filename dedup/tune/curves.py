"""How a filter's rate grows with its fill: predicted, and measured on filters that are built."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dedup import kernel
from dedup.core.filter import SplitBlockFilter
from dedup.core.sizing import interval, predicted_fpr, predicted_spread
from dedup.tune.drive import HASH_KEY, UNKNOWN, KeysOf

#: IDs that each filter is sized for, and unknown ones that it is asked for.
_SIZED_FOR = 20_000
_ASKED = 200_000
#: Fills that are measured: IDs held, as a share of those that a filter is sized for.
FILLS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One filter at one fill.

    Parameters
    ----------
    target_fpr : float
        Rate that it was sized for.
    fill : float
    predicted_fpr, spread : float
        Mean and standard deviation among filters of this size and fill.
    asked, false_positives : int
        Unknown IDs, and how many of them it held for known.
    forgotten : int
        IDs added that it does not know: always 0.
    """

    target_fpr: float
    fill: float
    predicted_fpr: float
    spread: float
    asked: int
    false_positives: int
    forgotten: int

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true rate lies, with 95 % confidence."""
        return interval(self.false_positives, self.asked, spread=self.spread)


def fill_points(rates: tuple[float, ...], keys_of: KeysOf) -> list[Point]:
    """Build a filter for each rate and measure it as it fills.

    Parameters
    ----------
    rates : tuple of float
        Target rates.
    keys_of : callable
        Keys of numbered IDs.
    """
    most = int(max(FILLS) * _SIZED_FOR)
    known = _hashes(keys_of, np.arange(most, dtype=np.int64))
    unknown = _hashes(keys_of, UNKNOWN + np.arange(_ASKED, dtype=np.int64))
    points = []
    for rate in rates:
        made, held = SplitBlockFilter.sized(_SIZED_FOR, rate, hash_key_id=1), 0
        for fill in FILLS:
            upto = int(fill * _SIZED_FOR)
            made.add(known[held:upto])
            held = upto
            points.append(
                Point(
                    target_fpr=rate,
                    fill=fill,
                    predicted_fpr=predicted_fpr(held, made.blocks),
                    spread=predicted_spread(held, made.blocks),
                    asked=_ASKED,
                    false_positives=int(made.may_contain(unknown).sum()),
                    forgotten=int((~made.may_contain(known[:held])).sum()),
                )
            )
    return points


def _hashes(keys_of: KeysOf, numbers: np.ndarray) -> np.ndarray:
    keys = keys_of(numbers)
    return kernel.hash64(keys.data, keys.offsets, HASH_KEY)
