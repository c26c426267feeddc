"""The forecast of what is forgotten next, against what then is."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest

from dedup.core.clocks import Clocks, SourceClock
from dedup.core.forecast import BANDS, expiry_bands, slowest_sources
from dedup.core.state import ShardState
from tests.support.shard_driver import EVENT, IN_2099_MS, SEALED_OR_NOT, Driver, Rec

#: A band is as long as a bucket.
POLICY = replace(EVENT, horizon_ms=80, bucket_ms=10)


def filled(budget: int) -> Driver:
    driver = Driver(replace(POLICY, state_budget_bytes=budget), now_ms=IN_2099_MS)
    for time_ms in range(1000, 1081, 5):
        driver.feed([Rec(b"%d-%d" % (time_ms, n), time_ms) for n in range(1 + time_ms % 7)])
    return driver


def live_ids(driver: Driver) -> int:
    return driver.state.manifest.ids + len(driver.state.tail)


@SEALED_OR_NOT
def test_the_forecast_matches_the_ids_that_expire(budget: int) -> None:
    driver = filled(budget)
    bands = expiry_bands(driver.state, driver.policy)
    assert len(bands) == BANDS
    assert sum(ids for ids, _ in bands) == live_ids(driver)
    assert sum(ids > 0 for ids, _ in bands) >= BANDS - 1
    for band in range(BANDS - 1):
        later = deepcopy(driver)
        later.feed([Rec(b"newest", 1080 + 10 * (band + 1))])
        left = sum(ids for ids, _ in bands[band + 1 :])
        assert live_ids(later) == left + 1, f"after {band + 1} eighths of the horizon"


def test_forecast_bytes_are_those_of_the_buckets() -> None:
    driver = filled(0)
    bands = expiry_bands(driver.state, driver.policy)
    for bucket in driver.state.manifest.buckets:
        size = sum(s.sst_bytes + s.filter_bytes for s in bucket.segments)
        band = min((bucket.end_ms - 1000 - 1) // 10, BANDS - 1)
        assert bands[band][1] >= size > 0
    segments = list(driver.state.manifest.segments())
    assert sum(b for _, b in bands) == sum(s.sst_bytes + s.filter_bytes for s in segments)


def test_the_forecast_includes_expiry_at_the_late_watermark() -> None:
    policy = replace(POLICY, stable_timestamps=True, late="drop", lateness_ms=40)
    driver = Driver(replace(policy, state_budget_bytes=0), now_ms=IN_2099_MS)
    for time_ms in range(1000, 1081, 5):
        driver.feed([Rec(b"%d" % time_ms, time_ms)])
    # Behind the newest by the lateness, and not by the horizon as well.
    bands = expiry_bands(driver.state, driver.policy)
    assert sum(ids for ids, _ in bands[: BANDS // 2 + 1]) == live_ids(driver)


def test_the_forecast_of_an_empty_state_is_zero() -> None:
    assert expiry_bands(ShardState(), POLICY) == [(0, 0)] * BANDS


@pytest.mark.parametrize("most", [1, 2, 9])
def test_the_slowest_source_partitions_come_first_and_idle_ones_last(most: int) -> None:
    clocks = Clocks(
        query_time_ms=10_000_000,
        sources={
            "fast": SourceClock(900, 10_000_000, 0),
            "slow": SourceClock(100, 10_000_000, 0),
            "idle": SourceClock(1, 0, 0, silent_batches=99),
            "silent from the start": SourceClock(-(1 << 62), 10_000_000, 0),
        },
    )
    told = slowest_sources(ShardState(clocks=clocks), POLICY, most)
    assert told == [("slow", 100, False), ("fast", 900, False), ("idle", 1, True)][:most]
