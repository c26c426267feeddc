"""Who may write to a slot: drivers and workers of one process, forks, roles and sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dedup.sinks.kit.database import _free
from dedup.sinks.kit.slots import KitSlots
from dedup.sinks.postgres.connections import connected, give_back, transaction
from dedup.sinks.protocol import Aborted, Fenced, PublishedSlice
from tests.postgres.tables import QUERY, Sink, once, run
from tests.support.connections import forget_connections


@pytest.fixture
def sink(dsn: str, tmp_path: Path) -> Sink:
    made = Sink(dsn, tmp_path)
    made.batch("run1", 0, [0], [1])
    return made


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


def test_a_frozen_session_on_a_slot_without_a_marker_is_ended(dsn: str, tmp_path: Path) -> None:
    """The slot has no published micro-batch, so no row shows who locks it."""
    sink = Sink(dsn, tmp_path)
    frozen = sink.work.custom.begin()
    sink.work.custom.read_marker(frozen, f"{QUERY}/postgres/0")
    sink.batch("run1", 0, [0], [1])
    assert sink.numbers() == once(2)
    with pytest.raises(Aborted, match="terminating connection"):
        sink.work.custom.read_marker(frozen, f"{QUERY}/postgres/1")
    sink.work.custom.rollback(frozen)


def test_a_fork_has_its_own_connections(sink: Sink, dsn: str) -> None:
    mine = connected(dsn, 5)
    give_back(dsn, mine)
    pid = os.fork()
    if not pid:
        try:
            theirs = connected(dsn, 5)
            os._exit(theirs.info.backend_pid == mine.info.backend_pid)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert connected(dsn, 5) is mine
    mine.close()


def test_a_connection_that_another_thread_took_first_is_replaced(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread takes the last free connection between the check and the pop."""

    class Emptied(list[psycopg.Connection[tuple[object, ...]]]):
        def __bool__(self) -> bool:
            return True

    monkeypatch.setitem(_free, dsn, Emptied())
    connected(dsn, 5).close()


def test_synchronous_commit_is_turned_on_for_the_sinks_transactions(sink: Sink, dsn: str) -> None:
    """Otherwise a crash could lose a micro-batch that Spark has committed."""
    run(dsn, "ALTER ROLE CURRENT_USER SET synchronous_commit = off")
    forget_connections()
    with transaction(sink.work.options) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    for given, used in (("off", "on"), ("remote_apply", "remote_apply")):
        run(dsn, f"ALTER ROLE CURRENT_USER SET synchronous_commit = {given}")
        forget_connections()
        begun = sink.work.custom.begin()
        assert begun.connection.execute("SHOW synchronous_commit").fetchone() == (used,)
        sink.work.custom.rollback(begun)


@pytest.mark.parametrize("error", ["ConnectionException", "StatementCompletionUnknown"])
def test_a_commit_of_unknown_outcome_is_found_by_its_marker(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """The error comes on an intact connection; the marker shows the outcome."""
    commit = psycopg.Connection.commit

    def unknown(connection: psycopg.Connection[tuple[object, ...]]) -> None:
        commit(connection)
        monkeypatch.undo()
        raise getattr(psycopg.errors, error)("who knows")

    def rows() -> Iterator[int]:
        yield 2
        monkeypatch.setattr(psycopg.Connection, "commit", unknown)

    answer = sink.task("run1", 1, 0, rows())
    assert isinstance(answer.slice, PublishedSlice)
    assert psycopg.Connection.commit is commit, "the fault has struck"
    assert sink.numbers() == once(3)


def test_a_frozen_attempt_of_another_role_is_disconnected(database: str, tmp_path: Path) -> None:
    """The session acts as a role that is not its user."""
    run(database, "CREATE ROLE acting", "CREATE ROLE worker LOGIN IN ROLE acting")
    name = database.split("dbname=")[1].split()[0]
    run(database, f"GRANT ALL ON DATABASE {name} TO acting", "GRANT ALL ON SCHEMA public TO acting")
    try:
        run(
            database,
            "CREATE TABLE numbers (n integer, text text)",
            "ALTER TABLE numbers OWNER TO acting",
        )
        theirs = Sink(f"{database} user=worker options='-c role=acting'", tmp_path)
        theirs.batch("run1", 0, [0], [1])
        frozen = handle(theirs)
        frozen.acquire([0])
        frozen.slot(0).begin()
        theirs.forget()
        theirs.batch("run2", 1, [2], [3])
        frozen.close()
        assert theirs.numbers() == once(4)
    finally:
        forget_connections()
        run(
            database,
            "DROP OWNED BY acting",
            "DROP OWNED BY worker",
            "DROP ROLE worker",
            "DROP ROLE acting",
        )
