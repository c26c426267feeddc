"""``format("dedup_kafka")``: the sink as a data source of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dedup.errors import ConfigError
from dedup.kafka.sink.driver import Answer, check_cluster, complete
from dedup.kafka.sink.record_shape import record_shape
from dedup.kafka.sink.sink_options import SinkOptions, sink_options
from dedup.kafka.sink.sink_task import SinkTask, current_batch


@dataclass
class _Message(WriterCommitMessage):
    """What a task tells the driver, as Spark carries it."""

    answer: Answer


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the micro-batches of one query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        names = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        self._options = options
        self._task = SinkTask(options, record_shape(names, options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """Publish or stage the rows of a task."""
        batch, slot = current_batch(self._options.name)
        return _Message(self._task.write(batch, slot, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks left to the driver."""
        complete(self._options, [m.answer for m in messages if isinstance(m, _Message)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what is staged is deleted with the micro-batch once it is published.

        Spark calls this also where `commit` failed in its midst, so nothing may be undone here.
        """


class KafkaSinkSource(DataSource):
    """The format ``dedup_kafka``, with the columns and options of Spark's own ``kafka`` sink."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "dedup_kafka"

    def schema(self) -> Any:
        """Refuse to be read."""
        raise ConfigError(
            "Format dedup_kafka is a sink. To read from Kafka, use dedup.kafka.kafka_records, or "
            'format("kafka").'
        )

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Refuse a batch."""
        raise ConfigError(
            "Format dedup_kafka publishes the micro-batches of a stream, which have numbers: use "
            'df.writeStream. For a batch use df.write.format("kafka").'
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; Spark calls it on the driver."""
        options = sink_options(self.options)
        writer = KafkaStreamWriter(options, schema)
        check_cluster(options)
        return writer
