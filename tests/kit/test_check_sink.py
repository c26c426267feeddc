"""`check_sink` passes a right sink on both levels, and finds each common mistake."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dedup.errors import ConfigError
from dedup.sinks import WriteAheadSink
from dedup.testing import check_sink
from dedup.testing.sink_processes import Process, Processes, Start
from tests.kit.line_sink import LineSink, NewestRows, read_each_key, read_each_line, read_newest
from tests.kit.sqlite_sink import ParallelSqlite, SqliteSink, create, read, rows
from tests.support.needs import long
from tests.support.pages import snippets
from tests.support.processes import python, stands_still
from tests.support.waiting import wait_until


def outputs(kind: Callable[[Any], Any], folder: Path) -> Callable[[], Any]:
    """Return what makes a sink of a kind, with a new database or file each time."""
    numbers = count()

    def new_sink() -> Any:
        path = folder / f"{next(numbers)}.db"
        if not isinstance(kind, type) or not issubclass(kind, WriteAheadSink):
            create(str(path))
        return kind(path)

    return new_sink


@pytest.mark.slow
def test_a_right_sink_whose_tasks_write_passes(tmp_path: Path) -> None:
    check_sink(outputs(ParallelSqlite, tmp_path), rows=rows, read=read)


@pytest.mark.parametrize(
    ("kind", "read", "readers_see"),
    [(NewestRows, read_newest, "newest"), long(LineSink, read_each_key, "once"),
     long(LineSink, read_each_line, "repeats")],
)  # fmt: skip
def test_a_right_sink_without_transactions_passes(
    kind: type[Any], read: Any, readers_see: Any, tmp_path: Path
) -> None:
    check_sink(outputs(kind, tmp_path), rows=rows, read=read, readers_see=readers_see)


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


class TimedKeys(LineSink):
    def send(self, rows, keys, versions):
        super().send(rows, [f"{key}-{time.time_ns()}" for key in keys], versions)


class CountedKeys(LineSink):
    sent = 0

    def send(self, rows, keys, versions):
        super().send(rows, [f"{os.getpid()}-{self.sent + n}" for n in range(len(keys))], versions)
        self.sent += len(keys)


class SentLater(LineSink):
    """A row is stored while the next ones are sent."""

    waiting = None

    def send(self, rows, keys, versions):
        self.flush()
        self.waiting = rows, keys, versions

    def flush(self):
        waiting, self.waiting = self.waiting, None
        if waiting:
            super().send(*waiting)

    def lines(self):
        self.flush()
        return super().lines()


class HidesErrors(LineSink):
    def send(self, rows, keys, versions):
        with suppress(OSError):
            super().send(rows, keys, versions)


class RetriesInside(LineSink):
    """As many client libraries do."""

    def send(self, rows, keys, versions):
        try:
            super().send(rows, keys, versions)
        except OSError:
            super().send(rows, keys, versions)


class TimedVersions(NewestRows):
    def send(self, rows, keys, versions):
        super().send(rows, keys, [time.time_ns() for _ in versions])


class LowVersions(NewestRows):
    """The column takes 32 bits."""

    def send(self, rows, keys, versions):
        super().send(rows, keys, [version % 2**32 for version in versions])


class TextVersions(NewestRows):
    """The system compares versions as text, so 9 is greater than 10."""

    def send(self, rows, keys, versions):
        super().send(rows, keys, [str(version) for version in versions])


class HoldsConnection(NewestRows):
    def __init__(self, path):
        super().__init__(path)
        self.db = sqlite3.connect(path)


class LooksThenWrites(NewestRows):
    """Another process may write a newer version in between."""

    def send(self, rows, keys, versions):
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            for n, version in zip(rows["n"].to_pylist(), versions, strict=True):
                known = db.execute("SELECT version FROM newest WHERE key = ?", [n % 50]).fetchone()
                if known is None or known[0] < version:
                    db.execute("REPLACE INTO newest VALUES (?, ?, ?)", [n % 50, n, version])


TWICE, PART = r"too many \{0: 1, 1: 1, 2: 1\}", "readers see part of a transaction"


@pytest.mark.parametrize(
    ("kind", "where", "error"),
    [
        (MarkerElsewhere, "killed .* in write_marker after ", r"lost \{0: 1,"),
        (RowsFirst, "killed .* in write_rows after .* a transaction is open", PART),
        long(CommitsAgain, "connection lost .* in commit after .* is about to be committed", TWICE),
        (NotFenced, "frozen .* when the transaction is about to be committed",
         "the next start|too many"),
        long(RollbackCommits, "connection lost .* in write_rows after ", r"too many \{0: 1\}"),
        long(VisibleAtOnce, "killed .* in write_rows after ", PART),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)  # fmt: skip
def test_a_mistake_in_a_sink_is_found(
    kind: type[Any], where: str, error: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=f"^{where}.*: .*({error})"):
        check_sink(
            outputs(kind, tmp_path), rows=rows, read=read,
            connection_error=sqlite3.OperationalError,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "read", "readers_see", "error"),
    [
        (TimedKeys, read_each_key, "once", r"put_back_as_a_whole: lost \{\}, too many \{1: 1\}"),
        long(CountedKeys, read_each_key, "once",
             r"put_back_as_a_whole: lost \{\}, too many \{1: 1\}"),
        (LineSink, read_each_line, "once", r"put_back_as_a_whole: lost \{\}, too many \{1: 1\}"),
        (SentLater, read_each_key, "once", r"^without a fault: lost \{5: 1, 11: 1\}"),
        (HidesErrors, read_each_key, "once",
         r"^connection lost .* in send before .*lost \{0: 1\}"),
        long(RetriesInside, read_each_line, "repeats",
         r"^connection lost .* in send after .* too many \{0: 1\} .* 0 rows were reported"),
        (TimedVersions, read_newest, "newest",
         r"^frozen in micro-batch 0, in send, .*: lost \{50: 1\}, too many \{0: 1\}"),
        (LowVersions, read_newest, "newest",
         r"^without a fault: lost \{50: 1, 53: 1, 56: 1\}, too many \{0: 1, 3: 1, 6: 1\}"),
        (TextVersions, read_newest, "newest",
         r"^without a fault: lost \{56: 1\}, too many \{6: 1\}"),
        long(LooksThenWrites, read_newest, "newest",
         r"^frozen .* in send after \w+ .*: lost \{50: 1\}, too many \{0: 1\}"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)  # fmt: skip
def test_a_mistake_in_a_sink_without_transactions_is_found(
    kind: type[Any], read: Any, readers_see: Any, error: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=error):
        check_sink(outputs(kind, tmp_path), rows=rows, read=read, readers_see=readers_see)


def test_a_failed_case_of_the_contract_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"^SinkContract\.test_a_c\w+: ConfigError: NoMarker does"
    ):
        check_sink(outputs(NoMarker, tmp_path), rows=rows, read=read)


def test_an_object_of_another_class_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'orders' must be an object of a subclass of"):
        check_sink(lambda: "orders", rows=rows, read=read)  # type: ignore[arg-type, return-value]


def test_an_unknown_value_of_readers_see_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="readers_see='Newest' must be one of once, newest, rep"):
        check_sink(
            outputs(NewestRows, tmp_path), rows=rows, read=read_newest,
            readers_see="Newest",  # type: ignore[arg-type]
        )  # fmt: skip


def test_an_object_that_holds_a_connection_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"HoldsConnection does not pickle.* connections in send"):
        check_sink(outputs(HoldsConnection, tmp_path), rows=rows, read=read_newest)


def test_an_output_that_is_not_new_is_reported(tmp_path: Path) -> None:
    sink = LineSink(tmp_path / "log")
    with pytest.raises(AssertionError, match=r"must return a new and empty output .* finds \{0: 1"):
        check_sink(lambda: sink, rows=rows, read=read_each_key)


def test_frozen_processes_end_if_a_check_fails(tmp_path: Path) -> None:
    """No other process would wake them."""
    start = Start(outputs(Stuck, tmp_path)(), rows, tmp_path, False)
    frozen: list[Process] = []

    def fail(processes: Processes) -> None:
        frozen.append(processes.start(start))
        assert wait_until(lambda: stands_still(frozen[0].pid), 60)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Processes([Stuck, rows]) as processes:
        fail(processes)
    assert not Path(f"/proc/{frozen[0].pid}").exists()


def test_the_test_of_the_page_passes(tmp_path: Path) -> None:
    """Other processes cannot import the test module by its name."""
    sink, test = snippets("sinks/kit/README.md")[0], snippets("sinks/kit/README.md")[2]
    (tmp_path / "test_orders.py").write_text(f"{sink}\n\n{test}")
    done = python("-m", "pytest", "-q", "--import-mode=importlib", "test_orders.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
