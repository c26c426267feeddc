"""What a sink does with the micro-batches of a query: in its tasks, and then on the driver."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from dedup.errors import SinkError
from dedup.sinks.protocol import Batch, PublishedSlice, StagedSlice


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task of a sink tells the driver.

    Parameters
    ----------
    batch : Batch
    piece : PublishedSlice or StagedSlice
    """

    batch: Batch
    piece: PublishedSlice | StagedSlice


class SinkWork(Protocol):
    """The work of one sink; it travels to the tasks."""

    @property
    def name(self) -> str:
        """Of the sink within its query."""

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> Answer:
        """Publish or stage the rows of a task; return what it tells the driver.

        Raises
        ------
        SinkError
            When nothing was published, and the task or the query has to be started again.
        """

    def complete(self, answers: Sequence[Answer]) -> None:
        """Publish, on the driver, what the tasks of a micro-batch left to it.

        Raises
        ------
        SinkError
            When the sink holds what contradicts this micro-batch.
        """


def current_batch(name: str) -> tuple[Batch, int]:
    """Return the micro-batch that the running task of a streaming query belongs to, and its number.

    Parameters
    ----------
    name : str
        Of the sink.

    Raises
    ------
    SinkError
        Where no streaming query runs.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    found: list[Any] = [
        context.getLocalProperty(key) if context else None
        for key in ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
    ]
    if context is None or None in found:
        raise SinkError("This sink publishes micro-batches of a streaming query, and none runs.")
    # Spark's job group is the ID of this start of the query.
    query_id, batch_id, run_id = found
    return new_batch(query_id, name, run_id, int(batch_id)), context.partitionId()


def new_batch(query_id: str, name: str, run_id: str, batch_id: int) -> Batch:
    """Return the identity of a micro-batch, with this process as its writer."""
    return Batch(
        query_id=query_id,
        sink=name,
        run_id=run_id,
        batch_id=batch_id,
        writer=f"{socket.gethostname()}:{os.getpid()}",
        time_ms=int(time.time() * 1000),
    )
