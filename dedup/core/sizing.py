"""Choose the size of a split-block Bloom filter for a false-positive rate, and test that rate.

A filter consists of *blocks* of 256 bits. A block has eight *lanes* of 32 bits, and a key sets one
bit in every lane of its block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from dedup.errors import ConfigError

Floats = npt.NDArray[np.float64]

MAX_BLOCKS = 2**31 - 1

#: Above this many keys per block every bit is set: the rate is 1 in double precision.
_FULL_LOAD = 4096.0


def predicted_fpr(n: int, z: int) -> float:
    """Return the false-positive rate of a filter of ``z`` blocks that holds ``n`` distinct keys.

    The number of keys of a block has the distribution Poisson(n / z). A lane with j keys answers
    yes with probability 1 - (31/32)**j. A false positive needs a yes from all eight lanes. The
    common closed form (1 - exp(-8/b))**8 is 1.5 to 4.5 times too low.
    """
    return _fpr_of_load(n / z)


def predicted_spread(n: int, z: int) -> float:
    """Return the standard deviation of the rate among filters of ``z`` blocks with ``n`` keys.

    Keys set random bits of random blocks, so the rate of a single filter differs from
    `predicted_fpr`, by about 1 / sqrt(z) of it. A lane with d bits set answers yes with probability
    d / 32. For j keys, d is the number of cells that j balls thrown into 32 cells hit.
    """
    mean, load = predicted_fpr(n, z), n / z
    if not 0 < load <= _FULL_LOAD:
        return 0.0
    keys, chance, rate = _rates_by_keys(load)
    # The variance of a Poisson distribution is its mean. All filters have the same total number of
    # keys, so the part of the variance that the total causes is subtracted.
    with_keys = float((chance * rate * keys).sum()) - mean * load
    one_empty, two_empty = (31 / 32) ** keys, (30 / 32) ** keys
    lane_squared = (1 - one_empty) / 32 + (1 - 2 * one_empty + two_empty) * 31 / 32
    variance = float((chance * lane_squared**8).sum()) - mean**2 - with_keys**2 / load
    return math.sqrt(max(0.0, variance) / z)


def blocks_for(n: int, fpr: float) -> int:
    """Return the smallest number of blocks that keeps ``n`` distinct keys at or below ``fpr``.

    ``fpr`` is between 0 and 1. Raises ConfigError if 2**31 - 1 blocks (64 GiB) are not enough.
    """
    load = _load_for(fpr)
    z = max(1, math.ceil(n / load)) if load > 0 else MAX_BLOCKS + 1
    if z > MAX_BLOCKS:
        raise ConfigError(
            f"a filter of {n} keys at fpr {fpr} exceeds 64 GiB; "
            "use more shards or buckets, or a higher fpr"
        )
    return z


def least_bits_per_id(fpr: float) -> float:
    """Return log2(1 / fpr), the bits per key that a filter of any kind needs at least.

    Carter, Floyd, Gill, Markowsky, Wegman: Exact and approximate membership testers (STOC 1978).
    """
    return -math.log2(fpr)


def union_fpr(rates: Iterable[float]) -> float:
    """Return the chance that at least one of several independent filters is wrong."""
    return -math.expm1(math.fsum(math.log1p(-rate) if rate < 1 else -math.inf for rate in rates))


def interval(
    wrong: int, trials: int, z: float = 1.96, *, spread: float = 0.0
) -> tuple[float, float]:
    """Return a confidence interval of a rate of which ``wrong`` of ``trials`` were seen.

    This is Wilson's score interval (JASA 22, 1927), which also holds for rates near 0. It reaches
    ``z`` standard deviations to either side. The default of ``z`` gives 95 % confidence. ``spread``
    is the standard deviation of the true rate among filters, e.g. from `predicted_spread`.
    """
    if not trials:
        return 0.0, 1.0
    rate, slack = wrong / trials, z * z / trials
    middle = (rate + slack / 2) / (1 + slack)
    variance = rate * (1 - rate) / trials + slack / (4 * trials)
    half = math.hypot(z / (1 + slack) * math.sqrt(variance), z * spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def _fpr_of_load(load: float) -> float:
    if load == 0:
        return 0.0
    if load > _FULL_LOAD:
        return 1.0
    _, chance, rate = _rates_by_keys(load)
    return min(float((chance * rate).sum()), 1.0)


def _rates_by_keys(load: float) -> tuple[Floats, Floats, Floats]:
    """Return the possible numbers of keys of a block, their chances, and the block's rates.

    ``load`` is the mean number of keys per block. The numbers begin at 1.
    """
    j = np.arange(1, int(load + 12 * math.sqrt(load)) + 64, dtype=np.float64)
    log_pmf = np.cumsum(np.log(load / j)) - load
    lane_fill = -np.expm1(j * math.log1p(-1 / 32))
    return j, np.exp(log_pmf), lane_fill**8


@functools.lru_cache(maxsize=64)
def _load_for(fpr: float) -> float:
    low, high = 0.0, _FULL_LOAD
    for _ in range(80):
        middle = (low + high) / 2
        if _fpr_of_load(middle) <= fpr:
            low = middle
        else:
            high = middle
    return low
