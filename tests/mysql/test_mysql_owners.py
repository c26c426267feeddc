"""Frozen owners, lost replies, crashes and other drivers: each row is in the table once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from dedup.errors import ConfigError, DataError, SinkError
from dedup.sinks.kit.database import _free, give_back
from dedup.sinks.kit.slots import KitSlots
from dedup.sinks.mysql.connections import connected
from dedup.sinks.protocol import Fenced, PublishedSlice
from dedup.testing import faults
from dedup.testing.sinks import QUERY, once
from tests.mysql.server import Server
from tests.mysql.tables import HARMS, Sink, Where, as_user, batch_of, commits, run
from tests.support.connections import forget_connections
from tests.support.needs import long, some_long
from tests.support.processes import stands_still
from tests.support.proxy import Harm, Proxy
from tests.support.waiting import wait_until


@pytest.fixture
def sink(where: Where, tmp_path: Path) -> Sink:
    made = Sink(where, tmp_path)
    made.batch("run1", 0, [0], [1])
    return made


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made
    forget_connections()


def handle(sink: Sink) -> KitSlots:
    return sink.work.slots(QUERY)


def test_two_drivers_of_one_process_are_two_owners(sink: Sink) -> None:
    """A stopped start may still run its function when the next one publishes."""
    old, new = handle(sink), handle(sink)
    old.acquire([0])
    new.acquire([0])
    with pytest.raises(Fenced, match="slot 0 has another owner"):
        old.slot(0).begin()
    new.slot(0).begin()
    new.close()


def test_a_session_that_reuses_the_number_of_an_owner_is_not_ended(
    where: Where, tmp_path: Path
) -> None:
    """A restarted server counts sessions from 1. Here another session holds the lock."""
    sink = Sink(where, tmp_path, timeout_seconds="1")
    sink.batch("run1", 0, [0], [1])
    with pymysql.connect(**where) as bystander, pymysql.connect(**where) as stranger:
        run(where, f"UPDATE dedup_markers SET holder = '{bystander.thread_id()} before'")
        stranger.cursor().execute("SELECT * FROM dedup_markers FOR UPDATE")
        with pytest.raises(SinkError, match="Lock wait timeout exceeded"):
            sink.task("run1", 1, 0, [2])
        bystander.ping(reconnect=False)


POINTS = ["kit.begun", "kit.rows.sent", "kit.marker.after", "kit.commit.before"]


@pytest.mark.parametrize("point", some_long(POINTS, "kit.marker.after"))
def test_a_frozen_process_commits_nothing_when_it_wakes(
    sink: Sink, armed: Path, point: str
) -> None:
    """The next start ends its session after a second."""
    sink.batch("run1", 1, [2], [3])
    faults.arm(armed, point, "freeze")
    pid = os.fork()
    if not pid:
        with suppress(SinkError):
            sink.task("run1", 2, 0, [4])
            os._exit(2)
        os._exit(0)
    assert wait_until(lambda: stands_still(pid))
    assert [name for name, _, _ in faults.fired(armed)] == [point]
    sink.forget()
    sink.batch("run2", 2, [4], [5])
    assert sink.numbers() == once(6)
    os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    sink.batch("run2", 3, [6], [7])
    assert sink.numbers() == once(8)


@pytest.mark.parametrize("harm", HARMS)
def test_a_tasks_commit_without_a_reply_loses_and_repeats_nothing(
    server: Server, where: Where, tmp_path: Path, proxy: Proxy, harm: Harm
) -> None:
    sink = Sink(server.by_port(where["database"], proxy.port), tmp_path)
    sink.batch("run1", 0, [0], [1])
    fault = proxy.strike(harm, commits)
    answers = []
    try:
        answers.append(sink.task("run1", 1, 0, [2]))
    except SinkError:  # Spark retries the task
        answers.append(sink.task("run1", 1, 0, [2]))
    fault.wait()
    if harm is Harm.HOLD:
        fault.release()
    assert isinstance(answers[0].slice, PublishedSlice)
    sink.finish([*answers, sink.task("run1", 1, 1, [3])])
    sink.batch("run1", 2, [4], [5])
    assert sink.numbers() == once(6)


#: Modes and the number of commits before the one that has no answer.
COMMITS = [("atomic", 1), ("atomic", 2), ("atomic", 3), ("append", 0), ("append", 1), ("append", 3)]


@pytest.mark.parametrize(
    ("mode", "commit"), [("atomic", 0), ("append", 2), *(long(*each) for each in COMMITS)]
)
@pytest.mark.parametrize("harm", some_long(HARMS, Harm.HOLD))
def test_a_drivers_commit_without_a_reply_loses_and_repeats_nothing(
    server: Server, where: Where, tmp_path: Path, proxy: Proxy, harm: Harm, commit: int, mode: str
) -> None:
    by_proxy = server.by_port(where["database"], proxy.port)
    Sink(where, tmp_path, mode=mode).batch("run1", 0, [0], [1])
    sink = Sink(by_proxy, tmp_path, mode=mode)
    answers = sink.tasks("run2", 1, [2], [3])
    fault = proxy.strike(harm, commits, after=commit)
    try:
        sink.finish(answers)
    except SinkError:
        sink.batch("run3", 1, [2], [3])
    proxy.disarm()
    if mode == "append" or commit < 2:
        fault.wait()
    if harm is Harm.HOLD and fault.fired.is_set():
        fault.release()
    sink.batch("run3", 2, [4], [5])
    assert sink.numbers() == once(6)


def test_a_commit_whose_reply_never_comes_times_out_and_is_found(
    server: Server, where: Where, tmp_path: Path, proxy: Proxy
) -> None:
    """The connection stays open, so only a time limit helps."""
    by_proxy = server.by_port(where["database"], proxy.port) | {"read_timeout": 1}
    sink = Sink(by_proxy, tmp_path)
    sink.batch("run1", 0, [0], [1])
    fault = proxy.strike(Harm.LOSE_REPLY, commits)
    sink.task("run1", 1, 0, [2])
    fault.wait()
    sink.batch("run1", 1, [2], [3])
    assert sink.numbers() == once(4)


def test_a_server_crash_in_a_transaction_loses_nothing(server: Server, sink: Sink) -> None:
    def rows() -> Iterator[int]:
        yield 2
        server.crash()
        server.start()
        yield 3

    with pytest.raises(SinkError, match="Spark retries the task"):
        sink.task("run1", 1, 0, rows())
    sink.batch("run1", 1, [2, 3], [4])
    assert sink.numbers() == once(5)


def test_a_transaction_opens_with_the_first_row(sink: Sink, where: Where) -> None:
    """Spark may compute for longer than a server or proxy keeps idle transactions."""
    locked = []

    def rows() -> Iterator[int]:
        run(where, "SELECT * FROM dedup_markers FOR UPDATE NOWAIT")
        yield 2
        with pytest.raises(pymysql.OperationalError, match="Lock wait") as error:
            run(where, "SELECT * FROM dedup_markers FOR UPDATE NOWAIT")
        locked.append(error)
        yield 3

    sink.task("run1", 1, 0, rows())
    assert locked
    assert sink.numbers() == once(4)


IDLE = ["wait_timeout", "idle_transaction_timeout", "idle_write_transaction_timeout",
        "idle_readonly_transaction_timeout"]  # fmt: skip


def test_idle_limits_of_the_server_do_not_end_a_transaction(sink: Sink, where: Where) -> None:
    forget_connections()
    run(where, *(f"SET GLOBAL {name} = 1" for name in IDLE))
    try:
        idle = pymysql.connect(**where)
        sink.task("run1", 1, 0, (time.sleep(n) or n for n in (2, 3)))
        with pytest.raises(pymysql.Error):  # the limits are in force
            idle.ping(reconnect=False)
    finally:
        run(where, *(f"SET GLOBAL {name} = DEFAULT" for name in IDLE))
    assert sink.numbers() == once(4)


def test_a_session_that_ends_while_spark_computes_is_explained(sink: Sink, where: Where) -> None:
    """A proxy ends it, whose limits no session can change. It may end kept connections, too."""
    ask = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> "

    def end() -> None:
        for (number,) in run(where, f"{ask} CONNECTION_ID()"):
            run(where, f"KILL {number}")

    def rows() -> Iterator[int]:
        yield 2
        time.sleep(1.1)
        end()
        yield 3

    with pytest.raises(
        SinkError, match=r"the transaction waited \d s for rows of Spark\. If .* raise its limit"
    ):
        sink.task("run1", 1, 0, rows())
    sink.task("run1", 1, 0, [2])
    end()
    sink.batch("run1", 1, [2], [3])
    assert sink.numbers() == once(4)


def test_the_sink_waits_for_a_server_that_restarts(server: Server, sink: Sink) -> None:
    server.crash()
    starter = threading.Timer(0.5, server.start)
    starter.start()
    sink.task("run1", 1, 0, [2])
    starter.join()
    sink.batch("run1", 1, [2], [3])
    assert sink.numbers() == once(4)


def test_a_server_that_was_restored_from_a_backup_is_refused(sink: Sink, where: Where) -> None:
    backup = run(where, "SELECT marker, marker_key FROM dedup_markers")
    sink.batch("run1", 1, [2], [3])
    for each in backup:
        with pymysql.connect(**where, autocommit=True) as connection:
            connection.cursor().execute(
                "UPDATE dedup_markers SET marker = %s WHERE marker_key = %s", each
            )
    with pytest.raises(SinkError, match=r"lost what it had committed: slice 0 .* micro-batch 1"):
        sink.task("run1", 2, 0, [4])
    assert sink.numbers() == once(4)


@pytest.mark.parametrize("parts", [1, 6])
def test_writers_of_the_same_keys_write_each_row_once(
    where: Where, tmp_path: Path, parts: int
) -> None:
    """Each takes the rows of a record batch in the order of their keys.

    Several batches of a slice may deadlock. Then Spark repeats the task.
    """
    sink = Sink(where, tmp_path, mode="upsert", key="n")
    sink.batch("run1", 0, [0], [0], [0])
    numbers, width = list(range(3000)), 3000 // parts
    ended: list[str] = []

    def work(slot: int, order: list[int]) -> None:
        for batch_id in range(1, 4):
            done = False
            while not done:
                rows = (batch_of(order[n : n + width], "t") for n in range(0, 3000, width))
                try:
                    done = sink.send("run1", batch_id, slot, rows) is not None
                except SinkError as error:
                    ended.append(str(error))

    orders = [numbers, numbers[::-1], numbers[1500:] + numbers[:1500]]
    with ThreadPoolExecutor(3) as pool:
        for running in [pool.submit(work, *each) for each in enumerate(orders)]:
            running.result()
    assert sink.numbers() == once(3000)
    assert parts > 1 or not ended
    assert all("Deadlock found" in error for error in ended)


def test_a_fork_has_its_own_connections(sink: Sink) -> None:
    options = sink.work.options
    mine = connected(options)
    give_back(options.connect, mine)
    pid = os.fork()
    if not pid:
        try:
            os._exit(connected(options).thread_id() == mine.thread_id())
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert connected(options) is mine
    give_back(options.connect, mine)


def test_a_connection_that_another_thread_took_first_is_replaced(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread takes the last free connection between the check and the pop."""

    class Emptied(list[Any]):
        def __bool__(self) -> bool:
            return True

    monkeypatch.setitem(_free, sink.work.options.connect, Emptied())
    connected(sink.work.options).close()


def test_connections_are_reused(sink: Sink, where: Where) -> None:
    ask = "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE()"
    sink.batch("run1", 1, [2], [3])
    before = run(where, "SHOW STATUS LIKE 'Connections'")
    for batch_id in range(2, 5):
        sink.batch("run1", batch_id, [batch_id * 2], [batch_id * 2 + 1])
    assert int(run(where, "SHOW STATUS LIKE 'Connections'")[0][1]) == int(before[0][1]) + 1
    assert run(where, ask)[0][0] <= 3


def test_a_user_who_may_not_create_tables_uses_an_existing_markers_table(
    where: Where, tmp_path: Path
) -> None:
    Sink(where, tmp_path / "admin")
    database = where["database"]
    poor = as_user(
        where, f"SELECT, INSERT ON {database}.numbers",
        f"SELECT, INSERT, UPDATE ON {database}.dedup_markers",
    )  # fmt: skip
    run(where, "DROP TABLE dedup_markers")
    with pytest.raises(ConfigError, match=r"CREATE command denied .*dedup_markers.*privileges"):
        Sink(poor, tmp_path)
    Sink(where, tmp_path / "admin")
    Sink(poor, tmp_path).batch("run1", 0, [0], [1])
    run(where, f"REVOKE INSERT ON numbers FROM {database}@localhost")
    forget_connections()
    with pytest.raises(ConfigError, match="INSERT command denied"):
        Sink(poor, tmp_path).batch("run1", 1, [2])


def test_a_lock_of_another_user_is_named(where: Where, tmp_path: Path, sink: Sink) -> None:
    """Only the owner of a session, or an administrator, may end it."""
    poor = as_user(where, f"ALL ON {where['database']}.*")
    frozen = handle(sink)
    frozen.acquire([0])
    frozen.slot(0).begin()
    other = Sink(poor, tmp_path)
    other.forget()
    with pytest.raises(ConfigError, match="You are not owner of thread"):
        other.batch("run2", 1, [2], [3])
    frozen.close()
    assert sink.numbers() == once(2)


def test_an_error_of_a_record_keeps_the_slot(sink: Sink, where: Where) -> None:
    run(where, "ALTER TABLE numbers ADD CONSTRAINT no CHECK (n <> 7)")
    with pytest.raises(DataError, match=r"CONSTRAINT `no` failed.*The record is {\"n\": 7"):
        sink.task("run1", 1, 0, [2, 7])
    sink.batch("run1", 1, [2], [3])
    assert sink.numbers() == once(4)
