"""The harness of the PostgreSQL sink, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from dedup.sinks.batch import new_batch
from dedup.sinks.kit.slots import TransactionalWork, forget_slots
from dedup.sinks.postgres.options import postgres_options
from dedup.sinks.postgres.sink import ready
from dedup.sinks.work import TaskResult
from dedup.testing.sinks import QUERY, SinkHarness
from dedup.testing.sinks import once as once
from tests.support.proxy import Harm

#: What a proxy can do to a commit.
HARMS = (Harm.CUT_BEFORE, Harm.CUT_AFTER, Harm.HOLD)


def commits(frame: bytes) -> bool:
    """Return whether a client commits with these bytes."""
    return b"COMMIT\0" in frame


def run(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; return the rows of the last one."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            done = connection.execute(statement.encode())
        return done.fetchall() if done.description else []


class Sink(SinkHarness):
    """A sink into a table ``numbers(n int, text text)``; the folder is the query's checkpoint.

    Names of options have underscores for dots.
    """

    format = "dedup_postgres"

    def __init__(self, dsn: str, folder: Path, *, table: str = "numbers", **options: str) -> None:
        self.dsn, self.table = dsn, table
        run(dsn, "CREATE TABLE IF NOT EXISTS numbers (n integer PRIMARY KEY, text text)"
            if options.get("key") else
            "CREATE TABLE IF NOT EXISTS numbers (n integer, text text)")  # fmt: skip
        given = {"dsn": dsn, "table": table, "checkpointLocation": str(folder),
                 "timeout.seconds": "5"}  # fmt: skip
        self.given = given | {name.replace("_", "."): value for name, value in options.items()}
        columns = [("n", "int"), ("text", "string")]
        self.work: TransactionalWork = ready(postgres_options(self.given), columns)

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return rows of the table."""
        return batch_of(numbers)

    def write(
        self, run_id: str, batch_id: int, slot: int, rows: Iterable[pa.RecordBatch]
    ) -> TaskResult:
        """Let a task write rows."""
        return self.send(run_id, batch_id, slot, rows)

    def numbers(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in run(self.dsn, f"SELECT n FROM {self.table}"))

    def forget(self) -> None:
        """Forget what this process owns, as if it had just started."""
        forget_slots()


def batch_of(numbers: Sequence[int], text: str = "t") -> pa.RecordBatch:
    """Rows of a table of numbers."""
    columns = {"n": pa.array(numbers, pa.int32()), "text": pa.array([text] * len(numbers))}
    return pa.RecordBatch.from_pydict(columns)


def updates(numbers: Sequence[int]) -> pa.RecordBatch:
    """Rows whose text is the number. Numbers n and n + 50 have the same key."""
    columns = {
        "n": pa.array([n % 50 for n in numbers], pa.int32()),
        "text": list(map(str, numbers)),
    }
    return pa.RecordBatch.from_pydict(columns)


def write(
    dsn: str, folder: Path, columns: Sequence[tuple[str, str]], rows: pa.RecordBatch, **options: str
) -> None:
    """Write rows twice: in a micro-batch that the driver publishes, and in one of a task's own.

    The table is ``rows`` unless the options name another; the columns have Spark's types.
    """
    given = {"dsn": dsn, "table": "rows", "checkpointLocation": str(folder), "timeout.seconds": "5"}
    named = {name.replace("_", "."): value for name, value in options.items()}
    work = ready(postgres_options(given | named), columns)
    for batch_id in range(2):
        batch = new_batch(QUERY, work.name, "run1", batch_id)
        work.complete([work.write(batch, 0, iter([rows]))])
