"""A streaming query into a table, whose every micro-batch the test decides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup import dedup_by_id
from tests.lakehouse.lakes import Lake
from tests.support.file_query import FileQuery


class LakeQuery(FileQuery):
    """Files of numbers through the operator to a table, one file a micro-batch.

    Parameters
    ----------
    spark : SparkSession
    lake : Lake
    folder : Path
        Of the query's own.
    **options : str
        Of the sink.
    """

    def __init__(self, spark: SparkSession, lake: Lake, folder: Path, **options: Any) -> None:
        super().__init__(spark, lake.format, folder)
        self.lake, self.options = lake, self.options | lake.options() | {"create": "true"} | options
        operator = dedup_by_id("n", horizon="1 hour", catalog=str(folder / "catalog"), shards=2)
        self.change = lambda rows: rows.transform(operator)

    def numbers(self, *ranges: range) -> None:
        """Add rows of numbers, a file for each range."""
        for each in ranges:
            self.add([{"n": n, "text": f"v{n}"} for n in each])

    def found(self) -> Counter[int]:
        """How often each number is in the table."""
        return self.lake.found()

    def run_to_the_end(self) -> int:
        """Start the query until it has taken all that there is; return how often it failed."""
        for failures in range(6):
            try:
                self.run()
            except StreamingQueryException:
                continue
            return failures
        raise AssertionError("it fails again and again")
