"""Streams of numbered records: ``producer/epoch:sequence``, as in ``"a/0:17"``; ``-`` is null."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from dedup import dedup_by_sequence
from dedup.core.sequence_metrics import SequenceMetrics
from dedup.spark.observations import sequences_from_progress
from tests.support.spark_query import BASE, Query

SEQUENCE_SCHEMA = "producer string, epoch int, sequence bigint, ts timestamp, n bigint"
SEQUENCE_ARROW = pa.schema(
    [
        ("producer", pa.string()),
        ("epoch", pa.int32()),
        ("sequence", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("n", pa.int64()),
    ]
)
_RECORD = re.compile(r"(?P<producer>[^/]+)/(?P<epoch>-?\d*):(?P<sequence>-|-?\d+)(?:@(?P<at>\d+))?")


def numbered(texts: Iterable[str], first: int = 0) -> pa.Table:
    """A table of records; ``@60`` behind one sets its time, in seconds from `BASE`."""
    rows = []
    for n, text in enumerate(texts, first):
        found = _RECORD.fullmatch(text)
        assert found, text
        at = found["at"]
        rows.append(
            {
                "producer": None if found["producer"] == "-" else found["producer"],
                "epoch": int(found["epoch"]) if found["epoch"] else None,
                "sequence": None if found["sequence"] == "-" else int(found["sequence"]),
                "ts": None if at is None else BASE + timedelta(seconds=int(at)),
                "n": n,
            }
        )
    return pa.Table.from_pylist(rows, SEQUENCE_ARROW)


def run_of(producer: str, epoch: int, first: int, last: int) -> list[str]:
    """Records of consecutive sequences."""
    return [f"{producer}/{epoch}:{sequence}" for sequence in range(first, last + 1)]


class SequenceQuery(Query):
    """A query as `Query`, of numbered records and without a catalog."""

    def add(self, *texts: str) -> SequenceQuery:
        table = numbered(texts, self.numbered)
        self.numbered += len(texts)
        self.add_table(table)
        return self

    def result(self) -> DataFrame:
        options = {"epoch": "epoch", "expire_after": "1 hour", **self.options}
        operator = dedup_by_sequence(
            options.pop("producer", "producer"), options.pop("sequence", "sequence"), **options
        )
        return self.then(self.before(self.source()).transform(operator))

    def judged(self) -> list[list[str]]:
        """Run to the end; per micro-batch ``"producer/epoch:sequence verdict"``, sorted."""
        return told(self.run().rows)

    def measured(self) -> list[SequenceMetrics]:
        """Run to the end, into nothing; the metrics of its micro-batches."""
        query = self.writer().format("noop").start()
        try:
            assert query.awaitTermination(240), "the query does not end"
        finally:
            query.stop()
        name = self.options.get("metrics", "dedup_sequence")
        found = [sequences_from_progress(one, name) for one in query.recentProgress]
        return [one for one in found if one is not None]


def told(rows: dict[int, list[dict[str, Any]]]) -> list[list[str]]:
    """Per micro-batch its rows, with verdicts where there are any."""
    return [
        sorted(
            f"{row['producer']}/{row['epoch']}:{row['sequence']}"
            + (f" {row['verdict']}" if "verdict" in row else "")
            for row in rows[batch]
        )
        for batch in sorted(rows)
    ]
