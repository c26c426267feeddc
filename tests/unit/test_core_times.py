"""Timestamps that are not a record's own, and stable ones, of which one bucket is probed."""

from __future__ import annotations

import pytest

from tests.support.shard_driver import (
    IN_2099_MS,
    MAX_FUTURE_MS,
    SEALED_OR_NOT,
    STABLE_OR_NOT,
    YEAR_MS,
    Rec,
    X,
    Y,
    Z,
    drive,
    watermarks,
)


@pytest.mark.parametrize("late", ["emit", "drop"])
@STABLE_OR_NOT
@SEALED_OR_NOT
def test_a_row_of_2099_does_not_make_a_backfill_late(budget: int, stable: bool, late: str) -> None:
    now_ms = 2 * YEAR_MS
    driver = drive(late=late, state_budget_bytes=budget, stable_timestamps=stable)
    old = [Rec(b"%d" % n, YEAR_MS + n) for n in range(20)]
    assert driver.named([*old[:10], Rec(X, IN_2099_MS)], now_ms) == ["UNIQUE"] * 11
    assert driver.count("future") == 1
    assert driver.state.clocks.low_watermark_ms == YEAR_MS + 9
    # The backfill passes and is not late; a copy of the row is a duplicate within the horizon.
    assert driver.named([*old[10:], *old[9:]], now_ms + 60) == (
        ["UNIQUE"] * 10 + ["DUPLICATE"] * 11
    )
    assert driver.named([Rec(X, IN_2099_MS)], now_ms + 60) == ["DUPLICATE"]
    assert driver.named([Rec(X, IN_2099_MS)], now_ms + 61) == ["UNIQUE"]


def test_the_watermark_never_passes_now() -> None:
    driver = drive(lateness_ms=5)
    driver.feed([Rec(X, 1_000 + MAX_FUTURE_MS)], 1_000)
    assert driver.count("future") == 0
    assert driver.state.clocks.low_watermark_ms == 1_000 + MAX_FUTURE_MS
    assert watermarks(driver) == (995, 935)


@SEALED_OR_NOT
def test_a_stable_time_is_in_the_future_once_the_clock_was_set_back(budget: int) -> None:
    driver = drive(stable_timestamps=True, horizon_ms=200, lateness_ms=200,
                   state_budget_bytes=budget)  # fmt: skip
    assert driver.named([Rec(X, 1_000)], 1_000 - MAX_FUTURE_MS) == ["UNIQUE"]
    # Now taken as of 900; its first copy is remembered in the bucket of 1000.
    assert driver.named([Rec(X, 1_000)], 900) == ["DUPLICATE"]


@SEALED_OR_NOT
def test_stable_and_drop_forgets_a_bucket_at_the_late_watermark(budget: int) -> None:
    driver = drive(stable_timestamps=True, late="drop", state_budget_bytes=budget)
    driver.feed([Rec(X, 95)])
    driver.feed([Rec(Y, 99)])
    assert driver.named([Rec(X, 95)]) == ["DUPLICATE"]
    driver.feed([Rec(Z, 100)])
    assert watermarks(driver) == (100, 40)
    held = [b.start_ms for b in driver.state.manifest.buckets]
    assert 90 not in held
    assert 95 not in driver.state.tail.times_ms
    # Unknown now, but late: clamped to 100 it must not be emitted again.
    assert driver.named([Rec(X, 95)]) == ["LATE"]
    assert len(driver.passed) == 3


@SEALED_OR_NOT
def test_stable_and_drop_keeps_a_bucket_with_substituted_times(budget: int) -> None:
    driver = drive(stable_timestamps=True, late="drop", state_budget_bytes=budget)
    driver.feed([Rec(X, None), Rec(b"w", 995)], 995)
    for now_ms in range(1_000, 1_060, 10):
        driver.feed([Rec(b"%d" % now_ms, now_ms)], now_ms)
        assert driver.named([Rec(X, None)], now_ms) == ["DUPLICATE"]
    assert driver.named([Rec(X, None)], 1_056) == ["UNIQUE"]


@SEALED_OR_NOT
def test_stable_timestamps_find_copies_of_late_records_that_were_emitted(budget: int) -> None:
    driver = drive(stable_timestamps=True, late="emit", state_budget_bytes=budget)
    driver.feed([Rec(X, 95)])
    driver.feed([Rec(Y, 100)])
    # Late, but its bucket is still there.
    assert driver.named([Rec(X, 95)]) == ["DUPLICATE"]
    # Late and new: emitted as of 100, at the edge of a bucket that is not the one of its time.
    assert driver.named([Rec(Z, 99)]) == ["LATE"]
    driver.feed([Rec(b"v", 155)])
    # Found by neither its own time nor by 155, but in the bucket that is flagged.
    assert driver.named([Rec(Z, 99), Rec(X, 95)]) == ["DUPLICATE", "DUPLICATE"]
    driver.feed([Rec(b"u", 161)])
    # As of 161: 61 after z at 100, and 66 after x at 95.
    assert driver.named([Rec(Z, 99), Rec(X, 95)]) == ["LATE", "LATE"]
    assert driver.named([Rec(Z, 99), Rec(X, 95)]) == ["DUPLICATE", "DUPLICATE"]


def test_stable_probes_only_the_buckets_that_may_hold_a_copy() -> None:
    driver = drive(stable_timestamps=True, state_budget_bytes=0, lateness_ms=60)
    driver.feed([Rec(b"%d" % t, t) for t in range(0, 60, 2)])
    lookups = driver.store.lookups
    driver.feed([Rec(b"%d" % t, t) for t in range(0, 60, 2)])
    # Each of six buckets once, by each of the two attempts.
    assert driver.store.lookups - lookups == 12
