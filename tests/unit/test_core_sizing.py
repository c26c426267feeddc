"""The mathematics of filter sizing, against filters that are built and measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.filter import SplitBlockFilter
from dedup.core.sizing import (
    blocks_for,
    interval,
    least_bits_per_id,
    predicted_fpr,
    predicted_spread,
    union_fpr,
)

RATES = st.floats(1e-6, 0.5)


def hashes(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


@pytest.mark.parametrize("fpr", [0.0005, 0.003, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("count", [100, 3_000, 200_000])
def test_the_predicted_rate_is_within_the_measured_interval(count: int, fpr: float) -> None:
    made = SplitBlockFilter.build(hashes(count, count), fpr, hash_key_id=1)
    asked = 2_000_000
    wrong = int(made.may_contain(hashes(count + 1, asked)).sum())
    # Fifteen cases: five standard deviations let through one in a hundred thousand runs of them.
    # A small filter's fill differs from the mean, by what its few blocks make likely.
    slack = 5 * predicted_fpr(count, made.blocks) * math.sqrt(8 / made.blocks)
    low, high = interval(wrong, asked, z=5)
    assert low - slack <= predicted_fpr(count, made.blocks) <= high + slack


@pytest.mark.parametrize(("count", "fpr"), [(2_000, 0.003), (2_000, 0.05), (500, 0.01)])
def test_filters_of_one_size_differ_by_their_spread(count: int, fpr: float) -> None:
    asked, rates = hashes(1, 300_000), []
    for seed in range(150):
        made = SplitBlockFilter.build(hashes(seed + 2, count), fpr, hash_key_id=1)
        rates.append(made.may_contain(asked).mean())
    by_asking = np.mean(rates) * (1 - np.mean(rates)) / len(asked)
    spread = math.sqrt(np.var(rates, ddof=1) - by_asking)
    # 150 filters give a standard deviation to 6 %.
    assert spread == pytest.approx(predicted_spread(count, made.blocks), rel=0.25)


def test_the_spread_widens_the_interval() -> None:
    low, high = interval(100, 10_000)
    wide_low, wide_high = interval(100, 10_000, spread=0.002)
    assert wide_low < low - 0.001
    assert wide_high > high + 0.001
    assert interval(100, 10_000, spread=0.0) == (low, high)
    assert predicted_spread(0, 10) == 0
    assert predicted_spread(10**9, 1) == 0


@given(RATES)
def test_no_filter_is_smaller_than_the_least(fpr: float) -> None:
    assert 256 * blocks_for(1_000_000, fpr) / 1_000_000 > least_bits_per_id(fpr)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_a_union_of_filters_is_wrong_if_any_filter_is(rates: list[float]) -> None:
    right = math.prod(1 - rate for rate in rates)
    assert union_fpr(rates) == pytest.approx(1 - right, abs=1e-12)
    assert union_fpr(rates) <= sum(rates) + 1e-12


@given(st.integers(0, 10**9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_contains_the_measured_rate(seen: tuple[int, int]) -> None:
    low, high = interval(*seen)
    assert 0 <= low <= high <= 1
    if seen[1]:
        assert low <= seen[0] / seen[1] + 1e-15
        assert high >= seen[0] / seen[1] - 1e-15


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    for rate in (0.002, 0.01, 0.3):
        wrong = rng.binomial(5000, rate, 4000)
        inside = [low <= rate <= high for low, high in (interval(int(w), 5000) for w in wrong)]
        assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_no_error_among_many_bounds_the_rate() -> None:
    """About the rule of three."""
    low, high = interval(0, 1000)
    assert low == 0
    assert 0.003 < high < 0.004
    assert interval(0, 0) == (0, 1)
