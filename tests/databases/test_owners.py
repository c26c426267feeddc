"""Who may write to a slot: drivers, workers, forks and sessions, frozen ones too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dedup.errors import SinkError
from dedup.sinks.kit.database import _free
from dedup.sinks.kit.slots import KitSlots
from dedup.sinks.protocol import Aborted, Fenced, PublishedSlice
from dedup.testing.sinks import QUERY
from tests.databases.database import Database, Sink
from tests.support.frozen_task import frozen_task


def handle(sink: Sink) -> KitSlots:
    return sink.work.slots(QUERY)


def session_of(sink: Sink) -> int:
    """Return the session of the sink's next transaction."""
    transaction = sink.work.custom.begin()
    connection = getattr(transaction, "connection", transaction)
    with connection.cursor() as cursor:
        cursor.execute(sink.db.own(postgres="SELECT pg_backend_pid()",
                                   mysql="SELECT CONNECTION_ID()"))  # fmt: skip
        (session,) = cursor.fetchone()
    sink.work.custom.commit(transaction)
    return int(session)


def is_locked(db: Database) -> bool:
    """Return whether a transaction holds a slot."""
    try:
        db.run("SELECT * FROM dedup_markers FOR UPDATE NOWAIT")
    except db.error:
        return True
    return False


def test_two_drivers_of_one_process_are_two_owners(sink: Sink) -> None:
    """A stopped start may still run its function when the next one publishes."""
    old, new = handle(sink), handle(sink)
    old.acquire([0])
    new.acquire([0])
    with pytest.raises(Fenced, match="slot 0 has another owner"):
        old.slot(0).begin()
    new.slot(0).begin()
    new.close()


def test_two_drivers_publish_a_micro_batch_once(sink: Sink) -> None:
    other = Sink(sink.db.by_another_address())
    results, theirs = sink.tasks("run2", 1, [2], [3]), other.tasks("run3", 1, [2], [3])
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(sink.finish, results), pool.submit(other.finish, theirs)]
    failures = [each.exception() for each in done if each.exception()]
    assert [type(error) for error in failures] in ([], [SinkError]), failures
    sink.assert_once(4)


def test_another_markers_table_is_rejected(sink: Sink) -> None:
    other = Sink(sink.db, markers="other_markers")
    with pytest.raises(ValueError, match="Option markers is"):
        other.batch("run2", 1, [2])
    sink.assert_once(2)


@pytest.mark.parametrize("before", [[], [2]], ids=["before its first row", "between rows"])
def test_a_frozen_attempt_never_publishes_after_its_successor(
    sink: Sink, before: list[int]
) -> None:
    """With rows it holds the slot until its successor ends its session.

    Before its first row it has no transaction, because Spark may compute for longer than a server
    keeps idle transactions.
    """
    with frozen_task(sink, 1, before, [3]) as failed:
        assert is_locked(sink.db) == bool(before)
        Sink(sink.db.by_another_address()).task("run1", 1, 0, [*before, 3])
        assert not is_locked(sink.db)
    # An attempt without a transaction finds its slice published.
    assert ["it published nothing" in str(error) for error in failed] == [True] * len(before)
    sink.task("run1", 1, 1, [4] if before else [2, 4])
    sink.assert_once(5)


def test_a_frozen_session_on_a_slot_without_a_marker_is_ended(db: Database) -> None:
    """The slot has no published micro-batch, so no committed row shows who locks it."""
    sink = Sink(db)
    frozen = sink.work.custom.begin()
    sink.work.custom.read_marker(frozen, f"{QUERY}/{sink.work.name}/0")
    sink.batch("run1", 0, [0], [1])
    sink.assert_once(2)
    with pytest.raises(Aborted, match=r"terminating connection|Lost connection|gone away|killed"):
        sink.work.custom.read_marker(frozen, f"{QUERY}/{sink.work.name}/1")
    sink.work.custom.rollback(frozen)


def test_a_fork_has_its_own_connections(sink: Sink) -> None:
    mine = session_of(sink)
    pid = os.fork()
    if not pid:
        try:
            os._exit(session_of(sink) == mine)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert session_of(sink) == mine


def test_a_connection_that_another_thread_took_first_is_replaced(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread takes the last free connection between the check and the pop."""

    class Emptied(list[Any]):
        def __bool__(self) -> bool:
            return True

    (address,) = _free
    before = session_of(sink)
    monkeypatch.setitem(_free, address, Emptied())
    assert session_of(sink) != before


def test_connections_are_reused(sink: Sink) -> None:
    sink.batch("run1", 1, [2], [3])
    before = sink.db.sessions()
    for batch_id in range(2, 5):
        sink.batch("run1", batch_id, [batch_id * 2], [batch_id * 2 + 1])
    assert sink.db.sessions() == before
    assert len(before) <= 2


def test_a_commit_of_unknown_outcome_is_found_by_its_marker(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes on an intact connection; the marker shows the outcome."""
    library = sink.db.library
    commit = library.Connection.commit

    def unknown(connection: Any) -> None:
        commit(connection)
        monkeypatch.undo()
        raise library.OperationalError("no answer")

    def rows() -> Iterator[int]:
        yield 2
        monkeypatch.setattr(library.Connection, "commit", unknown)

    answer = sink.task("run1", 1, 0, rows())
    assert isinstance(answer.slice, PublishedSlice)
    assert library.Connection.commit is commit, "the fault has struck"
    sink.assert_once(3)
