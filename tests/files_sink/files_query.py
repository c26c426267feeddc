"""A streaming query into a folder of files, whose every micro-batch the test decides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.files_sink.folder_sink import seen
from tests.support.file_query import FileQuery


class FilesQuery(FileQuery):
    """Files of numbers to an output of rows ``(n bigint, day string)``, one file a micro-batch.

    Parameters
    ----------
    spark : SparkSession
    path : str
        The output.
    folder : Path
        Of the query's own.
    **options : str
        Of the sink, with underscores for dots.
    """

    def __init__(self, spark: SparkSession, path: str, folder: Path, **options: Any) -> None:
        super().__init__(spark, "dedup_files", folder)
        self.path = path
        self.options |= {"path": path}
        self.options |= {name.replace("_", "."): value for name, value in options.items()}
        self.change = lambda rows: rows.repartition(2, "n")

    def numbers(self, *ranges: range) -> None:
        """Add rows of numbers, a file for each range."""
        for each in ranges:
            self.add([{"n": n, "day": f"d{n % 3}"} for n in each])

    def found(self) -> Counter[int]:
        """How often each number is seen by a plain reader."""
        return seen(self.path, self.options.get("file.format", "parquet"))

    def run_to_the_end(self) -> int:
        """Start it until it has taken all that there is; return how often it failed."""
        for failures in range(8):
            try:
                self.run()
            except StreamingQueryException:
                continue
            return failures
        raise AssertionError("it fails again and again")
