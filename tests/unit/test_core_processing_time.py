"""Processing time: it never falls, and a clock that jumps is refused."""

from __future__ import annotations

import pytest

from dedup.errors import ClockError
from tests.support.shard_driver import (
    PROCESSING,
    SEALED_OR_NOT,
    YEAR_MS,
    Rec,
    X,
    Y,
    Z,
    drive,
    watermarks,
)


@SEALED_OR_NOT
def test_processing_time_never_falls(budget: int) -> None:
    driver = drive(PROCESSING, state_budget_bytes=budget)
    driver.feed([Rec(X, 0)], 1_000)
    assert driver.named([Rec(Y, 0)], 990) == ["UNIQUE"]
    assert watermarks(driver) == (1_000, 940)
    # y was taken at 1000, where time stood still.
    assert driver.named([Rec(Y, 0)], 1_060) == ["DUPLICATE"]
    assert driver.named([Rec(Y, 0)], 1_061) == ["UNIQUE"]


def test_nothing_is_late_in_processing_time() -> None:
    driver = drive(PROCESSING)
    driver.feed([Rec(X, 0)], 1_000)
    driver.feed([Rec(Y, 0), Rec(Z, 9_999_999)], 5_000)
    assert (driver.count("late"), driver.count("future")) == (0, 0)


def test_a_driver_clock_a_year_ahead_of_the_workers_is_refused() -> None:
    driver = drive(PROCESSING)
    driver.feed([Rec(X, 0)], 1_000)
    driver.worker_ahead_ms = -YEAR_MS
    with pytest.raises(ClockError, match=r"1971-01-01T00:00:02Z .* 1970-01-01T00:00:02Z") as e:
        driver.feed([Rec(X, 0)], YEAR_MS + 2_000)
    assert "accept='clock-jump'" in str(e.value)
    assert driver.batch == 1
    driver.worker_ahead_ms = -60_000
    assert driver.named([Rec(X, 0)], 61_000) == ["UNIQUE"]
    driver.worker_ahead_ms = -60_001
    with pytest.raises(ClockError):
        driver.feed([Rec(X, 0)], 62_000)


def test_a_clock_that_falls_by_a_year_within_a_run_is_refused() -> None:
    driver = drive(PROCESSING)
    driver.feed([Rec(X, 0)], YEAR_MS)
    with pytest.raises(ClockError, match="1971-01-01T00:00:00Z to 1970-01-01T00:00:05Z"):
        driver.feed([Rec(X, 0)], 5_000)
    assert driver.named([Rec(Y, 0)], YEAR_MS - 60_000) == ["UNIQUE"]
    # In small steps as well.
    with pytest.raises(ClockError):
        driver.feed([Rec(Y, 0)], YEAR_MS - 60_001)


def test_a_clock_set_back_between_runs_is_not_a_jump() -> None:
    driver = drive(PROCESSING)
    driver.feed([Rec(X, 0)], 2 * YEAR_MS)
    driver.restart()
    assert driver.named([Rec(X, 0), Rec(Y, 0)], YEAR_MS) == ["DUPLICATE", "UNIQUE"]
    # Time stands still, and the run continues.
    assert driver.named([Rec(Y, 0), Rec(Z, 0)], YEAR_MS + 10_000) == ["DUPLICATE", "UNIQUE"]
    assert watermarks(driver)[0] == 2 * YEAR_MS
    with pytest.raises(ClockError):
        driver.feed([], YEAR_MS - 60_000)
    driver.restart()
    assert driver.named([Rec(Y, 0)], 2 * YEAR_MS + 61) == ["UNIQUE"]


def test_a_gap_without_micro_batches_is_no_jump() -> None:
    driver = drive(PROCESSING)
    driver.feed([Rec(X, 0)], 1_000)
    assert driver.named([Rec(X, 0)], YEAR_MS) == ["UNIQUE"]


def test_a_jump_that_the_user_accepts_is_allowed() -> None:
    driver = drive(PROCESSING, accept_clock_jump=True)
    driver.worker_ahead_ms = -YEAR_MS
    driver.feed([Rec(X, 0)], YEAR_MS)
    driver.worker_ahead_ms = 0
    assert driver.named([Rec(X, 0), Rec(Y, 0)], 1_000) == ["DUPLICATE", "UNIQUE"]
    assert driver.state.clocks.effective_now(2_000) == YEAR_MS
