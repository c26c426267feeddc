"""A sink as the writer of a streaming query, for formats of PySpark 4.1 and newer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from dedup.sinks.work import Answer, SinkWork, current_batch


@dataclass
class _Message(WriterCommitMessage):
    """What a task tells the driver, as Spark carries it."""

    answer: Answer


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the micro-batches of one query."""

    def __init__(self, work: SinkWork) -> None:
        self._work = work

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """Publish or stage the rows of a task."""
        batch, slot = current_batch(self._work.name)
        return _Message(self._work.write(batch, slot, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks left to the driver."""
        self._work.complete([m.answer for m in messages if isinstance(m, _Message)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what is staged is deleted with the micro-batch once it is published.

        Spark calls this also where `commit` failed in its midst, so nothing may be undone here.
        """
