"""The sink as a function for ``foreachBatch``."""

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
    prepare=lambda options, schema: ready(options, columns_of(schema)),
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

    It is ``format("dedup_kafka")`` for queries that write to several places, and it also accepts a
    function that chooses partitions.

    Parameters
    ----------
    servers : str
        Addresses of some brokers, as ``host1:9092,host2:9092``.
    checkpoint : str
        The query's checkpoint location. The sink stages slices below it.
    topic : str, optional
        Topic of all records; default: the column `topic`.
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
        If an option is unknown or invalid. Calls raise it too if Spark does not report which query
        runs (Spark Connect, a thread of the user's), and the micro-batch is not the one that the
        query of `checkpoint` runs.
    """
    given = {"kafka.bootstrap.servers": servers, "checkpointLocation": checkpoint, "mode": mode}
    if topic is not None:
        given["topic"] = topic
    if isinstance(partitioner, str):
        given["partitioner"] = partitioner
    chooser = None if isinstance(partitioner, str) else partitioner
    return SinkFunction(KAFKA, kafka_options(given | dict(options or {}), chooser), checkpoint)
