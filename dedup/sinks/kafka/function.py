"""The sink as a function for ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dedup.sinks.foreach_batch import SinkFunction, columns_of
from dedup.sinks.kafka.options import Partitioner, SinkOptions, sink_options
from dedup.sinks.kafka.record_shape import record_shape
from dedup.sinks.kafka.task import SinkTask
from dedup.sinks.kafka.work import check_cluster
from dedup.sinks.kind import SinkKind

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def _prepare(options: SinkOptions, schema: StructType) -> SinkTask:
    task = SinkTask(options, record_shape(columns_of(schema), options))
    check_cluster(options)
    return task


KAFKA = SinkKind(
    format_name="dedup_kafka",
    function_name="kafka_sink",
    parse=sink_options,
    prepare=_prepare,
    to_read='from Kafka, use dedup.kafka_records, or format("kafka")',
    for_batches='df.write.format("kafka")',
    takes_complete=lambda options: True,
)


def kafka_sink(
    servers: str,
    *,
    checkpoint: str,
    topic: str | None = None,
    mode: str = "exactly-once",
    partitioner: Partitioner | str = "key",
    options: Mapping[str, str] | None = None,
) -> SinkFunction:
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
    return SinkFunction(KAFKA, sink_options(given | dict(options or {}), chooser), checkpoint)
