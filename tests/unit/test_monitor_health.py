"""Verdicts on how a query's forgetting keeps up."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.tools.watch.health import (
    ENDED,
    HISTORY,
    LEAST_EVIDENCE,
    LEAST_SILENCE_MS,
    REPORTED_SILENCE_MS,
    UNKNOWN_SILENCE_MS,
    WINDOW,
    Status,
    TimedBatch,
    concerns,
    growth,
    judge,
)
from dedup.tools.watch.watched import Watched
from tests.support.batch_metrics import batch
from tests.support.batch_metrics import watched as watched_of

START_MS, STEP_MS, HORIZON_MS = 1_700_000_000_000, 10_000, 3_600_000
WELL = "the GC watermark keeps up"
TOO_FEW = "no fault so far; its lag is judged after five micro-batches and a minute"


def sample(
    at_ms: int,
    number: int,
    newest_ms: int | None,
    low_ms: int | None,
    gc_ms: int | None,
    source: str | None = None,
) -> TimedBatch:
    times: dict[str, Any] = {
        "newest_ms": newest_ms, "low_watermark_ms": low_ms, "gc_watermark_ms": gc_ms,
    }  # fmt: skip
    return TimedBatch(at_ms, batch(number, gc_source=source, **times))


def changed(one: TimedBatch, at_ms: int | None = None, **fields: Any) -> TimedBatch:
    return TimedBatch(one.at_ms if at_ms is None else at_ms, replace(one.batch, **fields))


def samples(
    lags_ms: Iterable[int], *, behind_ms: int = 500, stuck: bool = False, first: int = 0
) -> list[TimedBatch]:
    """A micro-batch every ten seconds, whose low watermark is so far behind the newest."""
    made = []
    for n, lag_ms in enumerate(lags_ms):
        at_ms = START_MS + n * STEP_MS
        newest_ms = at_ms - behind_ms
        low_ms = START_MS if stuck else newest_ms - lag_ms
        made.append(sample(at_ms, first + n, newest_ms, low_ms, low_ms - HORIZON_MS, "p7"))
    return made


def told(given: list[TimedBatch], **options: object) -> tuple[Status, str]:
    now_ms = options.pop("now_ms", given[-1].at_ms + 1000 if given else START_MS)
    health = judge(given, now_ms=now_ms, **options)  # type: ignore[arg-type]
    return health.status, health.reason


def test_a_lag_that_grows_is_lagging() -> None:
    status, reason = told(samples([0, 0, 2000, 3000, 2000, 5000, 6000, 6000, 7000, 10_000]))
    assert status is Status.LAGGING
    assert reason == (
        "it falls behind the newest timestamp, by 00:00:06 in 00:01:00, held by source partition p7"
        ": dedup remedies lagging"
    )


NO_GROWTH = {
    "steady and large": [86_400_000] * 20,
    "fell once": [1, 2, 3, 4, 3, 6, 7, 8, 9, 10],
    "a step of 1 ms": [5000] * 19 + [5001],
    "a drift": [0] * 10 + [100 * n for n in range(10)],
    "an outage long ago": [600_000 * (n >= 20) for n in range(40)],
    "noise": [1000 * (n * n % 7 % 3) for n in range(60)],
    "only eight": [5000 * n for n in range(8)],
    "the least alone": [0, 9000, 9000, 2000, 9000, 9000, 4000, 9000, 9000],
    "the greatest alone": [0, 2000, 2000, 0, 4000, 4000, 0, 6000, 6000],
    "below what it was": [0] * 12 + [100_000] * 12 + [20_000 + 3000 * n for n in range(12)],
    "a short jump": [0] * 22 + [9000] * 5 + [0] * 3,
    "catching up": [10_000 * n for n in range(20, 0, -1)],
    "mended": [2000 * n for n in range(60)] + [120_000 - 1000 * n for n in range(12)],
}


@pytest.mark.parametrize("lags_ms", NO_GROWTH.values(), ids=NO_GROWTH)
def test_lags_that_do_not_grow_are_ok(lags_ms: list[int]) -> None:
    assert told(samples(lags_ms)) == (Status.OK, WELL)


@pytest.mark.parametrize(("trigger_s", "speed", "jitter"), [(10, 0.9, 0.2), (1, 0.5, 0.6)])
def test_a_query_that_is_too_slow_is_lagging_though_its_lag_jumps(
    trigger_s: int, speed: float, jitter: float
) -> None:
    rng, at_ms, newest_ms, given = random.Random(1), START_MS, START_MS, []
    for n in range(HISTORY):
        given.append(sample(at_ms, n, newest_ms, newest_ms, newest_ms - HORIZON_MS))
        at_ms += round(1000 * trigger_s * rng.uniform(1 - jitter, 1 + jitter))
        newest_ms += round(1000 * trigger_s * speed)
    status, reason = told(given)
    assert status is Status.LAGGING, reason
    assert "falls behind the clock" in reason


@given(st.integers(9, HISTORY), st.data())
def test_neither_a_sawtooth_nor_a_jump_grows(count: int, data: st.DataObject) -> None:
    period, phase = data.draw(st.integers(2, count - count // 3)), data.draw(st.integers(0, count))
    saw = [1000 * ((n + phase) % period) for n in range(count)]
    begin, end = sorted((data.draw(st.integers(0, count)), data.draw(st.integers(0, count))))
    jump = [600_000 * (begin <= n < end) for n in range(count)]
    times_ms = [1000 * n for n in range(count)]
    for newest in (10, 60):
        assert growth(times_ms, saw, newest) is None
        assert growth(times_ms, jump, newest) is None


def test_falling_behind_the_clock_is_lagging() -> None:
    status, reason = told(
        [
            sample(START_MS + n * STEP_MS, n, newest_ms, newest_ms, newest_ms - 5)
            for n, newest_ms in enumerate(range(START_MS, START_MS + WINDOW * 1000, 1000))
        ]
    )
    assert status is Status.LAGGING
    assert "falls behind the clock, by 00:00:54 in 00:01:00" in reason


def test_a_watermark_that_stands_while_timestamps_advance_is_stalled() -> None:
    status, reason = told(samples([0] * WINDOW, stuck=True))
    assert status is Status.STALLED
    assert "stood while timestamps advanced by 00:01:30, held by source partition p7" in reason


@pytest.mark.parametrize("every", [12, 30])
def test_a_source_that_is_as_slow_as_ever_is_no_stall(every: int) -> None:
    """It sends records every two or five minutes, which is longer than the window."""
    given = []
    for n in range(HISTORY):
        low_ms = START_MS + STEP_MS * (n - n % every)
        given.append(sample(START_MS + STEP_MS * n, n, START_MS + STEP_MS * n, low_ms, low_ms))
    assert {told(given[:n])[0] for n in range(2 * every + 1, HISTORY)} == {Status.OK}
    # Twice as long is news.
    last = given[-1]
    longer = [
        changed(last, at_ms=last.at_ms + STEP_MS * n, newest_ms=last.at_ms + STEP_MS * n,
                batch_id=last.batch.batch_id + n)
        for n in range(1, 2 * every + 1)
    ]  # fmt: skip
    assert told([*given, *longer])[0] is Status.STALLED


def test_records_without_newer_timestamps_are_not_a_stall() -> None:
    same = [sample(START_MS + n * STEP_MS, n, START_MS, START_MS, 0) for n in range(WINDOW)]
    standing = "no newer timestamps in its records: its watermarks stand"
    assert told(same) == (Status.OK, standing)
    idle = [changed(one, records_in=0) for one in same]
    assert told(idle) == (Status.OK, "no newer timestamps")


def test_a_query_does_not_keep_up_while_its_watermark_stands() -> None:
    """Neither after an incident, whose long pause is unusual, nor in a usual pause."""
    given = []
    for n in range(HISTORY):
        low = max(m for m in range(n + 1) if not 40 < m <= 60 and m < HISTORY - 15)
        given.append(sample(START_MS + STEP_MS * n, n, START_MS + STEP_MS * n,
                            START_MS + STEP_MS * low, START_MS + STEP_MS * low, "p7"))  # fmt: skip
    status, reason = told(given)
    assert status is Status.STALLED, reason
    assert reason.endswith("held by source partition p7: dedup remedies stalled")
    speaks_now_and_then = every_second(100, low_every=30)
    assert told(speaks_now_and_then[:97]) == (
        Status.OK,
        "the GC watermark has not moved for 00:00:06, held by source partition p1: not unusual for "
        "this query",
    )
    steady_then_held = [
        sample(START_MS + STEP_MS * n, n, START_MS + STEP_MS * n, low_ms, low_ms, "p7")
        for n in range(30)
        for low_ms in [START_MS + STEP_MS * min(n, 23)]
    ]
    assert told(steady_then_held) == (
        Status.OK, "the GC watermark has not moved for 00:01:00, held by source partition p7"
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, WINDOW])
def test_many_late_or_clamped_records_give_their_own_verdict(count: int) -> None:
    """From the first micro-batch on; a handful, or one in a hundred, raises no finding."""
    well = samples([0] * count)
    for field, verdict, words in (
        ("future", Status.FUTURE, "33% of the records have a timestamp in the future, and count "
                                  "as now"),
        ("late", Status.LATE, "33% of the records are late"),
    ):  # fmt: skip
        given = [changed(one, **{field: 330}) for one in well]
        assert told(given) == (verdict, f"{words}: dedup remedies {field}")
        few = [changed(one, **{field: 10}) for one in well]
        assert told(few)[0] is Status.OK
        handful = [changed(one, **{field: 4 * (n == 0)}, records_in=4 * (n == 0))
                   for n, one in enumerate(well)]  # fmt: skip
        assert told(handful)[0] is Status.OK


@pytest.mark.parametrize(("field", "status"), [("future", Status.FUTURE), ("late", Status.LATE)])
def test_a_share_of_few_records_is_counted_over_more_micro_batches(
    field: str, status: Status
) -> None:
    """With a record in each micro-batch a window never holds a handful of bad ones."""
    slow = samples([0] * HISTORY)
    often = [changed(one, records_in=1, **{field: n % 3 == 0}) for n, one in enumerate(slow)]
    assert told(often)[0] is status
    # Enough records since then: what was before counts no longer.
    well = [changed(one, records_in=50) for one in slow[-WINDOW:]]
    assert told([*often[:-WINDOW], *well])[0] is Status.OK
    # A large micro-batch of long ago would speak for all that came since.
    large = changed(slow[5], records_in=1_000_000, **{field: 200_000})
    small = [changed(one, records_in=4) for one in slow[6:]]
    assert told([*slow[:5], large, *small])[0] is Status.OK
    seldom = [changed(one, records_in=1, **{field: n % 30 == 0}) for n, one in enumerate(slow)]
    assert told(seldom) == (Status.OK, WELL)


def test_a_watermark_that_moves_behind_a_newest_timestamp_far_ahead_does_not_stand() -> None:
    given = [changed(one, newest_ms=START_MS + 600_000) for one in samples([0] * WINDOW)]
    assert told(given) == (Status.OK, "no newer timestamps")
    assert told(samples([0] * WINDOW)) == (Status.OK, WELL)


def test_the_worst_finding_is_the_verdict_and_the_others_are_listed() -> None:
    given = [changed(one, late=20, future=400) for one in samples([0] * WINDOW, stuck=True)]
    status, reason = told(given)
    assert status is Status.STALLED
    assert [topic.split()[0].rstrip(";") for topic in reason.split("dedup remedies ")[1:]] == [
        "stalled", "future", "late",
    ]  # fmt: skip
    assert [concern.status for concern in concerns(given)] == [
        Status.STALLED, Status.FUTURE, Status.LATE,
    ]  # fmt: skip


def test_a_shorter_horizon_is_a_verdict_as_long_as_it_lasts() -> None:
    well = samples([0] * WINDOW)
    hour_ms = 3_600_000
    cut = changed(well[-1], horizon_ms=5 * hour_ms, horizon_cut_ms=2 * hour_ms)
    kept = "the horizon is 03:00:00 instead of 05:00:00, because there were more IDs than"
    assert told([*well[:-1], cut]) == (
        Status.SHORTENED, f"{kept} max_live_ids: dedup remedies shortened"
    )  # fmt: skip
    before = changed(well[-2], horizon_ms=5 * hour_ms, horizon_cut_ms=2 * hour_ms)
    assert told([*well[:-2], before, well[-1]])[0] is Status.OK


def test_silence_longer_than_the_window_is_a_stop() -> None:
    given = [changed(s, at_ms=START_MS + 100_000 * n) for n, s in enumerate(samples([0] * WINDOW))]
    window_ms = given[-1].at_ms - given[0].at_ms
    assert window_ms > LEAST_SILENCE_MS
    assert told(given, now_ms=given[-1].at_ms + window_ms)[0] is not Status.STOPPED
    status, reason = told(given, now_ms=given[-1].at_ms + window_ms + 1)
    assert (status, reason) == (Status.STOPPED, "silent for 00:15:00")
    # An idle query tells that it lives.
    heard_ms = given[-1].at_ms + window_ms
    assert told(given, now_ms=heard_ms + 1000, heard_ms=heard_ms)[0] is not Status.STOPPED


def test_an_unusual_silence_is_reported_before_it_counts_as_a_stop() -> None:
    """A driver that was killed looks well for ten minutes."""
    given = samples([0] * WINDOW)
    last_ms = given[-1].at_ms
    assert told(given, now_ms=last_ms + REPORTED_SILENCE_MS) == (Status.OK, WELL)
    status, reason = told(given, now_ms=last_ms + 3 * REPORTED_SILENCE_MS)
    assert (status, reason) == (Status.OK, f"{WELL}; no sign of life for 00:09:00")
    # Not where micro-batches are that far apart.
    slow = [changed(s, at_ms=START_MS + n * 300_000) for n, s in enumerate(given)]
    assert "no sign of life" not in told(slow, now_ms=slow[-1].at_ms + 600_000)[1]
    assert "no sign of life" in told(slow, now_ms=slow[-1].at_ms + 600_001)[1]
    assert "no sign of life" in told(given[:1], now_ms=START_MS + REPORTED_SILENCE_MS + 1)[1]


def test_a_query_that_is_known_to_run_is_not_stopped_by_silence() -> None:
    """A micro-batch of an hour, as its own driver sees it."""
    given = samples([0] * WINDOW)
    later_ms = given[-1].at_ms + HORIZON_MS
    assert told(given, now_ms=later_ms)[0] is Status.STOPPED
    silent = f"{WELL}; no sign of life for 01:00:00"
    assert told(given, now_ms=later_ms, alive=True) == (Status.OK, silent)
    assert told(given, now_ms=later_ms, alive=True, ended="boom")[0] is Status.STOPPED


def test_an_idle_query_and_a_clock_that_is_ahead_are_reported() -> None:
    given = samples([0] * WINDOW)
    later_ms = given[-1].at_ms + HORIZON_MS
    idle = told(given, now_ms=later_ms, heard_ms=later_ms - 1000)[1]
    assert idle.endswith("; no micro-batch for 01:00:00")
    ahead = told(given, now_ms=given[-1].at_ms - HORIZON_MS)[1]
    assert ahead.endswith("; its clock is 01:00:00 ahead of this one")


def test_a_short_window_does_not_make_an_idle_moment_a_stop() -> None:
    given = samples([0, 0])
    assert told(given, now_ms=given[-1].at_ms + LEAST_SILENCE_MS)[0] is Status.OK
    assert told(given, now_ms=given[-1].at_ms + LEAST_SILENCE_MS + 1)[0] is Status.STOPPED


def test_a_trigger_of_ten_minutes_is_no_stop_between_two_micro_batches() -> None:
    step_ms = 600_000
    given = [changed(s, at_ms=START_MS + n * step_ms) for n, s in enumerate(samples([0] * 2))]
    assert told(given, now_ms=given[-1].at_ms + 2 * step_ms)[0] is Status.OK
    assert told(given, now_ms=given[-1].at_ms + 2 * step_ms + 1)[0] is Status.STOPPED
    # Of the first one no one knows when the next is due.
    assert told(given[:1], now_ms=START_MS + UNKNOWN_SILENCE_MS)[0] is Status.OK
    assert told(given[:1], now_ms=START_MS + UNKNOWN_SILENCE_MS + 1)[0] is Status.STOPPED


def test_an_ended_query_is_stopped_with_its_reason() -> None:
    gone = "CatalogError: gone"
    assert told(samples([0] * 3), ended=gone) == (Status.STOPPED, gone)


def scheduled(runs: int, batches: int) -> list[TimedBatch]:
    """A job that takes a few micro-batches, ten seconds each, at every full hour."""
    return [
        changed(s, at_ms=START_MS + HORIZON_MS * (n // batches) + STEP_MS * (n % batches),
                run_id=str(n // batches))
        for n, s in enumerate(samples([0] * runs * batches))
    ]  # fmt: skip


@pytest.mark.parametrize("batches", [1, 4, 20])
def test_an_end_without_an_error_is_normal_between_scheduled_runs(batches: int) -> None:
    given = scheduled(3, batches)
    pause_ms = HORIZON_MS - STEP_MS * (batches - 1)
    end_ms = given[-1].at_ms + 5000
    for silent_ms, well in ((0, True), (2 * pause_ms, True), (2 * pause_ms + 1, False)):
        status, reason = told(given, ended=ENDED, heard_ms=end_ms, now_ms=end_ms + silent_ms)
        assert (status is not Status.STOPPED) is well
        assert reason.startswith("between two runs; " if well else "silent for ")
    assert told(given, ended="boom", now_ms=end_ms) == (Status.STOPPED, "boom")


def test_a_first_run_that_ended_counts_as_stopped() -> None:
    assert told(samples([0] * 20), ended=ENDED) == (Status.STOPPED, ENDED)
    assert told([], ended=ENDED) == (Status.STOPPED, ENDED)


def test_between_two_runs_a_stall_is_reported_as_well() -> None:
    given = [changed(s, run_id=str(n)) for n, s in enumerate(samples([0] * WINDOW, stuck=True))]
    status, reason = told(given, ended=ENDED)
    assert status is Status.STALLED
    assert reason.startswith("between two runs; the GC watermark stood")


def test_a_query_without_micro_batches_is_stopped_unless_it_sent_a_sign_of_life() -> None:
    assert told([])[0] is Status.STOPPED
    health = judge([], now_ms=START_MS + 1, heard_ms=START_MS)
    assert (health.status, health.evidence) == (Status.OK, 0)


def test_going_back_is_reported_before_any_other_finding() -> None:
    given = samples([0] * 6)
    again = samples([0] * 3, first=4)
    status, reason = told([*given, *again], ended="stopped")
    assert (status, reason) == (Status.REWOUND, "micro-batch 4 came after micro-batch 5")
    fell = [*given[:3], sample(START_MS + 50_000, 3, START_MS, START_MS, 7)]
    assert told(fell) == (Status.REWOUND, "the GC watermark went back in micro-batch 3")
    # The finding stays as long as the window shows it.
    later = samples([0] * WINDOW, first=4)
    assert told([*given, *later])[0] is Status.OK


def every_second(count: int, *, low_every: int) -> list[TimedBatch]:
    """A micro-batch a second; the low watermark follows a source that speaks now and then."""
    made = []
    for n in range(count):
        at_ms = START_MS + 1000 * n
        low_ms = START_MS + 1000 * (n - n % low_every)
        made.append(sample(at_ms, n, at_ms, low_ms, low_ms - HORIZON_MS, "p1"))
    return made


def test_a_source_with_records_twice_a_minute_is_not_a_stall() -> None:
    given = every_second(300, low_every=30)
    assert {told(given[:n])[0] for n in range(1, 300)} == {Status.OK}
    assert told(every_second(300, low_every=1000))[0] is Status.STALLED


def test_a_longer_horizon_lets_the_gc_watermark_stand() -> None:
    given = [changed(s, gc_watermark_ms=START_MS - HORIZON_MS) for s in samples([0] * 20)]
    assert told(given) == (
        Status.OK,
        "the low watermark advances; the GC watermark stands until a longer horizon is full",
    )


def test_a_new_checkpoint_does_not_count_as_going_back() -> None:
    """Adopting a catalog numbers micro-batches from 0 again: nothing went back."""
    again = samples([0] * 3)
    again[0] = changed(again[0], begins=True)
    assert told([*samples([0] * 20), *again]) == (Status.OK, TOO_FEW)


def test_damage_before_an_adoption_is_no_longer_reported() -> None:
    given = samples([0] * 20)
    given[3] = changed(given[3], epochs_apart=1)
    given[5] = changed(given[5], begins=True)
    assert told(given)[0] is Status.OK


def test_a_fast_query_is_judged_by_the_whole_kept_history() -> None:
    """A hundred micro-batches that took ten seconds."""
    given = [
        changed(s, at_ms=START_MS + 100 * n) for n, s in enumerate(samples([0] * 200, stuck=True))
    ]
    assert told(given[-HISTORY:])[0] is Status.STALLED


def test_watermarks_of_before_1970_do_not_go_back() -> None:
    given = samples([0] * 4)
    given[2] = changed(given[2], gc_watermark_ms=None)
    given[3] = changed(given[3], gc_watermark_ms=-5)
    assert told(given[2:])[0] is Status.OK


def test_a_shard_that_went_back_is_reported_for_good() -> None:
    given = samples([0] * 6)
    given[4] = changed(given[4], epochs_apart=2)
    # IDs are forgotten for good, so the finding never ends.
    status, reason = told([*given, *samples([0] * 50, first=6)])
    assert status is Status.REWOUND
    assert reason.startswith("in micro-batch 4 the state of a shard was older")


def test_a_micro_batch_of_which_only_a_part_was_read_is_reported_until_it_runs_again() -> None:
    given = samples([0] * 6)
    given[4] = changed(given[4], shards=1, shard_count=2)
    status, reason = told([*given, *samples([0] * 50, first=6)])
    assert status is Status.REWOUND
    assert reason.startswith("only a part of micro-batch 4 was read, and the rest is lost")
    assert told([*given[:5], *samples([0] * 50, first=4)])[0] is Status.OK


def test_too_few_micro_batches_give_no_verdict_on_lag() -> None:
    growing = samples(range(0, 1000 * (LEAST_EVIDENCE - 1), 1000))
    assert told(growing) == (Status.OK, TOO_FEW)
    assert judge(growing, now_ms=growing[-1].at_ms).evidence == LEAST_EVIDENCE - 1


@pytest.mark.parametrize("first", [None, 5])
def test_watermarks_that_have_not_begun_are_stalled(first: int | None) -> None:
    given = [
        sample(START_MS + STEP_MS * n, n, START_MS + n if n else first, None, None)
        for n in range(9)
    ]
    assert told(given)[0] is Status.STALLED


@given(
    st.lists(st.integers(0, 10**9), min_size=LEAST_EVIDENCE, max_size=30), st.integers(0, 10**10)
)
def test_a_lag_larger_by_a_constant_gets_the_same_verdict(lags_ms: list[int], more_ms: int) -> None:
    """Behaviour counts, not size."""
    assert told(samples(lags_ms))[0] is told(samples([lag + more_ms for lag in lags_ms]))[0]


# --- rates and pace: those of now, and signs of life are no micro-batches


def watched(times_ms: Sequence[int], now_ms: int, heard_ms: int | None = None) -> Watched:
    """A thousand records in each micro-batch."""
    made = [(START_MS + ms, batch(n)) for n, ms in enumerate(times_ms)]
    heard = {} if heard_ms is None else {"heard_ms": START_MS + heard_ms}
    return watched_of(made, START_MS + now_ms, **heard)


STEADY_MS = [STEP_MS * n for n in range(10)]


def test_rates_are_those_of_the_window_until_a_micro_batch_is_overdue() -> None:
    for late_ms, per_s in ((0, 100), (2 * STEP_MS, 100), (90_000, 50), (HORIZON_MS, 2.44)):
        rates = watched(STEADY_MS, STEADY_MS[-1] + late_ms).rates()
        assert rates["records_in"] == pytest.approx(per_s, rel=0.01)


def test_rates_do_not_reach_back_across_a_long_pause() -> None:
    resumed_ms = [ms if n < 7 else 8 * HORIZON_MS + ms for n, ms in enumerate(STEADY_MS)]
    assert watched(resumed_ms, resumed_ms[-1]).rates()["records_in"] == pytest.approx(100)
    # The first one behind it only begins the time.
    assert watched(resumed_ms[:8], resumed_ms[7]).rates()["records_in"] is None
    # A trigger of an hour has no long pause.
    hourly_ms = [HORIZON_MS * n for n in range(10)]
    assert watched(hourly_ms, hourly_ms[-1]).rates()["records_in"] == pytest.approx(1000 / 3600)


def test_micro_batches_of_one_moment_have_no_rate() -> None:
    assert watched([0, 0], 0).rates()["records_in"] is None


def test_signs_of_life_and_micro_batches_are_reported_apart() -> None:
    body = watched(STEADY_MS, HORIZON_MS, heard_ms=HORIZON_MS - 5).to_json()
    assert body["heard_ms"] == START_MS + HORIZON_MS - 5
    assert body["last_batch_ms"] == START_MS + STEADY_MS[-1]
    assert watched(STEADY_MS, HORIZON_MS).to_json()["heard_ms"] == START_MS + STEADY_MS[-1]


def test_the_pace_covers_the_window_and_ignores_pauses_between_runs() -> None:
    made = [
        (START_MS + STEP_MS * n + 5 * (n == 3), batch(n, batch_ms=800 + 10 * n)) for n in range(30)
    ]
    one = watched_of(made, made[-1][0])
    # Each takes 10 ms longer, so they start so much closer; one was heard of late.
    assert one.pace() == {"took_ms": 1090, "usual_ms": 1045, "every_ms": STEP_MS - 10}
    assert [step.every_ms for step in one.steps()[:5]] == [None, 9990, 9990, 9995, 9985]
    body = one.to_json()
    assert body["pace"] == {"took_ms": 1090, "usual_ms": 1045, "every_ms": 9990}
    assert body["stage_ms"]["pack"] == pytest.approx(0.005)
    # The time between two runs is not a trigger interval.
    restarted = [*made, (START_MS + HORIZON_MS, batch(30, run_id="another"))]
    assert watched_of(restarted, 0).steps()[-1].every_ms is None
    # Two, of which one was reported.
    gap = [made[0], made[2]]
    assert watched_of(gap, 0).pace()["every_ms"] == STEP_MS - 10
    assert set(watched_of([], 0).pace().values()) == {None}
