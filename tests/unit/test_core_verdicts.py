"""What becomes of a record, by its age, the watermarks, and what it lacks."""

from __future__ import annotations

import pytest

from dedup.core.clocks import NEVER_MS
from tests.support.shard_driver import (
    IN_2099_MS,
    PROCESSING,
    SEALED_OR_NOT,
    STABLE_OR_NOT,
    Rec,
    X,
    Y,
    Z,
    drive,
    watermarks,
)


@SEALED_OR_NOT
def test_memory_outlives_the_late_watermark_by_a_horizon(budget: int) -> None:
    driver = drive(lateness_ms=60, state_budget_bytes=budget)
    assert driver.named([Rec(X, 0)]) == ["UNIQUE"]
    assert driver.named([Rec(Y, 75)]) == ["UNIQUE"]
    assert watermarks(driver) == (15, -45)
    # Not late, and 20 after the first: one threshold would have dropped [0, 10) at 15.
    assert driver.named([Rec(X, 20)]) == ["DUPLICATE"]


@SEALED_OR_NOT
def test_a_late_record_is_judged_at_the_late_watermark(budget: int) -> None:
    driver = drive(state_budget_bytes=budget)
    driver.feed([Rec(X, 0), Rec(Z, 15)])
    driver.feed([Rec(Y, 75)])
    # Clamped to 75: 75 from the first x, 60 from the first z.
    assert driver.named([Rec(X, 20), Rec(Z, 20)]) == ["LATE", "DUPLICATE"]
    assert driver.named([Rec(X, 20)]) == ["DUPLICATE"]


@SEALED_OR_NOT
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_record_that_a_window_would_drop_is_late(budget: int, guarantee: str) -> None:
    driver = drive(
        window_delay_ms=10, lateness_ms=1_000, late="drop", state_budget_bytes=budget,
        guarantee=guarantee,
    )  # fmt: skip
    driver.feed([Rec(X, 100)])
    driver.feed([Rec(Y, 200)])
    # The window still judges by 90, and then by 190. It drops what ends at 190 or before.
    recs = [Rec(b"a", 90), Rec(b"b", 89), Rec(None, 90), Rec(None, 89), Rec(None, None)]
    assert driver.named(recs) == ["UNIQUE", "LATE", "NULL_ID", "LATE", "NULL_ID"]
    recs = [Rec(b"c", 190), Rec(b"d", 189), Rec(b"b", 200)]
    assert driver.named(recs) == ["UNIQUE", "LATE", "UNIQUE"]


def test_a_micro_batch_without_input_passes_the_newest_watermark_to_the_window() -> None:
    driver = drive(window_delay_ms=10, lateness_ms=1_000)
    driver.feed([Rec(X, 100)])
    driver.skip()
    assert driver.named([Rec(Y, 90), Rec(Z, 89)]) == ["UNIQUE", "LATE"]


def test_a_record_in_the_future_is_late_for_a_window() -> None:
    """It would close all windows; but a null timestamp concerns no window."""
    driver = drive(window_delay_ms=10, lateness_ms=1_000)
    recs = [Rec(X, IN_2099_MS), Rec(None, IN_2099_MS), Rec(Y, None), Rec(Z, 20)]
    assert driver.named(recs) == ["LATE", "LATE", "UNIQUE", "UNIQUE"]
    driver.skip()
    assert driver.named([Rec(b"a", 10), Rec(b"b", 9)]) == ["UNIQUE", "LATE"]


def test_a_conflict_that_is_late_for_a_window_does_not_pass() -> None:
    driver = drive(window_delay_ms=10, lateness_ms=1_000, late="drop", payload="a")
    driver.feed([Rec(X, 500), Rec(Y, 500)])
    driver.skip()
    recs = [Rec(X, 490, payload=1), Rec(Y, 489, payload=1), Rec(X, IN_2099_MS, payload=1)]
    assert driver.named(recs) == ["CONFLICT", "DUPLICATE", "LATE"]


def test_a_record_that_is_late_for_a_window_keeps_its_time() -> None:
    """If it passes: a copy is judged by that time, not by the late watermark."""
    driver = drive(window_delay_ms=10, lateness_ms=1_000)
    driver.feed([Rec(X, 500)])
    driver.skip()
    assert driver.named([Rec(Y, 400)]) == ["LATE"]
    assert driver.named([Rec(Y, 460), Rec(Y, 500)]) == ["DUPLICATE", "UNIQUE"]


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


@SEALED_OR_NOT
def test_an_entry_just_too_far_does_not_hide_a_near_one(budget: int) -> None:
    driver = drive(lateness_ms=500, state_budget_bytes=budget)
    driver.feed([Rec(X, 161), Rec(X, 60)])
    assert driver.named([Rec(X, 100)]) == ["DUPLICATE"]
    assert driver.named([Rec(Y, 0), Rec(Y, 101)]) == ["UNIQUE", "UNIQUE"]
    assert driver.named([Rec(Y, 61)]) == ["DUPLICATE"]
    # 161 is near enough to one of two copies only.
    assert driver.named([Rec(X, 130), Rec(X, 100)]) == ["DUPLICATE", "DUPLICATE"]


@SEALED_OR_NOT
@STABLE_OR_NOT
def test_every_copy_in_a_batch_is_looked_up(budget: int, stable: bool) -> None:
    driver = drive(lateness_ms=900, state_budget_bytes=budget, stable_timestamps=stable)
    driver.feed([Rec(X, 5), Rec(X, 305)])
    verdicts = driver.named([Rec(X, 200), Rec(X, 6), Rec(X, 306)])
    assert verdicts == ["UNIQUE", "DUPLICATE", "DUPLICATE"]


@SEALED_OR_NOT
def test_a_duplicate_does_not_prolong_an_ids_life(budget: int) -> None:
    driver = drive(PROCESSING, state_budget_bytes=budget)
    verdicts = [driver.named([Rec(X, 0)], now)[0] for now in (100, 140, 161)]
    assert verdicts == ["UNIQUE", "DUPLICATE", "UNIQUE"]


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


@SEALED_OR_NOT
def test_ids_further_apart_than_the_horizon_pass_twice_in_one_batch(budget: int) -> None:
    driver = drive(state_budget_bytes=budget)
    verdicts = driver.named([Rec(X, t) for t in (300, 0, 60, 61, 121, 122)])
    assert verdicts == ["UNIQUE", "UNIQUE", "DUPLICATE", "UNIQUE", "DUPLICATE", "UNIQUE"]
    assert driver.named([Rec(X, 360)]) == ["DUPLICATE"]


@SEALED_OR_NOT
def test_the_watermarks_of_a_batch_apply_to_the_next(budget: int) -> None:
    driver = drive(late="drop", state_budget_bytes=budget)
    assert watermarks(driver) == (NEVER_MS, NEVER_MS)
    assert driver.named([Rec(X, 0), Rec(Y, 500)]) == ["UNIQUE", "UNIQUE"]
    verdicts = driver.named([Rec(Z, 499), Rec(b"w", 900), Rec(b"v", 501)])
    assert verdicts == ["LATE", "UNIQUE", "UNIQUE"]
    assert driver.named([Rec(b"u", 899), Rec(b"t", 900)]) == ["LATE", "UNIQUE"]


@SEALED_OR_NOT
def test_watermarks_do_not_fall_with_a_longer_lateness_or_horizon(budget: int) -> None:
    driver = drive(lateness_ms=10, state_budget_bytes=budget)
    driver.feed([Rec(X, 500)])
    assert watermarks(driver) == (490, 430)
    driver.retune(lateness_ms=1_000, horizon_ms=5_000)
    driver.feed([Rec(Y, 501)])
    assert watermarks(driver) == (490, 430)
    assert driver.named([Rec(Z, 489)]) == ["LATE"]
    driver.retune(lateness_ms=0, horizon_ms=100)
    driver.feed([Rec(b"w", 520)])
    assert watermarks(driver) == (520, 430)


@SEALED_OR_NOT
def test_null_ids_are_never_duplicates(budget: int) -> None:
    driver = drive(state_budget_bytes=budget)
    names = [Rec(None, 100), Rec(b"", 100), Rec(None, 100), Rec(b"", 100)]
    assert driver.named(names) == ["NULL_ID", "UNIQUE", "NULL_ID", "DUPLICATE"]
    assert driver.named([Rec(None, 100), Rec(b"", 100)]) == ["NULL_ID", "DUPLICATE"]
    # They still give the time.
    driver.feed([Rec(None, 300)])
    assert watermarks(driver) == (300, 240)


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
