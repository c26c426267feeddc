"""Rates are current, and signs of life are distinguished from micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dedup.tools.watch.watched import Pace, Watched
from tests.support.batch_metrics import HOUR_MS, START_MS, batch
from tests.support.batch_metrics import watched as watched_of

STEP_MS = 10_000


def watched(times_ms: Sequence[int], now_ms: int, heard_ms: int | None = None) -> Watched:
    """A thousand records in each micro-batch."""
    made = [(START_MS + ms, batch(n)) for n, ms in enumerate(times_ms)]
    heard = {} if heard_ms is None else {"heard_ms": START_MS + heard_ms}
    return watched_of(made, START_MS + now_ms, **heard)


STEADY_MS = [STEP_MS * n for n in range(10)]


def test_rates_are_those_of_the_window_until_a_micro_batch_is_overdue() -> None:
    for late_ms, per_s in ((0, 100), (2 * STEP_MS, 100), (90_000, 50), (HOUR_MS, 2.44)):
        rates = watched(STEADY_MS, STEADY_MS[-1] + late_ms).rates()
        assert rates["records_in"] == pytest.approx(per_s, rel=0.01)


def test_rates_do_not_reach_back_across_a_long_pause() -> None:
    resumed_ms = [ms if n < 7 else 8 * HOUR_MS + ms for n, ms in enumerate(STEADY_MS)]
    assert watched(resumed_ms, resumed_ms[-1]).rates()["records_in"] == pytest.approx(100)
    # The first one behind it only begins the time.
    assert watched(resumed_ms[:8], resumed_ms[7]).rates()["records_in"] is None
    # A trigger of an hour has no long pause.
    hourly_ms = [HOUR_MS * n for n in range(10)]
    assert watched(hourly_ms, hourly_ms[-1]).rates()["records_in"] == pytest.approx(1000 / 3600)


def test_micro_batches_of_one_moment_have_no_rate() -> None:
    assert watched([0, 0], 0).rates()["records_in"] is None


def test_signs_of_life_and_micro_batches_are_told_apart() -> None:
    body = watched(STEADY_MS, HOUR_MS, heard_ms=HOUR_MS - 5).to_json()
    assert body["heard_ms"] == START_MS + HOUR_MS - 5
    assert body["last_batch_ms"] == START_MS + STEADY_MS[-1]
    assert watched(STEADY_MS, HOUR_MS).to_json()["heard_ms"] == START_MS + STEADY_MS[-1]


def test_the_pace_is_that_of_the_window_and_of_one_run() -> None:
    made = [
        (START_MS + STEP_MS * n + 5 * (n == 3), batch(n, batch_ms=800 + 10 * n)) for n in range(30)
    ]
    one = watched_of(made, made[-1][0])
    # Each takes 10 ms longer, so they start so much closer; one was heard of late.
    assert one.pace() == Pace(took_ms=1090, usual_ms=1045, every_ms=STEP_MS - 10)
    assert not one.pace().back_to_back
    assert [step.every_ms for step in one.steps()[:5]] == [None, 9990, 9990, 9995, 9985]
    body = one.to_json()
    assert body["pace"] == {"took_ms": 1090, "usual_ms": 1045, "every_ms": 9990}
    assert body["stage_ms"]["pack"] == pytest.approx(0.005)
    # The time between two runs is not a trigger interval.
    restarted = [*made, (START_MS + HOUR_MS, batch(30, run_id="another"))]
    assert watched_of(restarted, 0).steps()[-1].every_ms is None
    # Two, of which one was reported.
    gap = [made[0], made[2]]
    assert watched_of(gap, 0).pace().every_ms == STEP_MS - 10
    assert watched_of([], 0).pace() == Pace(None, None, None)
