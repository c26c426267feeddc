"""`check_sink` passes a right sink on both levels, and finds each common mistake."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dedup.testing import check_sink
from dedup.testing.sink_processes import Process, Processes, Start
from tests.kit.sqlite_sink import ParallelSqlite, SqliteSink, create, read, rows
from tests.support.needs import long
from tests.support.pages import snippets
from tests.support.processes import python, stands_still
from tests.support.waiting import wait_until


def outputs(kind: Callable[[str], Any], folder: Path) -> Callable[[], Any]:
    """Return what makes a sink of a kind, with a new database each time."""
    numbers = count()

    def new_sink() -> Any:
        path = str(folder / f"{next(numbers)}.db")
        create(path)
        return kind(path)

    return new_sink


@pytest.mark.slow
def test_a_sink_whose_tasks_write_passes(tmp_path: Path) -> None:
    check_sink(outputs(ParallelSqlite, tmp_path), rows=rows, read=read)


class MarkerElsewhere(SqliteSink):
    """The marker is in another database, and there at once."""

    def check(self, schema):
        with closing(sqlite3.connect(f"{self.path}-markers")) as db:
            db.execute("CREATE TABLE IF NOT EXISTS markers (key TEXT PRIMARY KEY, marker TEXT)")

    def read_marker(self, db, key):
        with closing(sqlite3.connect(f"{self.path}-markers")) as other:
            return super().read_marker(other, key)

    def write_marker(self, db, key, marker):
        with closing(sqlite3.connect(f"{self.path}-markers")) as other, other:
            super().write_marker(other, key, marker)


class RowsFirst(SqliteSink):
    """The rows are committed before the marker."""

    def write_rows(self, db, rows):
        super().write_rows(db, rows)
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")


class CommitsAgain(SqliteSink):
    """If the commit had no answer, the whole transaction is made again."""

    def begin(self):
        self.done = []
        return super().begin()

    def write_rows(self, db, rows):
        self.done.append(lambda db: super(CommitsAgain, self).write_rows(db, rows))
        super().write_rows(db, rows)

    def write_marker(self, db, key, marker):
        self.done.append(lambda db: super(CommitsAgain, self).write_marker(db, key, marker))
        super().write_marker(db, key, marker)

    def commit(self, db):
        try:
            db.execute("COMMIT")
        except sqlite3.OperationalError:
            db.close()
            again = super().begin()
            for write in self.done:
                write(again)
            super().commit(again)


class NotFenced(SqliteSink):
    """The owner reads its marker without a lock."""

    def begin(self):
        db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        db.execute("BEGIN DEFERRED")
        return db

    def read_marker(self, db, key):
        with closing(sqlite3.connect(self.path)) as other:
            return super().read_marker(other, key)


class RollbackCommits(SqliteSink):
    """As some client libraries do when a connection is closed."""

    def rollback(self, db):
        if db.in_transaction:
            db.execute("COMMIT")
        db.close()


class VisibleAtOnce(SqliteSink):
    """Readers see rows before the commit. A rollback deletes them."""

    def begin(self):
        self.written = []
        return super().begin()

    def write_rows(self, db, rows):
        db.execute("COMMIT")
        super().write_rows(db, rows)
        db.execute("BEGIN IMMEDIATE")
        self.written += rows["n"].to_pylist()

    def rollback(self, db):
        db.executemany("DELETE FROM orders WHERE n = ?", [[n] for n in self.written])
        if db.in_transaction:
            db.execute("COMMIT")
        super().rollback(db)


class NoMarker(SqliteSink):
    """No start finds a marker."""

    def read_marker(self, db, key):
        return None


class Stuck(SqliteSink):
    def begin(self):
        os.kill(os.getpid(), signal.SIGSTOP)


WRITES = "begin > read_marker > write_rows"
TWICE, PART = r"more than once: \{0: 2, 1: 2, 2: 2", "readers see part of a transaction"


@pytest.mark.parametrize(
    ("kind", "fault", "methods", "error"),
    [
        (MarkerElsewhere, "killed", f"{WRITES} > write_marker, after", r"lost \{0: 1, 1: 1, 2: 1"),
        (RowsFirst, "killed", f"{WRITES}, after", PART),
        (CommitsAgain, "connection lost", f"{WRITES} > write_marker > commit, after", TWICE),
        (NotFenced, "frozen", f"{WRITES}, before", TWICE),
        long(RollbackCommits, "connection lost", f"{WRITES}, after", r"too many \{0: 1\}"),
        long(VisibleAtOnce, "killed", f"{WRITES}, after", PART),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)  # fmt: skip
def test_a_mistake_is_found(
    kind: type[Any], fault: str, methods: str, error: str, tmp_path: Path
) -> None:
    step = rf"^{fault} in micro-batch 0, publishing: {methods} \w+ \(line \d+\): .*{error}"
    with pytest.raises(AssertionError, match=step):
        check_sink(
            outputs(kind, tmp_path), rows=rows, read=read,
            connection_error=sqlite3.OperationalError,
        )  # fmt: skip


def test_a_case_of_the_contract_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"^SinkContract\.test_a_c\w+: ConfigError: NoMarker does"
    ):
        check_sink(outputs(NoMarker, tmp_path), rows=rows, read=read)


def test_an_object_of_another_class(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="subclasses of TransactionalSink, not 'orders'"):
        check_sink(lambda: "orders", rows=rows, read=read)  # type: ignore[arg-type, return-value]


def test_frozen_processes_end_if_a_check_fails(tmp_path: Path) -> None:
    """No other process would wake them."""
    start = Start(outputs(Stuck, tmp_path)(), rows, tmp_path, "run1", 1, False)
    frozen: list[Process] = []

    def fail(processes: Processes) -> None:
        frozen.append(processes.start(start))
        assert wait_until(lambda: stands_still(frozen[0].pid), 60)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Processes([Stuck, rows]) as processes:
        fail(processes)
    assert not Path(f"/proc/{frozen[0].pid}").exists()


def test_the_test_of_the_page_passes(tmp_path: Path) -> None:
    """Also if pytest does not import it by a name that other processes could import."""
    sink, test = snippets("sinks/kit/README.md")[0], snippets("sinks/kit/README.md")[2]
    (tmp_path / "test_orders.py").write_text(f"{sink}\n\n{test}")
    done = python("-m", "pytest", "-q", "--import-mode=importlib", "test_orders.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
