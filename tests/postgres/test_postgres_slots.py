"""Rows are in the table once, despite faults of tasks, drivers, network and server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dedup.errors import SinkError
from dedup.sinks.protocol import PublishedSlice, StagedSlice
from tests.postgres.server import Server
from tests.postgres.tables import HARMS, Sink, batch_of, commits, once, run
from tests.support.connections import forget_connections
from tests.support.frozen_task import frozen_task
from tests.support.needs import some_long
from tests.support.proxy import Harm, Proxy


@pytest.fixture
def sink(dsn: str, tmp_path: Path) -> Sink:
    """With one micro-batch published by the driver and one by its tasks."""
    made = Sink(dsn, tmp_path)
    made.batch("run1", 0, [0, 1], [2])
    made.batch("run1", 1, [3], [4, 5])
    return made


def test_tasks_publish_after_the_first_micro_batch_of_a_start(sink: Sink) -> None:
    assert isinstance(sink.task("run1", 2, 0, [6]).slice, PublishedSlice)
    assert isinstance(sink.task("run2", 2, 0, [6]).slice, StagedSlice)


def test_the_address_of_the_server_may_change(sink: Sink, tmp_path: Path, dsn: str) -> None:
    moved = Sink(dsn.replace("127.0.0.1", "localhost"), tmp_path)
    moved.batch("run2", 1, [3], [4, 5])
    moved.batch("run2", 2, [6])
    assert sink.numbers() == once(7)


@pytest.mark.parametrize("before", [[], [6]], ids=["before its first row", "between rows"])
def test_a_frozen_attempt_never_publishes_after_its_successor(
    sink: Sink, tmp_path: Path, dsn: str, before: list[int]
) -> None:
    """With rows it holds the slot's lock until its successor ends its session."""
    locked = (
        "SELECT count(*) FROM pg_locks JOIN pg_class ON relation = pg_class.oid "
        "WHERE relname = 'dedup_markers' AND mode = 'RowShareLock' "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with frozen_task(sink, 2, before, [7]) as failed:
        assert run(dsn, locked) == [(len(before),)]
        # Another DSN: what it knows is its own.
        Sink(f"{dsn} options=", tmp_path).task("run1", 2, 0, [*before, 7])
        assert run(dsn, locked) == [(0,)]
    # Before its first row it has no transaction, so it then finds its slice published.
    assert ["it published nothing" in str(error) for error in failed] == [True] * len(before)
    sink.task("run1", 2, 1, [6, 8] if not before else [8])
    assert sink.numbers() == once(9)


def test_the_number_of_slots_does_not_change_the_number_of_locks(sink: Sink) -> None:
    """All sessions share the server's table of locks, which has a fixed size."""
    of_sink = sink.work.custom
    transaction = of_sink.begin()
    held = []
    for slots in (3, 60):
        for number in range(-1, slots):
            of_sink.read_marker(transaction, f"{sink.query}/postgres/{number}")
        mine = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"
        held.append(transaction.connection.execute(mine).fetchone())
    of_sink.rollback(transaction)
    assert held[0] == held[1]


def test_a_task_that_loses_its_session_reports_the_cause(dsn: str, tmp_path: Path) -> None:
    sink = Sink(dsn, tmp_path)
    sink.batch("run1", 0, [9])

    def rows() -> Iterator[int]:
        yield 0
        copies = "usename = current_user AND query LIKE 'COPY%' AND state <> 'idle'"
        run(dsn, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {copies}")
        yield 1

    with pytest.raises(SinkError, match=r"(?s)This attempt to write slice 0 .*terminating conn"):
        sink.task("run1", 1, 0, rows())
    sink.batch("run1", 1, [0, 1])
    assert sorted(sink.numbers()) == [0, 1, 9]


def test_two_drivers_publish_a_micro_batch_once(sink: Sink, tmp_path: Path, dsn: str) -> None:
    other = Sink(f"{dsn} options=", tmp_path, name="postgres")
    answers, theirs = sink.tasks("run2", 2, [6], [7]), other.tasks("run3", 2, [6], [7])
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(sink.finish, answers), pool.submit(other.finish, theirs)]
    failures = [each.exception() for each in done if each.exception()]
    assert [type(error) for error in failures] in ([], [SinkError]), failures
    assert sink.numbers() == once(8)


@pytest.mark.parametrize("harm", HARMS)
def test_a_tasks_commit_without_a_reply_loses_and_repeats_nothing(
    server: Server, dsn: str, tmp_path: Path, harm: Harm
) -> None:
    with Proxy(server.port) as proxy:
        sink = Sink(dsn.replace(f"port={server.port}", f"port={proxy.port}"), tmp_path)
        sink.batch("run1", 0, [0], [1])
        fault = proxy.strike(harm, commits)
        try:
            sink.task("run1", 1, 0, [2])
        except SinkError:
            assert harm is not Harm.CUT_AFTER, "a commit that is done is found out"
            sink.task("run1", 1, 0, [2])
        fault.wait()
        if harm is Harm.HOLD:
            fault.release()
        sink.batch("run1", 1, [2], [3])
        sink.batch("run1", 2, [4], [5])
        assert sink.numbers() == once(6)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("commit", some_long(range(6), 0, 1, 4))
@pytest.mark.parametrize("mode", ["append", "atomic"])
def test_a_drivers_commit_without_a_reply_loses_and_repeats_nothing(
    server: Server, dsn: str, tmp_path: Path, harm: Harm, commit: int, mode: str
) -> None:
    """This holds for each commit: of ownership, of retired slots, and of slices."""
    with Proxy(server.port) as proxy:
        through = dsn.replace(f"port={server.port}", f"port={proxy.port}")
        sink = Sink(through, tmp_path, mode=mode)
        sink.batch("run1", 0, [0], [1])
        answers = [sink.task("run2", 1, 0, [2]), sink.task("run2", 1, 1, [3])]
        fault = proxy.strike(harm, commits, after=commit)
        try:
            sink.work.complete(answers)
        except SinkError:
            sink.batch("run3", 1, [2], [3])
        proxy.disarm()
        if mode == "append" or commit < 2:
            fault.wait()
        if harm is Harm.HOLD and fault.fired.is_set():
            fault.release()
        sink.batch("run3", 2, [4], [5])
        assert sink.numbers() == once(6)


def test_a_server_crash_in_a_transaction_loses_nothing(server: Server, sink: Sink) -> None:
    def rows() -> Iterator[int]:
        yield 6
        server.crash()
        server.start()
        yield 7

    with pytest.raises(SinkError, match="it published nothing"):
        sink.task("run1", 2, 0, rows())
    sink.batch("run1", 2, [6, 7], [8])
    assert sink.numbers() == once(9)


def test_the_sink_waits_for_a_server_that_restarts(server: Server, sink: Sink) -> None:
    server.crash()
    starter = threading.Timer(1.0, server.start)
    starter.start()
    sink.task("run1", 2, 0, [6])
    starter.join()
    sink.task("run1", 2, 1, [7])
    assert sink.numbers() == once(8)


def test_a_server_that_was_restored_from_a_backup_is_refused(sink: Sink, dsn: str) -> None:
    """The process remembers what it published, for example in the same notebook."""
    backup = run(dsn, "SELECT slot, owner, marker FROM dedup_markers WHERE slot = 0")[0]
    sink.batch("run1", 2, [6], [7])
    run(dsn, f"UPDATE dedup_markers SET marker = '{backup[2]}', owner = '{backup[1]}' "
             "WHERE slot = 0")  # fmt: skip
    with pytest.raises(SinkError, match=r"lost what it had committed: slice 0 .* micro-batch 2"):
        sink.task("run1", 3, 0, [8])
    run(dsn, "TRUNCATE dedup_markers")
    with pytest.raises(SinkError, match="lost what it had committed"):
        sink.batch("run2", 3, [8])
    assert sink.numbers() == once(8)
    accepting = Sink(dsn, Path(sink.work.options.ledger).parents[1], accept_lost_markers="true")
    accepting.batch("run3", 3, [8])
    assert sink.numbers() == once(9)


def test_another_markers_table_is_refused(sink: Sink, dsn: str, tmp_path: Path) -> None:
    other = Sink(dsn, tmp_path, markers="other_markers")
    with pytest.raises(ValueError, match="Option markers is"):
        other.batch("run2", 2, [6])
    assert sink.numbers() == once(6)


def test_connections_are_reused(sink: Sink, dsn: str) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dedup%'"
    pids = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'dedup%'"
    before = run(dsn, pids)
    for batch_id in range(2, 6):
        sink.batch("run1", batch_id, [batch_id * 2 + 2], [batch_id * 2 + 3])
    assert run(dsn, pids) == before
    assert run(dsn, count)[0][0] <= 2
    forget_connections()


@pytest.mark.parametrize("run_id", ["run1", "run2"])
def test_a_full_disk_of_the_server_loses_nothing(server: Server, sink: Sink, run_id: str) -> None:
    """A publishing task and the driver fail without a row in the table, and both continue."""
    rows = [batch_of(range(n, n + 1000), "x" * 1800) for n in range(6, 12_006, 1000)]
    forget_connections()
    failed = "Spark retries the task" if run_id == "run1" else "Start the query again"
    with server.room_for(17 << 20):  # a segment of its log has 16 MiB
        with pytest.raises(SinkError, match=f"File too large.*{failed}"):
            sink.work.complete([sink.write(run_id, 2, 0, iter(rows))])
        forget_connections()
    assert sink.numbers() == once(6)
    sink.work.complete([sink.write(run_id, 2, 0, iter(rows))])
    assert sink.numbers() == once(12_006)
