"""Which run of a query lives: late events of the previous run change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dedup.tools.watch.health import HISTORY, Status
from dedup.tools.watch.live_runs import Runs
from dedup.tools.watch.metrics_log import SUFFIX, MetricsLog
from dedup.tools.watch.query_log import read_logs
from dedup.tools.watch.series import MAX_QUERIES
from dedup.tools.watch.watched import Watched
from tests.support.batch_metrics import HOUR_MS, QUERY, RUN, START_MS, batch


def told(runs: Runs, now_ms: int = START_MS) -> tuple[Status, str]:
    (watched,) = runs.watched(now_ms)
    return watched.health.status, watched.health.reason


def in_the_log(folder: Path, now_ms: int = START_MS) -> tuple[Status, str]:
    (log,) = read_logs(folder)
    health = log.watched(now_ms).health
    return health.status, health.reason


def events(folder: Path) -> list[tuple[str, str]]:
    lines = (json.loads(line) for line in (folder / (QUERY + SUFFIX)).open())
    return [(line["event"], line["run_id"]) for line in lines]


@pytest.mark.parametrize("late", [(), ("batch",), ("idle",), ("batch", "idle")])
def test_late_events_of_the_previous_run_change_nothing(
    tmp_path: Path, late: tuple[str, ...]
) -> None:
    runs = Runs(MetricsLog(tmp_path))
    runs.batch(batch(0), START_MS)
    runs.started(QUERY, "run-2", START_MS + 1)
    if "batch" in late:
        runs.batch(batch(1), START_MS + 2)
    if "idle" in late:
        runs.lives(QUERY, RUN, START_MS + 2)
    assert told(runs)[0] is in_the_log(tmp_path)[0] is Status.OK
    runs.ended(QUERY, RUN, None, START_MS + 2)
    assert told(runs)[0] is in_the_log(tmp_path)[0] is Status.OK
    runs.ended(QUERY, "run-2", "boom", START_MS + 3)
    assert told(runs) == in_the_log(tmp_path) == (Status.STOPPED, "boom")


@pytest.mark.parametrize("told_late", [False, True])
def test_a_query_that_fails_repeatedly_counts_as_stopped(tmp_path: Path, told_late: bool) -> None:
    """Its start event proves nothing; Spark may report the failure after the next start."""
    runs = Runs(MetricsLog(tmp_path))
    runs.batch(batch(0), START_MS)
    for n in range(1, 6):
        before, now_ms = RUN if n == 1 else f"run-{n - 1}", START_MS + 60_000 * n
        steps = [
            lambda: runs.ended(QUERY, before, "boom", now_ms),  # noqa: B023
            lambda: runs.started(QUERY, f"run-{n}", now_ms + 1),  # noqa: B023
        ]
        for step in reversed(steps) if told_late else steps:
            step()
        times = f"failed {n} times in a row: " if n > 1 else ""
        why = f"{times}boom; started again, no micro-batch since"
        assert told(runs, now_ms + 2) == in_the_log(tmp_path, now_ms + 2) == (Status.STOPPED, why)
    # A failure reported while the next run works is past.
    runs.batch(batch(1, run_id="run-5"), now_ms + 3)
    runs.ended(QUERY, "run-4", "boom", now_ms + 4)
    assert told(runs, now_ms + 5)[0] is in_the_log(tmp_path, now_ms + 5)[0] is Status.OK
    runs.ended(QUERY, "run-5", "boom", now_ms + 6)
    assert told(runs) == in_the_log(tmp_path) == (Status.STOPPED, "boom")


def test_events_that_are_reported_twice_count_once(tmp_path: Path) -> None:
    """A listener that was added twice, and two listeners that share a folder."""
    runs, other = Runs(MetricsLog(tmp_path)), Runs(MetricsLog(tmp_path))
    for n in range(3):
        assert runs.batch(batch(n), START_MS + n)
        assert not runs.batch(batch(n), START_MS + n)
        assert other.batch(batch(n), START_MS + n)
    assert told(runs)[0] is in_the_log(tmp_path)[0] is Status.OK
    (log,) = read_logs(tmp_path)
    assert [one.batch_id for _, one in log.batches] == [0, 1, 2]
    for one in (runs, other):
        one.ended(QUERY, RUN, "boom", START_MS + 3)
    assert told(runs) == in_the_log(tmp_path) == (Status.STOPPED, "boom")
    # Another run that does a number again did go back.
    runs.batch(batch(1, run_id="run-2"), START_MS + 4)
    assert told(runs)[0] is in_the_log(tmp_path)[0] is Status.REWOUND


def test_a_restarted_query_without_input_counts_as_running(tmp_path: Path) -> None:
    runs = Runs(MetricsLog(tmp_path))
    runs.batch(batch(0), START_MS)
    runs.ended(QUERY, RUN, "boom", START_MS + 1)
    assert told(runs) == in_the_log(tmp_path) == (Status.STOPPED, "boom")
    # In the same process or in another one.
    for n, again in enumerate((runs, Runs(MetricsLog(tmp_path))), 2):
        again.started(QUERY, f"run-{n}", START_MS + n)
        again.lives(QUERY, f"run-{n}", START_MS + n)
        assert in_the_log(tmp_path)[0] is Status.OK
        again.batch(batch(n, run_id=f"run-{n}"), START_MS + n)
        assert told(again)[0] is Status.OK
        again.ended(QUERY, f"run-{n}", "boom", START_MS + n)
    assert events(tmp_path) == [
        (event, run)
        for run in (RUN, "run-2", "run-3")
        for event in ("started", *(["idle"] if run != RUN else []), "batch", "ended")
    ]  # fmt: skip


def test_a_listener_added_later_learns_of_the_run_by_its_micro_batch(tmp_path: Path) -> None:
    MetricsLog(tmp_path).batch(batch(0), START_MS)
    runs = Runs(MetricsLog(tmp_path))
    runs.batch(batch(1, run_id="run-2"), START_MS + 1)
    runs.batch(batch(2, run_id="run-2"), START_MS + 2)
    assert events(tmp_path)[2:] == [("started", "run-2"), ("batch", "run-2"), ("batch", "run-2")]
    # The end of a run of which nothing else was heard counts as well.
    later = Runs(MetricsLog(tmp_path))
    later.ended(QUERY, "run-2", "boom", START_MS + 3)
    assert in_the_log(tmp_path) == (Status.STOPPED, "boom")


def test_queries_of_another_kind_leave_no_trace(tmp_path: Path) -> None:
    runs = Runs(MetricsLog(tmp_path))
    for n in range(3):
        runs.lives(f"other-{n}", RUN, START_MS)
        runs.ended(f"other-{n}", RUN, None, START_MS)
    assert runs.watched(START_MS) == []
    assert not list(tmp_path.iterdir())
    assert not runs._live


def test_the_history_of_queries_and_micro_batches_is_bounded() -> None:
    runs = Runs()
    for n in range(HISTORY + 5):
        runs.batch(batch(n), START_MS + n)
    for n in range(MAX_QUERIES - 1):
        runs.batch(batch(0, query_id=f"q{n}"), START_MS)
    assert len(runs._queries[QUERY].batches) == HISTORY
    runs.batch(batch(0, query_id="one more"), START_MS)
    named: list[Watched] = runs.watched(START_MS)
    assert len(named) == MAX_QUERIES
    assert QUERY not in {one.query_id for one in named}


def test_a_scheduled_job_is_well_between_two_runs(tmp_path: Path) -> None:
    runs = Runs(MetricsLog(tmp_path))
    for n in range(3):
        at_ms = START_MS + HOUR_MS * n
        runs.started(QUERY, f"run-{n}", at_ms)
        runs.batch(batch(n, run_id=f"run-{n}"), at_ms)
        at_ms += 5000
        runs.ended(QUERY, f"run-{n}", None, at_ms)
        well = Status.OK if n else Status.STOPPED
        assert told(runs, at_ms + HOUR_MS)[0] is in_the_log(tmp_path, at_ms + HOUR_MS)[0] is well
    overdue = (Status.STOPPED, "silent for 02:00:01")
    late_ms = at_ms + 2 * HOUR_MS + 1000
    assert told(runs, late_ms) == in_the_log(tmp_path, late_ms) == overdue
    # One that had nothing to do is a run as well.
    runs.started(QUERY, "run-3", late_ms)
    runs.ended(QUERY, "run-3", None, late_ms)
    assert told(runs, late_ms)[0] is Status.OK
