"""The example of the page on the sink kit, for a table of numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from dedup.sinks import TransactionalSink
from tests.support.pages import snippets

_names: dict[str, Any] = {"__name__": "the_page"}
exec(snippets("sinks/kit/README.md")[0], _names)
SqliteSink: type[TransactionalSink[sqlite3.Connection]] = _names["SqliteSink"]


class ParallelSqlite(SqliteSink):  # type: ignore[misc, valid-type]
    """Each task writes its own slice; the database lets one of them in after the other."""

    parallel = True


def create(path: str) -> None:
    """Create the table, unless it exists."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS orders (n, text)")


def rows(numbers: Sequence[int]) -> pa.RecordBatch:
    """Return rows of the table."""
    columns = {"n": pa.array(numbers, pa.int64()), "text": pa.array(["t"] * len(numbers))}
    return pa.RecordBatch.from_pydict(columns)


def read(sink: Any) -> list[int]:
    """Return all numbers in the table."""
    with closing(sqlite3.connect(sink.path)) as db:
        return [n for (n,) in db.execute("SELECT n FROM orders")]
