"""``format("dedup_kafka")``: the sink as a data source of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dedup.errors import ConfigError
from dedup.kafka.sink.driver import check_cluster
from dedup.kafka.sink.record_shape import record_shape
from dedup.kafka.sink.sink_options import sink_options
from dedup.kafka.sink.sink_task import SinkTask
from dedup.sinks.foreach_batch import columns_of
from dedup.sinks.stream_writer import SinkStreamWriter


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

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; Spark calls it on the driver."""
        options = sink_options(self.options)
        task = SinkTask(options, record_shape(columns_of(schema), options))
        check_cluster(options)
        return SinkStreamWriter(task)
