"""What becomes of a record, by its age, its time, the watermarks and clocks, and what it lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dedup.core.policy import Policy
from dedup.errors import ClockError
from tests.support.shard_driver import (
    IN_2099_MS,
    MAX_FUTURE_MS,
    PROCESSING,
    SEALED_OR_NOT,
    STABLE_OR_NOT,
    YEAR_MS,
    Driver,
    Rec,
    X,
    Y,
    Z,
    drive,
    watermarks,
)


@pytest.mark.parametrize(("age", "verdict"), [(60, "DUPLICATE"), (61, "UNIQUE")])
@SEALED_OR_NOT
def test_an_age_of_exactly_the_horizon_is_a_duplicate(budget: int, age: int, verdict: str) -> None:
    driver = drive(state_budget_bytes=budget, lateness_ms=200)
    driver.feed([Rec(X, 1_000), Rec(Y, 1_000 + age)])
    assert driver.named([Rec(X, 1_000 + age), Rec(Y, 1_000)]) == [verdict, verdict]
    # Of several copies only one is that near.
    driver.feed([Rec(Z, 1_000)])
    assert driver.named([Rec(Z, 1_000 + age), Rec(Z, 1_200)]) == [verdict, "UNIQUE"]
    driver = drive(PROCESSING, state_budget_bytes=budget)
    driver.feed([Rec(X, 0)], 1_000)
    assert driver.named([Rec(X, 0)], 1_000 + age) == [verdict]


@pytest.mark.parametrize("late", ["emit", "drop"])
@STABLE_OR_NOT
@SEALED_OR_NOT
def test_a_backfill_of_ten_horizons_is_deduplicated_in_one_batch(
    budget: int, stable: bool, late: str
) -> None:
    driver = drive(late=late, state_budget_bytes=budget, stable_timestamps=stable)
    driver.feed([Rec(b"before", 0)])
    first = [Rec(b"%d" % t, t) for t in range(600)]
    verdicts = driver.named([*first, *first])
    assert verdicts == ["UNIQUE"] * 600 + ["DUPLICATE"] * 600
    late_ms, gc_ms = watermarks(driver)
    assert (late_ms, gc_ms) == (599, 539)
    forgotten_ms = late_ms if stable and late == "drop" else gc_ms
    # What is behind already is neither kept nor written.
    first_ms = forgotten_ms - forgotten_ms % 10
    assert driver.state.tail.times_ms.tolist() == (list(range(first_ms, 600)) if budget else [])
    starts = {ref.start_ms for ref, _ in driver.store.segments.values()}
    assert starts - {0} == (set() if budget else set(range(first_ms, 600, 10)))
    assert driver.named([Rec(b"599", 599)]) == ["DUPLICATE"]


def test_counts_add_up() -> None:
    driver = drive(late="drop")
    driver.feed([Rec(X, 100), Rec(X, 100), Rec(Y, 200), Rec(None, 0)])
    driver.feed([
        Rec(Z, 0), Rec(Y, 0), Rec(b"w", 200), Rec(None, None), Rec(b"v", IN_2099_MS),
        Rec(b"u", None, untimed=True), Rec(None, None, untimed=True),
    ])  # fmt: skip
    names = ("records_in", "unique", "duplicate", "late", "null_id", "untimed")
    assert {name: driver.count(name) for name in names} == {
        "records_in": 7, "unique": 2, "duplicate": 1, "late": 1, "null_id": 2, "untimed": 1,
    }  # fmt: skip
    assert (driver.count("future"), driver.count("null_timestamp")) == (1, 3)


# Timestamps that are not a record's own, and stable ones.


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


def test_stable_probes_only_the_buckets_that_may_hold_a_copy() -> None:
    driver = drive(stable_timestamps=True, state_budget_bytes=0, lateness_ms=60)
    driver.feed([Rec(b"%d" % t, t) for t in range(0, 60, 2)])
    lookups = driver.store.lookups
    driver.feed([Rec(b"%d" % t, t) for t in range(0, 60, 2)])
    # Each of six buckets once, by each of the two attempts.
    assert driver.store.lookups - lookups == 12


# Processing time, and a clock that jumps.


def test_a_clock_that_falls_by_a_year_within_a_run_is_refused() -> None:
    driver = drive(PROCESSING)
    driver.feed([Rec(X, 0)], YEAR_MS)
    with pytest.raises(ClockError, match="1971-01-01T00:00:00Z to 1970-01-01T00:00:05Z"):
        driver.feed([Rec(X, 0)], 5_000)
    assert driver.batch == 1
    driver.policy = replace(driver.policy, accept_clock_jump=True)
    assert driver.named([Rec(X, 0), Rec(Y, 0)], 1_000) == ["DUPLICATE", "UNIQUE"]
    assert driver.state.clocks.effective_now(2_000) == YEAR_MS


# Source partitions that lag, fall silent and come back.


def quiet_and_busy(**changes: object) -> Driver:
    """Two partitions that have spoken once."""
    driver = drive(**{"idle_timeout_ms": 100, **changes})
    driver.feed([Rec(X, 500, "quiet"), Rec(b"0", 500, "busy")], 10_000)
    return driver


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
