"""A streaming query into the sink, whose every micro-batch the test decides."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.file_query import FileQuery

#: On the path of Python, this makes new workers of the sink quick.
PRELOAD = Path(__file__).resolve().parent / "preload"


class SinkQuery(FileQuery):
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
        super().__init__(spark, "dedup_kafka", folder)
        self.address, self.topic = address, topic
        self.options |= {
            "kafka.bootstrap.servers": address,
            "topic": topic,
            "kafka.transaction.timeout.ms": "20000",
        }
        self.change = lambda rows: rows.repartition(2, "key")

    def numbers(self, *ranges: range) -> None:
        """Add records with a number as key and value, a file for each range."""
        for each in ranges:
            self.add([{"key": str(n).encode(), "value": b"v%d" % n} for n in each])
