"""A streaming query from files to a sink, whose every micro-batch the test decides."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dedup
from dedup import dedup_by_id
from dedup.errors import ConfigError, cause
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.formats import sink_kinds
from tests.support.spark_query import forget_commits

Change = Callable[[DataFrame], DataFrame]


class FileQuery:
    """Files of rows to a format of this package, one file a micro-batch, in a folder of its own."""

    #: Steps of the sink at which the contract kills.
    steps: tuple[str, ...] = ()

    def __init__(self, spark: SparkSession, sink: str, folder: Path) -> None:
        self.spark, self.sink = spark, sink
        self.input, self.checkpoint = folder / "input", folder / "checkpoint"
        self.input.mkdir(parents=True, exist_ok=True)
        self.options: dict[str, Any] = {"checkpointLocation": str(self.checkpoint)}
        #: Turns the rows of the files into the rows of the sink.
        self.change: Change = lambda rows: rows
        #: Returns the row of a number.
        self.row: Callable[[int], dict[str, Any]] = lambda n: {"n": n, "text": f"v{n}"}
        self.files = 0
        self._has_formats = True
        try:
            dedup.register(spark)
        except ConfigError:  # PySpark 3.5 and 4.0 write with the function for `foreachBatch`
            self._has_formats = False

    def dedup(self, catalog: Path, shards: int) -> None:
        """Let rows with a known `n` be dropped."""
        operator = dedup_by_id("n", horizon="1 hour", catalog=str(catalog), shards=shards)
        self.change = lambda rows: rows.transform(operator)

    def begin_again(self, checkpoint: Path) -> None:
        """Continue with another checkpoint, without the files that are read."""
        for path in self.input.iterdir():
            path.unlink()
        self.checkpoint = checkpoint
        self.options |= {"checkpointLocation": str(checkpoint), "name": "again"}

    def add(self, rows: Sequence[dict[str, Any]] | pa.Table) -> None:
        """Add a file, which becomes its own micro-batch."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        # A query that runs must see neither a part of the file nor another time.
        path = self.input / f".{self.files:06d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (self.files, self.files))  # Spark reads the oldest first
        path.rename(path.with_name(path.name[1:]))
        self.files += 1

    def numbers(self, *ranges: Iterable[int]) -> None:
        """Add the rows of numbers, a file for each range."""
        for each in ranges:
            self.add([self.row(n) for n in each])

    def rows(self) -> DataFrame:
        """The stream, from the files."""
        schema = self.spark.read.parquet(str(self.input)).schema
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return self.change(reader.parquet(str(self.input)))

    def found(self) -> Counter[int]:
        """Return how often each number is in the output."""
        raise NotImplementedError

    def start(self, *, once: bool = True, **options: str) -> StreamingQuery:
        """Start the query; `once`: over what there is."""
        given = self.options | options
        writer = self.rows().writeStream.options(**given)
        if self._has_formats:
            writer = writer.format(self.sink)
        else:
            kind = sink_kinds()[self.sink]
            writer = writer.foreachBatch(SinkFunction.of(kind, str(self.checkpoint), {}, given))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, **options: str) -> StreamingQuery:
        """Let the query take all that there is; raises what it fails with."""
        query = self.start(once=True, **options)
        query.awaitTermination(120)
        assert not query.isActive
        return query

    def run_to_the_end(self, **options: str) -> list[str]:
        """Start the query until it has taken all that there is; return what it failed with."""
        failures: list[str] = []
        while len(failures) < 8:
            try:
                self.run(**options)
            except StreamingQueryException as error:
                failures.append(str(cause(error) or error)[:2000])
                continue
            return failures
        raise AssertionError(failures)

    def run_with(self, function: Callable[[DataFrame, int], None]) -> None:
        """Let a function for `foreachBatch` take all that there is."""
        writer = self.rows().writeStream.foreachBatch(function).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        assert writer.start().awaitTermination(120)

    def forget_commit(self) -> int:
        """Let Spark forget that it committed the last micro-batch; return its number."""
        last = max(int(p.name) for p in (self.checkpoint / "commits").glob("[0-9]*"))
        forget_commits(self.checkpoint, last)
        return last
