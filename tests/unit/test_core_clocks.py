"""Clocks and watermarks on their own: the formulas, what is remembered, what is forgotten."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.clocks import IDLE_BATCHES, MAX_CLOCK_SKEW_MS, NEVER_MS, Clocks, Observed
from dedup.core.policy import Policy
from dedup.errors import ClockError
from tests.support.shard_driver import EVENT, PROCESSING, YEAR_MS
from tests.support.traces import traces


def advance(clocks: Clocks, policy: Policy, now_ms: int, **observed: int) -> Clocks:
    told = {name: Observed(time_ms, 1) for name, time_ms in observed.items()}
    return clocks.advance(told, now_ms=now_ms, run_id="run", policy=policy)


def test_watermarks_follow_their_two_formulas() -> None:
    policy = replace(EVENT, lateness_ms=7, horizon_ms=100)
    clocks = advance(Clocks(), policy, 10_000, p=500, q=300)
    assert clocks.low_watermark_ms == 300
    assert clocks.late_watermark_ms == 300 - 7
    assert clocks.gc_watermark_ms == 300 - 7 - 100
    assert clocks.newest_ms == 500
    assert clocks.holder(policy) == "q"
    # now is a bound too.
    clocks = advance(clocks, policy, 320, p=500, q=400)
    assert clocks.low_watermark_ms == 400
    assert (clocks.late_watermark_ms, clocks.gc_watermark_ms) == (313, 213)


def test_an_older_time_moves_no_clock_back() -> None:
    clocks = advance(Clocks(), replace(EVENT, lateness_ms=50), 10_000, p=500)
    clocks = advance(clocks, replace(EVENT, lateness_ms=50), 10_000, p=460)
    assert clocks.sources["p"].time_ms == clocks.newest_ms == clocks.low_watermark_ms == 500


def test_a_new_partition_that_is_behind_does_not_pull_the_watermark_back() -> None:
    policy = replace(EVENT, lateness_ms=100)
    clocks = advance(Clocks(), policy, 10_000, p=500)
    clocks = advance(clocks, policy, 10_000, p=600, q=450)
    assert (clocks.low_watermark_ms, clocks.late_watermark_ms) == (500, 400)
    assert clocks.holder(policy) == "q"


WINDOW = replace(EVENT, window_delay_ms=10)


def window(clocks: Clocks, policy: Policy = WINDOW) -> tuple[int, int]:
    """The watermarks for a micro-batch that follows at once, and after one without input."""
    following, later = (clocks.window_watermark_ms(policy, follows=f) for f in (True, False))
    return following, later


def test_a_window_does_not_see_heartbeats() -> None:
    beat = {"p": Observed(50, 2, 500), "q": Observed(NEVER_MS, 1, 600)}
    clocks = Clocks().advance(beat, now_ms=10_000, run_id="run", policy=WINDOW)
    assert window(clocks) == (0, 40)
    assert (clocks.low_watermark_ms, clocks.newest_ms) == (500, 600)


def test_a_window_that_is_added_later_starts_from_the_current_watermark() -> None:
    clocks = advance(Clocks(), EVENT, 10_000, p=100)
    assert clocks.window_watermarks_ms is None
    assert window(clocks) == (90, 90)
    clocks = advance(clocks, WINDOW, 10_000, p=110)
    assert window(clocks) == (90, 100)
    clocks = advance(clocks, EVENT, 10_000, p=120)
    assert window(clocks) == (110, 110)


def test_the_watermark_of_a_window_does_not_fall_while_the_option_is_not_set() -> None:
    """A window that returns with a longer delay still drops what the earlier one would."""
    longer = replace(WINDOW, window_delay_ms=50)
    clocks = advance(Clocks(), WINDOW, 10_000, p=100)
    for _ in range(2):
        clocks = advance(clocks, EVENT, 10_000, p=110)
        assert clocks.window_watermarks_ms is None
        assert window(clocks, longer) == (90, 90)
        assert Clocks.from_json(json.loads(json.dumps(clocks.to_json()))) == clocks
    clocks = advance(clocks, longer, 10_000, p=150)
    assert (window(clocks, longer), clocks.window_floor_ms) == ((90, 100), None)


def test_rows_hold_the_watermarks_of_windows_only_if_there_are_any() -> None:
    without = advance(Clocks(), EVENT, 10_000, p=100)
    assert "window_watermarks_ms" not in without.to_json()
    clocks = advance(Clocks(), WINDOW, 10_000, p=100)
    assert Clocks.from_json(json.loads(json.dumps(clocks.to_json()))) == clocks
    with pytest.raises(ValueError, match="not a list of 2"):
        Clocks.from_json({**clocks.to_json(), "window_watermarks_ms": [1]})


def test_a_batch_without_records_changes_nothing_but_time() -> None:
    clocks = advance(Clocks(), EVENT, 10_000, p=500)
    later = advance(clocks, EVENT, 11_000)
    assert later == replace(clocks, now_ms=11_000, query_time_ms=1_000)


def test_query_time_counts_within_a_run_only() -> None:
    clocks = advance(Clocks(), EVENT, 1_000, p=1)
    clocks = advance(clocks, EVENT, 1_500, p=2)
    assert clocks.query_time_ms == 500
    clocks = clocks.advance({}, now_ms=9_000, run_id="other", policy=EVENT)
    assert clocks.query_time_ms == 500
    clocks = clocks.advance({}, now_ms=8_000, run_id="other", policy=EVENT)
    assert clocks.query_time_ms == 500


@pytest.mark.parametrize("forgotten", [True, False])
def test_an_idle_partition_is_forgotten_behind_the_gc_watermark(forgotten: bool) -> None:
    policy = replace(EVENT, idle_timeout_ms=0, horizon_ms=100)
    clocks = advance(Clocks(), policy, 0, quiet=500, busy=500)
    busy_ms = 600 + (not forgotten) * -1
    for _ in range(IDLE_BATCHES):
        clocks = advance(clocks, policy, 10_000, busy=busy_ms)
    assert "quiet" in clocks.sources
    assert clocks.gc_watermark_ms == busy_ms - 100
    clocks = advance(clocks, policy, 10_000, busy=busy_ms)
    assert ("quiet" in clocks.sources) == (not forgotten)


def test_a_partition_that_joins_behind_holds_the_watermark_until_it_is_idle() -> None:
    policy = replace(EVENT, idle_timeout_ms=100)
    clocks = advance(Clocks(), policy, 10_000, p=500)
    clocks = advance(clocks, policy, 10_010, p=501, q=3)
    lows = []
    for now_ms in (10_050, 10_060, 10_080, 10_110):
        clocks = advance(clocks, policy, now_ms, p=now_ms - 9_000)
        lows.append(clocks.low_watermark_ms)
    assert lows == [500, 500, 500, 1_110]


def test_a_partition_with_new_records_resets_its_silence() -> None:
    policy = replace(EVENT, idle_timeout_ms=0, lateness_ms=1_000)
    clocks = advance(Clocks(), policy, 0, quiet=500, busy=500)
    for time_ms in (501, 502):
        clocks = advance(clocks, policy, time_ms, busy=time_ms)
    assert clocks.sources["quiet"].silent_batches == 2
    clocks = advance(clocks, policy, 503, quiet=501)
    assert clocks.sources["quiet"].silent_batches == 0
    assert clocks.low_watermark_ms == 501


def test_late_times_of_a_partition_do_not_move_its_clock() -> None:
    policy = replace(EVENT, idle_timeout_ms=100)
    clocks = advance(Clocks(), policy, 10_000, p=500, q=500)
    for now_ms in (10_050, 10_099):
        clocks = advance(clocks, policy, now_ms, p=now_ms - 9_500, q=499)
        assert clocks.sources["q"].time_ms == 500
        assert (clocks.low_watermark_ms, clocks.holder(policy)) == (500, "q")
    # It would hold back forever: it goes with the fastest.
    clocks = advance(clocks, policy, 10_100, p=800, q=499)
    assert clocks.low_watermark_ms == 800


def test_substituted_times_count_as_now_after_the_time_out() -> None:
    policy = replace(EVENT, idle_timeout_ms=100)
    clocks = Clocks()
    lows = []
    for now_ms in (1_000, 1_099, 1_100, 1_150):
        clocks = advance(clocks, policy, now_ms, only=NEVER_MS)
        lows.append(clocks.low_watermark_ms)
    assert lows == [NEVER_MS, NEVER_MS, 1_100, 1_150]
    assert clocks.newest_ms == NEVER_MS


def test_without_a_time_out_substituted_times_never_count() -> None:
    policy = replace(EVENT, idle_timeout_ms=None)
    clocks = advance(Clocks(), policy, 0, only=NEVER_MS)
    clocks = advance(clocks, policy, YEAR_MS, only=NEVER_MS)
    assert clocks.low_watermark_ms == NEVER_MS


def test_observations_of_several_map_tasks_are_merged() -> None:
    assert Observed(5, 2).merge(Observed(9, 1)) == Observed(9, 3)
    assert Observed(5, 2).merge(Observed(NEVER_MS, 4)) == Observed(5, 6)
    assert Observed(5, 2, 7).merge(Observed(6, 4, 3)) == Observed(6, 6, 7)


@pytest.mark.parametrize(
    ("now_ms", "worker_now_ms", "run_id", "refused"),
    [
        (YEAR_MS, YEAR_MS - MAX_CLOCK_SKEW_MS, "run", False),
        (YEAR_MS, YEAR_MS - MAX_CLOCK_SKEW_MS - 1, "run", True),
        (YEAR_MS, YEAR_MS - MAX_CLOCK_SKEW_MS - 1, "other", True),
        # A replayed micro-batch is of the past.
        (YEAR_MS, 9 * YEAR_MS, "run", False),
        (YEAR_MS - MAX_CLOCK_SKEW_MS, YEAR_MS, "run", False),
        (YEAR_MS - MAX_CLOCK_SKEW_MS - 1, YEAR_MS, "run", True),
        (0, YEAR_MS, "other", False),
    ],
)
def test_a_clock_jump_is_refused_in_processing_time_unless_accepted(
    now_ms: int, worker_now_ms: int, run_id: str, refused: bool
) -> None:
    clocks = advance(Clocks(), PROCESSING, YEAR_MS)

    def check(policy: Policy) -> None:
        clocks.check_jump(now_ms=now_ms, worker_now_ms=worker_now_ms, run_id=run_id, policy=policy)

    check(EVENT)
    check(replace(PROCESSING, accept_clock_jump=True))
    if refused:
        with pytest.raises(ClockError, match="accept='clock-jump'"):
            check(PROCESSING)
    else:
        check(PROCESSING)


observed = st.dictionaries(
    st.sampled_from("pqr"),
    st.builds(Observed, st.one_of(st.just(NEVER_MS), st.integers(0, 3_000)), st.just(1)),
)


@traces(300)
@given(
    st.lists(
        st.tuples(
            observed,
            st.integers(0, 3_000),
            st.sampled_from(["a", "b"]),
            st.integers(0, 500),
            st.integers(1, 500),
            st.sampled_from([None, 0, 300]),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_watermarks_never_fall_nor_pass_their_formulas(
    steps: list[tuple[dict[str, Observed], int, str, int, int, int | None]], event_time: bool
) -> None:
    clocks = Clocks()
    for told, now_ms, run_id, lateness_ms, horizon_ms, idle_ms in steps:
        policy = Policy(
            horizon_ms=horizon_ms,
            bucket_ms=horizon_ms,
            event_time=event_time,
            lateness_ms=lateness_ms if event_time else 0,
            idle_timeout_ms=idle_ms,
        )
        new = clocks.advance(told, now_ms=now_ms, run_id=run_id, policy=policy)
        for name in ("low_watermark_ms", "late_watermark_ms", "gc_watermark_ms", "newest_ms"):
            assert getattr(new, name) >= getattr(clocks, name)
        if new.late_watermark_ms > clocks.late_watermark_ms:
            bound_ms = min(new.low_watermark_ms, now_ms) if event_time else new.low_watermark_ms
            assert new.late_watermark_ms == bound_ms - policy.lateness_ms
        if new.gc_watermark_ms > clocks.gc_watermark_ms:
            assert new.gc_watermark_ms == new.late_watermark_ms - horizon_ms
        assert new.gc_watermark_ms <= new.late_watermark_ms
        clocks = new
