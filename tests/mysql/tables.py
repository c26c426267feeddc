"""The harness of the MySQL sink, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql

from dedup.sinks.mysql.options import mysql_options
from dedup.sinks.mysql.sink import MysqlWork, ready
from dedup.sinks.owned_slot import forget_slots
from dedup.testing.sinks import SinkHarness

#: Arguments of ``connect``.
Where = Mapping[str, Any]


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


class Sink(SinkHarness):
    """A sink into a table ``numbers(n int, text text)``; the folder is the query's checkpoint."""

    format = "dedup_mysql"

    def __init__(
        self, where: Where, folder: Path, *, table: str = "numbers", **options: str
    ) -> None:
        self.where, self.table = where, table
        key = ", PRIMARY KEY (n)" if options.get("key") else ""
        run(
            where,
            f"CREATE TABLE IF NOT EXISTS numbers (n int, text text CHARACTER SET utf8mb4{key})",
        )
        self.given = given_options(where, folder, table=table, **options)
        self.work: MysqlWork = ready(mysql_options(self.given), [("n", "int"), ("text", "string")])

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return rows of the table."""
        columns = {"n": pa.array(numbers, pa.int32()), "text": pa.array(["t"] * len(numbers))}
        return pa.RecordBatch.from_pydict(columns)

    def numbers(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in run(self.where, f"SELECT n FROM {self.table}"))

    def forget(self) -> None:
        """Forget what this process owns, as if it had just started."""
        forget_slots()
