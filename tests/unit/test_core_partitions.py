"""Source partitions that lag, fall silent and come back, over whole micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dedup.core.policy import Policy
from tests.support.shard_driver import SEALED_OR_NOT, YEAR_MS, Driver, Rec, X, Y, drive, watermarks


def quiet_and_busy(**changes: object) -> Driver:
    """Two partitions that have spoken once."""
    driver = drive(**{"idle_timeout_ms": 100, **changes})
    driver.feed([Rec(X, 500, "quiet"), Rec(b"0", 500, "busy")], 10_000)
    return driver


@SEALED_OR_NOT
def test_one_clock_ten_horizons_behind_holds_the_watermarks(budget: int) -> None:
    driver = drive(state_budget_bytes=budget)
    driver.feed([Rec(X, 1_000, "fast"), Rec(Y, 400, "slow")])
    assert watermarks(driver) == (400, 340)
    assert driver.state.clocks.holder(driver.policy) == "slow"
    driver.feed([Rec(b"%d" % n, 1_000 + n, "fast") for n in range(5)])
    assert watermarks(driver) == (400, 340)
    verdicts = driver.named([Rec(Y, 410, "slow"), Rec(X, 940, "slow"), Rec(X, 939, "slow")])
    # The last is 61 behind the first x, and 1 behind its copy, which was not emitted.
    assert verdicts == ["DUPLICATE", "DUPLICATE", "UNIQUE"]


def test_a_clock_that_begins_ten_horizons_behind_holds_until_the_time_out() -> None:
    driver = drive(idle_timeout_ms=100)
    driver.feed([Rec(b"a", 1_000, "fast")], 10_000)
    held = []
    for n in range(1, 6):
        now_ms = 10_000 + 30 * n
        both = [Rec(b"f%d" % n, 1_000 + n, "fast"), Rec(b"s%d" % n, n, "slow")]
        assert driver.named(both, now_ms) == ["UNIQUE", "LATE"]
        held.append(driver.state.clocks.low_watermark_ms)
    # First heard at +30, so patience ends at +130.
    assert held == [1_000, 1_000, 1_000, 1_000, 1_005]
    # Once it sends times that can be trusted, it counts again.
    driver.feed([Rec(b"back", 1_005, "slow"), Rec(b"on", 2_000, "fast")], 10_200)
    assert driver.state.clocks.low_watermark_ms == 1_005


def test_a_lone_clock_far_behind_does_not_move() -> None:
    driver = drive(idle_timeout_ms=100)
    driver.feed([Rec(b"a", 1_000)], 10_000)
    for n in range(1, 20):
        assert driver.named([Rec(b"b%d" % n, 0)], 10_000 + 100 * n) == ["LATE"]
        assert watermarks(driver) == (1_000, 940)


def test_a_partition_is_idle_after_the_time_out_and_three_batches_of_others() -> None:
    driver = quiet_and_busy()
    lows = []
    for n, now_ms in enumerate((10_050, 10_100, 10_200), start=1):
        driver.feed([Rec(b"%d" % n, 500 + n, "busy")], now_ms)
        lows.append(driver.state.clocks.low_watermark_ms)
    assert lows == [500, 500, 503]


def test_a_partition_is_not_idle_before_the_time_out() -> None:
    driver = quiet_and_busy()
    for n in range(1, 6):
        driver.feed([Rec(b"%d" % n, 500 + n, "busy")], 10_000 + n)
    assert driver.state.clocks.low_watermark_ms == 500
    driver.feed([Rec(b"z", 600, "busy")], 10_100)
    assert driver.state.clocks.low_watermark_ms == 600


def test_no_partition_becomes_idle_while_no_partition_has_records() -> None:
    driver = drive(idle_timeout_ms=100)
    driver.feed([Rec(X, 500, "quiet"), Rec(b"0", 501, "busy")], 10_000)
    for n in range(1, 6):
        driver.feed([], 10_000 + 1_000 * n)
    assert driver.state.clocks.low_watermark_ms == 500


def test_downtime_makes_no_partition_idle() -> None:
    driver = quiet_and_busy()
    for n in range(1, 6):
        driver.restart()
        driver.feed([Rec(b"%d" % n, 500 + n, "busy")], 10_000 + YEAR_MS * n)
    assert driver.state.clocks.query_time_ms == 0
    assert driver.state.clocks.low_watermark_ms == 500
    driver.feed([Rec(b"z", 600, "busy")], 10_100 + YEAR_MS * 5)
    assert driver.state.clocks.low_watermark_ms == 600


def test_without_a_time_out_no_partition_becomes_idle() -> None:
    driver = quiet_and_busy(idle_timeout_ms=None)
    for n in range(1, 6):
        driver.feed([Rec(b"%d" % n, 500 + n, "busy")], 10_000 + YEAR_MS * n)
    assert driver.state.clocks.low_watermark_ms == 500
    driver.feed([Rec(b"first", 0, "new")])
    assert driver.count("returned_from_idle") == 0


@pytest.mark.parametrize("far", [20, 900], ids=["remembered", "forgotten"])
def test_late_records_of_a_partition_back_from_idle_are_counted(far: int) -> None:
    driver = quiet_and_busy(horizon_ms=500)
    for n in range(1, 5):
        driver.feed([Rec(b"%d" % n, 500 + far * n, "busy")], 10_000 + 50 * n)
        assert driver.count("returned_from_idle") == 0
    assert ("quiet" in driver.state.clocks.sources) == (far == 20)
    late_ms = driver.state.clocks.late_watermark_ms
    names = driver.named([
        Rec(b"l1", late_ms - 1, "quiet"), Rec(None, late_ms - 1, "quiet"),
        Rec(b"l2", late_ms, "quiet"), Rec(b"l3", late_ms - 1, "busy"),
    ])  # fmt: skip
    assert names == ["LATE", "NULL_ID", "UNIQUE", "LATE"]
    assert driver.count("returned_from_idle") == 2


def test_changed_source_columns_start_with_new_clocks() -> None:
    """The old clock would never advance again and would hold the watermark forever."""
    policy = Policy(horizon_ms=60, bucket_ms=10, event_time=True, idle_timeout_ms=None)
    driver = Driver(policy)
    driver.feed([Rec(b"a", 100)], 1_000)
    assert driver.state.clocks.late_watermark_ms == 100
    driver.restart()
    driver.policy = replace(policy, source_columns=("topic",))
    driver.feed([Rec(b"b", 500, "t")], 1_000)
    assert driver.state.clocks.late_watermark_ms == 500
    assert set(driver.state.clocks.sources) == {"t"}


def test_a_source_partition_with_only_untimed_records_holds_no_watermark() -> None:
    driver = drive(idle_timeout_ms=None)
    driver.feed([Rec(X, 100, "p"), Rec(Y, None, "q", untimed=True)])
    assert watermarks(driver) == (100, 40)
    driver.feed([Rec(X, 100, "p"), Rec(Y, None, "r")])
    driver.feed([Rec(X, 200, "p")])
    assert watermarks(driver) == (100, 40), "one whose times are replaced does hold it"
