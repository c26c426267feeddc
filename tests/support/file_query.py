"""A streaming query from files to a sink, whose every micro-batch the test decides."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dedup

Change = Callable[[DataFrame], DataFrame]


class FileQuery:
    """Files of rows to a format of this package, one file a micro-batch.

    Parameters
    ----------
    spark : SparkSession
    sink : str
        Name of the format.
    folder : Path
        Of the query's own.

    Attributes
    ----------
    change : callable
        Turns the rows of the files into the rows of the sink.
    """

    def __init__(self, spark: SparkSession, sink: str, folder: Path) -> None:
        self.spark, self.sink = spark, sink
        self.input, self.checkpoint = folder / "input", folder / "checkpoint"
        self.input.mkdir(parents=True, exist_ok=True)
        self.options: dict[str, Any] = {"checkpointLocation": str(self.checkpoint)}
        self.change: Change = lambda rows: rows
        self.files = 0
        dedup.register(spark)

    def add(self, rows: Sequence[dict[str, Any]] | pa.Table) -> None:
        """Add a file, which becomes its own micro-batch."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        path = self.input / f"{self.files:06d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (self.files, self.files))  # Spark reads the oldest first
        self.files += 1

    def rows(self) -> DataFrame:
        """The stream, from the files."""
        schema = self.spark.read.parquet(str(self.input)).schema
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return self.change(reader.parquet(str(self.input)))

    def start(self, **options: str) -> StreamingQuery:
        """Start the query over what there is."""
        writer = self.rows().writeStream.format(self.sink).trigger(availableNow=True)
        return writer.options(**self.options | options).start()

    def run(self, **options: str) -> StreamingQuery:
        """Let the query take all that there is; raises what it fails with."""
        query = self.start(**options)
        query.awaitTermination(120)
        assert not query.isActive
        return query

    def forget_commit(self) -> int:
        """Let Spark forget that it committed the last micro-batch; return its number."""
        commits = [int(p.name) for p in (self.checkpoint / "commits").iterdir() if p.name.isdigit()]
        last = max(commits)
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
        return last
