"""The example of the page on the sink kit, and its harness for the contract of sinks."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from dedup import TransactionalSink, custom_sink
from dedup.sinks.owned_slot import forget_slots
from dedup.testing.sinks import SinkHarness
from tests.support.pages import snippets

_names: dict[str, Any] = {}
exec(snippets("sinks/kit/README.md")[0], _names)
SqliteSink: type[TransactionalSink[sqlite3.Connection]] = _names["SqliteSink"]


class ParallelSqlite(SqliteSink):  # type: ignore[misc, valid-type]
    """Each task writes its own slice; the database lets one of them in after the other."""

    parallel = True


class NumbersSink(SinkHarness):
    """A sink of SQLite into a table ``orders(n, text)``; the folder is the query's checkpoint."""

    format = "custom"

    def __init__(self, sink: TransactionalSink[Any], folder: Path, **options: str) -> None:
        self.sink = sink
        with closing(sqlite3.connect(sink.path)) as db:  # type: ignore[attr-defined]
            db.execute("CREATE TABLE IF NOT EXISTS orders (n, text)")
        self.given = {name.replace("_", "."): value for name, value in options.items()}
        self.function = custom_sink(sink, checkpoint=str(folder), options=self.given)
        self.work = self.function.prepare(StructType())

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return rows of the table."""
        columns = {"n": pa.array(numbers, pa.int64()), "text": pa.array(["t"] * len(numbers))}
        return pa.RecordBatch.from_pydict(columns)

    def numbers(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in self.run("SELECT n FROM orders"))

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""
        with closing(sqlite3.connect(self.sink.path, isolation_level=None)) as db:  # type: ignore[attr-defined]
            return db.execute(statement).fetchall()

    def inspected(self, checkpoint: Path) -> list[dict[str, Any]]:
        """Return what the sink has published."""
        found: list[dict[str, Any]] = self.function.inspect().to_json()["sinks"]
        return found

    def forget(self) -> None:
        """Forget what this process owns, as if it had just started."""
        forget_slots()
