"""Order of keys where it is hard: structured hashes, sorted runs, many ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dedup.kernel._kernel import Kernel
from tests.support.kernel_models import MASK, SANITIZED, load, misaligned

Hashes = Callable[[np.random.Generator, int], np.ndarray]


def random(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 2**64, n, np.uint64)


def runs(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.concatenate([np.sort(part) for part in np.array_split(random(rng, n), 5)])


def masked(mask: int) -> Hashes:
    return lambda rng, n: random(rng, n) & np.uint64(mask)


def few(distinct: int) -> Hashes:
    return lambda rng, n: random(rng, distinct)[rng.integers(0, distinct, n)]


#: What hashes of IDs never are, and some that they are: each takes another way through the sort.
KINDS: dict[str, Hashes] = {
    "random": random,
    "sorted": lambda rng, n: np.sort(random(rng, n)),
    "falling": lambda rng, n: np.sort(random(rng, n))[::-1].copy(),
    "runs": runs,
    "one page of a filter": lambda rng, n: random(rng, n) >> np.uint64(13) | np.uint64(5 << 58),
    "small": masked(0xFFFF),
    "high": masked(0xFFFF << 48),
    "middle": masked(0xFFFF << 24),
    "ends": masked(0xFF << 56 | 0xFF),
    "every third bit": masked(0x9249249249249249),
    "few": few(7),
    "hundreds": few(300),
    "equal": few(1),
    "all but one equal": lambda rng, n: np.r_[few(1)(rng, n - 1), random(rng, 1)],
    "half equal": lambda rng, n: np.where(rng.random(n) < 0.5, np.uint64(MASK), random(rng, n)),
    "powers": lambda rng, n: np.uint64(1) << rng.integers(0, 64, n).astype(np.uint64),
    "close": lambda rng, n: np.uint64(2**63) + rng.integers(0, n, n).astype(np.uint64),
}
#: Round the limits of insertion sort and of the spreading passes.
SIZES = [2, 23, 24, 25, 511, 512, 513, 1025, 3000]
SIZES += [] if SANITIZED else [60_000]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_sorted_for_any_distribution_of_hashes(tested: Kernel, kind: str) -> None:
    rng = np.random.default_rng(10)
    for n in SIZES:
        hashes = KINDS[kind](rng, n)
        numbers = rng.integers(0, n // 2 + 1, n)
        if kind in ("equal", "all but one equal", "half equal") and n > 3000:
            hashes, numbers = hashes[:9000], numbers[:9000]  # each tie compares bytes
        data = np.ascontiguousarray(numbers.astype(">u8")).view(np.uint8)
        offsets = np.arange(len(numbers) + 1, dtype=np.int64) * 8
        # Keys are big-endian numbers, so numpy can tell their order.
        expected = np.lexsort((numbers, hashes))
        got = tested.sort_keys(data, offsets, hashes)
        assert got.dtype == np.int64
        assert (got == expected).all()


@pytest.mark.parametrize("n", [1, 30, 600, 5000])
def test_alignment_of_the_result_does_not_matter(n: int) -> None:
    load("native")
    from dedup.kernel import _native

    hashes = random(np.random.default_rng(n), n) | np.uint64(0xFF)
    data, offsets = np.zeros(n, np.uint8), np.arange(n + 1, dtype=np.int64)
    out = misaligned(np.zeros(n, np.int64))
    _native.sort_keys(data, offsets, hashes, out)
    assert (out == np.argsort(hashes, kind="stable")).all()
