"""The kind `KAFKA` of the Kafka sink, and the public function `kafka_sink`."""

from __future__ import annotations

from collections.abc import Mapping

from dedup.sinks.foreach_batch import SinkFunction, columns_of
from dedup.sinks.kafka.inspection import inspect_kafka
from dedup.sinks.kafka.options import FORMAT, Partitioner, kafka_options
from dedup.sinks.kafka.work import ready
from dedup.sinks.kind import SinkKind

KAFKA = SinkKind(
    format_name=FORMAT,
    function_name="kafka_sink",
    parse=kafka_options,
    ready=lambda options, schema: ready(options, columns_of(schema)),
    inspect=inspect_kafka,
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

    The function does the same as ``format("dedup_kafka")``. Use it for queries that write to
    several places, or to choose partitions with a function of your own.

    Parameters
    ----------
    servers : str
        Addresses of some brokers, as ``host1:9092,host2:9092``.
    checkpoint : str
        The query's checkpoint location. The sink stages slices below it.
    topic : str, optional
        Topic of all records. Default: the column `topic` names the topic of each record.
    mode : str
        ``exactly-once``, ``atomic``, ``at-least-once`` or ``none``.
    partitioner : callable or str
        ``key``, ``task``, or a function. The function gets keys and values, both as binary Arrow
        arrays, and the number of partitions. It returns an array with a partition for each record.
    options : mapping of str to str, optional
        Any other options of the format. Two sinks of one query need different values of `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or invalid. In Spark Connect, or in a thread that the user started,
        Spark does not report which query runs. The returned function then raises this error if the
        query of `checkpoint` is running another micro-batch.
    """
    texts = {"kafka.bootstrap.servers": servers, "checkpointLocation": checkpoint, "mode": mode}
    if topic is not None:
        texts["topic"] = topic
    if isinstance(partitioner, str):
        texts["partitioner"] = partitioner
    chooser = None if isinstance(partitioner, str) else partitioner
    return SinkFunction(KAFKA, kafka_options(texts | dict(options or {}), chooser), checkpoint)
