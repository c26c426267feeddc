"""A streaming query into a folder of files, whose every micro-batch the test decides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

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
        self.row = lambda n: {"n": n, "day": f"d{n % 3}"}

    def found(self) -> Counter[int]:
        """How often each number is seen by a plain reader."""
        return seen(self.path, self.options.get("file.format", "parquet"))
