"""A streaming query into the sink, whose every micro-batch the test decides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.file_query import FileQuery

#: On the path of Python, this makes new workers of the sink quick.
PRELOAD = Path(__file__).resolve().parent / "preload"


class SinkQuery(FileQuery):
    """Files of records to a topic that exists, one file a micro-batch."""

    def __init__(self, spark: SparkSession, address: str, topic: str, folder: Path) -> None:
        super().__init__(spark, "dedup_kafka", folder)
        self.address, self.topic = address, topic
        self.options |= {
            "kafka.bootstrap.servers": address,
            "topic": topic,
            "kafka.transaction.timeout.ms": "20000",
        }
        self.change = lambda rows: rows.repartition(2, "key")
        self.row = lambda n: {"n": n, "key": b"%d" % n, "value": b"v%d" % n}

    def found(self) -> Counter[int]:
        """Return how often a reader of committed records finds each number."""
        from tests.kafka.slots import numbers  # needs the client library

        return numbers(self.address, self.topic)
