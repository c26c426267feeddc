"""A streaming query into the sink, whose every micro-batch the test decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import dedup

#: On the path of Python, this makes new workers of the sink quick.
PRELOAD = Path(__file__).resolve().parent / "preload"

Change = Callable[[DataFrame], DataFrame]


class SinkQuery:
    """Files of records to a topic, one file a micro-batch.

    Parameters
    ----------
    spark : SparkSession
    address : str
        Of the broker.
    topic : str
        Which exists.
    folder : Path
        Of the query's own.
    """

    def __init__(self, spark: SparkSession, address: str, topic: str, folder: Path) -> None:
        self.spark, self.address, self.topic = spark, address, topic
        self.input, self.checkpoint = folder / "input", folder / "checkpoint"
        self.input.mkdir(parents=True, exist_ok=True)
        self.options: dict[str, Any] = {
            "kafka.bootstrap.servers": address,
            "topic": topic,
            "checkpointLocation": str(self.checkpoint),
            "kafka.transaction.timeout.ms": "20000",
        }
        self.change: Change = lambda rows: rows.repartition(2, "key")
        self.files = 0
        dedup.register(spark)

    def add(self, rows: Sequence[dict[str, Any]] | pa.Table) -> None:
        """Add a file, which becomes a micro-batch of its own."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        pq.write_table(table, self.input / f"{self.files:06d}.parquet")
        self.files += 1

    def numbers(self, *ranges: range) -> None:
        """Add records with a number as key and value, a file for each range."""
        for each in ranges:
            self.add([{"key": str(n).encode(), "value": b"v%d" % n} for n in each])

    def rows(self) -> DataFrame:
        """The stream, from the files."""
        schema = self.spark.read.parquet(str(self.input)).schema
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return self.change(reader.parquet(str(self.input)))

    def start(self, **options: str) -> StreamingQuery:
        """Start the query over what there is."""
        writer = self.rows().writeStream.format("dedup_kafka").trigger(availableNow=True)
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
