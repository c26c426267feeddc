"""A streaming query into a table, whose every micro-batch the test decides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.postgres.tables import run
from tests.support.file_query import FileQuery


class PostgresQuery(FileQuery):
    """Files of numbers to a table ``numbers(n bigint, text text)``, one file a micro-batch.

    Parameters
    ----------
    spark : SparkSession
    dsn : str
    folder : Path
        Of the query's own.
    **options : str
        Of the sink.
    """

    def __init__(self, spark: SparkSession, dsn: str, folder: Path, **options: Any) -> None:
        super().__init__(spark, "dedup_postgres", folder)
        key = ", PRIMARY KEY (n)" if options.get("key") else ""
        run(dsn, f"CREATE TABLE IF NOT EXISTS numbers (n bigint, text text{key})")
        self.dsn = dsn
        self.options |= {"dsn": dsn, "table": "numbers", "timeout.seconds": "20"} | options
        self.change = lambda rows: rows.repartition(2, "n")

    def numbers(self, *ranges: range) -> None:
        """Add rows of numbers, a file for each range."""
        for each in ranges:
            self.add([{"n": n, "text": f"v{n}"} for n in each])

    def found(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in run(self.dsn, "SELECT n FROM numbers"))
