"""The harness of the MySQL sink, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql

from dedup.sinks.batch import new_batch
from dedup.sinks.kit.slots import TransactionalWork, forget_slots
from dedup.sinks.mysql.options import mysql_options
from dedup.sinks.mysql.sink import ready
from dedup.testing.sinks import QUERY, SinkHarness
from tests.support.proxy import Harm

#: Arguments of ``connect``.
Where = Mapping[str, Any]
#: What a proxy can do to a commit.
HARMS = (Harm.CUT_BEFORE, Harm.CUT_AFTER, Harm.HOLD)
MODES: list[dict[str, str]] = [
    {}, {"mode": "atomic"}, {"mode": "upsert", "key": "n"}, {"mode": "atomic", "key": "n"},
]  # fmt: skip
MAKE = "CREATE TABLE numbers (n int, text text CHARACTER SET utf8mb4{key})"


def commits(frame: bytes) -> bool:
    """Return whether a client commits with these bytes."""
    return frame.endswith(b"\3COMMIT")


def run(where: Where, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; return the rows of the last one."""
    connection = pymysql.connect(**where, autocommit=True, charset="utf8mb4")
    with closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def given_options(where: Where, folder: Path, **options: str) -> dict[str, str]:
    """Return options as a user gives them; their names have underscores for dots."""
    given = {f"mysql.{name}": str(value) for name, value in where.items()}
    given |= {"checkpointLocation": str(folder), "timeout.seconds": "5"}
    return given | {name.replace("_", "."): value for name, value in options.items()}


def as_user(where: Where, *grants: str) -> dict[str, Any]:
    """Return how a new user of these privileges connects."""
    name = where["database"]
    run(where, f"CREATE USER {name}@localhost", *(f"GRANT {g} TO {name}@localhost" for g in grants))
    return {**where, "user": name}


class Sink(SinkHarness):
    """A sink into a table ``numbers(n int, text text)``; the folder is the query's checkpoint."""

    format = "dedup_mysql"

    def __init__(
        self, where: Where, folder: Path, *, table: str = "numbers", **options: str
    ) -> None:
        self.where, self.table = where, table
        if not run(where, "SHOW TABLES LIKE 'numbers'"):
            run(where, MAKE.format(key=", PRIMARY KEY (n)" if options.get("key") else ""))
        self.given = given_options(where, folder, table=table, **options)
        self.work: TransactionalWork = ready(
            mysql_options(self.given), [("n", "int"), ("text", "string")]
        )

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return rows of the table."""
        return batch_of(numbers)

    def numbers(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in run(self.where, f"SELECT n FROM {self.table}"))

    def forget(self) -> None:
        """Forget what this process owns, as if it had just started."""
        forget_slots()


def batch_of(numbers: Sequence[int | None], text: str = "t") -> pa.RecordBatch:
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


def made(
    where: Where, folder: Path, columns: Sequence[tuple[str, str]], **options: str
) -> TransactionalWork:
    """Return the work of a sink into the table ``t``, unless the options name another."""
    return ready(mysql_options(given_options(where, folder, **{"table": "t"} | options)), columns)


def write(
    where: Where,
    folder: Path,
    columns: Sequence[tuple[str, str]],
    *rows: pa.RecordBatch,
    **options: str,
) -> None:
    """Write rows twice: in a micro-batch that the driver publishes, and in one of a task's own."""
    work = made(where, folder, columns, **options)
    for batch_id in range(2):
        batch = new_batch(QUERY, work.name, "run1", batch_id)
        work.complete([work.write(batch, 0, iter(rows))])
