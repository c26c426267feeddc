"""Mistakes in a user's class are named, and habits of databases do no harm."""

from __future__ import annotations

import gc
import sqlite3
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from dedup.errors import ConfigError
from dedup.sinks import TransactionalSink
from dedup.spark.driver.checkpoint_log import Progress
from dedup.testing.custom_sinks import CustomSink
from dedup.testing.sinks import QUERY
from tests.kit.sqlite_sink import ParallelSqlite, SqliteSink, create, read, rows

LEVELS = pytest.mark.parametrize("level", [SqliteSink, ParallelSqlite], ids=["driver", "tasks"])


def start(folder: Path, kind: type[TransactionalSink[Any]]) -> CustomSink:
    sink: Any = kind(str(folder / "orders.db"))  # type: ignore[call-arg]
    create(sink.path)
    return CustomSink(sink, rows, read, folder / "checkpoint")


@LEVELS
def test_a_sink_that_does_not_keep_its_markers_is_rejected(tmp_path: Path, level: Any) -> None:
    class OnlyUpdates(level):  # type: ignore[misc]
        def write_marker(self, db: Any, key: str, marker: str) -> None:
            db.execute("UPDATE markers SET marker = ? WHERE key = ?", [marker, key])

    class ForgetsToCommit(level):  # type: ignore[misc]
        def commit(self, db: Any) -> None:
            db.close()

    for kind in (OnlyUpdates, ForgetsToCommit):
        sink = start(tmp_path, kind)
        with pytest.raises(ConfigError, match=f"{kind.__name__} does not keep its markers"):
            sink.batch("run1", 0, [0])
        assert not sink.numbers()


@LEVELS
@pytest.mark.parametrize("found", [("text",), b"text"])
def test_a_marker_that_is_no_text_is_rejected(tmp_path: Path, level: Any, found: object) -> None:
    class ReturnsTheRow(level):  # type: ignore[misc]
        def read_marker(self, db: Any, key: str) -> Any:
            return found

    with pytest.raises(ConfigError, match=r"ReturnsTheRow\.read_marker must return a str or None"):
        start(tmp_path, ReturnsTheRow).batch("run1", 0, [0])


def test_columns_of_the_same_name_are_rejected(tmp_path: Path) -> None:
    """A row as a dict would hold only one of them."""
    fields = [StructField("n", LongType()), StructField("N", LongType())]
    with pytest.raises(ConfigError, match="two columns of the name 'N'"):
        start(tmp_path, SqliteSink).function.prepare(StructType(fields))


@LEVELS
def test_markers_that_the_database_pads_are_recognised(tmp_path: Path, level: Any) -> None:
    class Padded(level):  # type: ignore[misc]
        def read_marker(self, db: Any, key: str) -> str | None:
            found: str | None = super().read_marker(db, key)
            return found and found.ljust(2_000)

    sink = start(tmp_path, Padded)
    for number in range(3):
        sink.batch("run1", number, [number])
    sink.assert_once(3)


@LEVELS
def test_a_transaction_kept_in_an_attribute_is_rolled_back(tmp_path: Path, level: Any) -> None:
    """The sink keeps its connection in an attribute, and `begin` returns nothing."""

    class KeepsIt(level):  # type: ignore[misc]
        is_broken = False

        def begin(self) -> None:
            assert "db" not in self.__dict__, "another transaction is still open"
            self.db = super().begin()

        def read_marker(self, _: None, key: str) -> str | None:
            found: str | None = super().read_marker(self.db, key)
            return found

        def write_rows(self, _: None, rows: Any) -> None:
            super().write_rows(self.db, rows)
            if self.is_broken:
                raise ValueError("a bad row")

        def write_marker(self, _: None, key: str, marker: str) -> None:
            super().write_marker(self.db, key, marker)

        def commit(self, _: None) -> None:
            super().commit(self.db)
            del self.db

        def rollback(self, _: None) -> None:
            super().rollback(self.db)
            del self.db

    sink = start(tmp_path, KeepsIt)
    sink.batch("run1", 0, [0])
    sink.sink.is_broken = True  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="a bad row"):
        sink.batch("run1", 1, [1])
    sink.sink.is_broken = False  # type: ignore[attr-defined]
    sink.batch("run2", 1, [1])
    sink.assert_once(2)


def test_the_driver_needs_two_transactions_for_a_micro_batch(tmp_path: Path) -> None:
    """One transaction acquires all slots, the other publishes."""
    begun = []

    class Counted(SqliteSink):  # type: ignore[misc, valid-type]
        def begin(self) -> Any:
            begun.append(self)
            return super().begin()

    sink = start(tmp_path, Counted)
    for number in range(3):
        sink.batch("run1", number, [number], [number + 3])
    sink.assert_once(6)
    assert len(begun) == 6


@LEVELS
@pytest.mark.parametrize("fails", [False, True], ids=["published", "rolled back"])
def test_an_ended_transaction_is_freed_at_once(tmp_path: Path, level: Any, *, fails: bool) -> None:
    """It may hold many rows. Their bytes do not make Python look for circles of objects."""

    class Connection(sqlite3.Connection):
        pass

    class Counted(level):  # type: ignore[misc]
        def begin(self) -> Any:
            db = sqlite3.connect(self.path, timeout=30, isolation_level=None, factory=Connection)
            db.execute("BEGIN IMMEDIATE")
            begun.append(weakref.ref(db))
            return db

        def write_rows(self, db: Any, rows: Any) -> None:
            super().write_rows(db, rows)
            if fails:
                raise ValueError("a bad row")

    begun: list[Any] = []
    sink = start(tmp_path, Counted)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="a bad row") if fails else nullcontext():
            sink.batch("run1", 0, [0], [1])
        assert begun
        assert [each for each in begun if each() is not None] == []
    finally:
        gc.enable()


def test_an_inspection_waits_for_a_transaction_and_disturbs_none(tmp_path: Path) -> None:
    """It holds no lock while it waits for another, so it cannot block tasks for long."""
    reads: list[list[str]] = []

    class Counted(ParallelSqlite):
        def begin(self) -> Any:
            reads.append([])
            return super().begin()

        def read_marker(self, db: Any, key: str) -> str | None:
            reads[-1].append(key)
            found: str | None = super().read_marker(db, key)
            return found

    sink = start(tmp_path, Counted)
    for number in range(2):
        sink.batch("run1", number, [number], [number + 2])
    progress = Progress(query_id=QUERY, next_batch_id=2, again=False)
    inspect = partial(sink.function.kind.inspect, sink.function.options, progress)
    reads.clear()
    before = inspect().to_json()
    assert before["sinks"][0]["batch_id"] == 1
    assert list(map(len, reads)) == [1, 1, 1]
    database = sink.sink.begin()  # as by a task in the middle of its rows
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(inspect)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        sink.sink.commit(database)
        assert waiting.result(30).to_json() == before
        looking = pool.submit(lambda: [inspect() for _ in range(20)])
        for number in range(2, 6):
            sink.batch("run1", number, [2 * number], [2 * number + 1])
        assert len(looking.result(60)) == 20
    sink.assert_once(12)
