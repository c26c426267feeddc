"""The sink as a function for ``foreachBatch``."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from dedup.errors import ConfigError, SinkError
from dedup.kafka.sink.driver import Answer, check_cluster, complete
from dedup.kafka.sink.record_shape import record_shape
from dedup.kafka.sink.sink_options import Partitioner, SinkOptions, located, sink_options
from dedup.kafka.sink.sink_task import SinkTask, new_batch
from dedup.spark.driver.checkpoint_log import read_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class KafkaFunction:
    """Function for ``foreachBatch`` that publishes each micro-batch once; see `kafka_sink`.

    It gives each unbroken row of micro-batches an ID of its own, in place of Spark's for a start of
    the query: a function of the user's may set the job group, which is what tasks know of Spark's,
    and may call this one twice for a micro-batch. Where a row is broken, what is published is
    compared, as after a start.
    """

    def __init__(self, options: SinkOptions, checkpoint: str) -> None:
        self.options, self._checkpoint = options, checkpoint
        #: By query: ID of the row, its newest micro-batch, and whether that was published.
        self._rows: dict[str, tuple[str, int, bool]] = {}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Publish the rows of a micro-batch.

        Raises
        ------
        SinkError
            When the sink holds what contradicts it, or the micro-batch before was not published.
        """
        task = SinkTask(self.options, record_shape(rows.dtypes, self.options))
        check_cluster(self.options)
        query_id = _query_of(rows) or self._query_of_checkpoint(batch_id)
        run_id = self._row(query_id, batch_id)
        self._rows[query_id] = (run_id, batch_id, False)

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None, "this runs in tasks"
            batch = new_batch(query_id, task.options.name, run_id, batch_id)
            answer = pickle.dumps(task.write(batch, context.partitionId(), batches))
            yield pa.RecordBatch.from_pydict({"answer": pa.array([answer], pa.binary())})

        found = rows.mapInArrow(write, "answer binary").collect()
        answers: list[Answer] = [pickle.loads(row.answer) for row in found]
        complete(self.options, answers)
        self._rows[query_id] = (run_id, batch_id, True)

    def _query_of_checkpoint(self, batch_id: int) -> str:
        """Return whose checkpoint it is, where that query runs this micro-batch now."""
        found = read_progress(self._checkpoint)
        if not found.again or found.next_batch_id != batch_id:
            raise ConfigError(
                f"Micro-batch {batch_id} is not the one that the query of {self._checkpoint} runs: "
                "give kafka_sink as `checkpoint` the checkpointLocation of the query that calls "
                "it, and call it from foreachBatch alone."
            )
        return found.query_id

    def _row(self, query_id: str, batch_id: int) -> str:
        run_id, last, published = self._rows.get(query_id, ("", batch_id, True))
        if batch_id == last + 1 and not published:
            raise SinkError(
                f"Micro-batch {last} was not published, and the sink's error was caught, so that "
                f"micro-batch {batch_id} would hide it. Let it end the query, and start it again."
            )
        return run_id if batch_id == last + 1 else str(uuid.uuid4())


def kafka_sink(
    servers: str,
    *,
    checkpoint: str,
    topic: str | None = None,
    mode: str = "exactly-once",
    partitioner: Partitioner | str = "key",
    options: Mapping[str, str] | None = None,
) -> KafkaFunction:
    """Return a function for ``foreachBatch`` that writes each micro-batch to Kafka once.

    It does what ``format("dedup_kafka")`` does, for queries that write to several places, and it
    takes a function that chooses partitions.

    Parameters
    ----------
    servers : str
        Addresses of some brokers, as ``host1:9092,host2:9092``.
    checkpoint : str
        The query's checkpoint location: the sink keeps what it stages below it.
    topic : str, optional
        For all records; default: the column `topic`.
    mode : str
        ``exactly-once``, ``atomic``, ``at-least-once`` or ``none``.
    partitioner : callable or str
        ``key``, ``task``, or a function of keys (Arrow array of binary), values and the number of
        partitions, which returns an array of partitions.
    options : mapping of str to str, optional
        Any other option of the format. Two sinks of one query each need a `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or cannot be. Where Spark does not tell which query runs (Spark
        Connect, a thread of the user's), also by a call whose micro-batch is not the one that the
        query of `checkpoint` runs.
    """
    given = {"kafka.bootstrap.servers": servers, "checkpointLocation": checkpoint, "mode": mode}
    if topic is not None:
        given["topic"] = topic
    if isinstance(partitioner, str):
        given["partitioner"] = partitioner
    chooser = None if isinstance(partitioner, str) else partitioner
    made = sink_options(given | dict(options or {}), chooser)
    return KafkaFunction(made, located(checkpoint))


def _query_of(rows: DataFrame) -> str:
    """Return the ID of the query that runs, empty in a session of Spark Connect."""
    try:
        return rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
    except Exception:
        return ""
