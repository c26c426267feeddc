"""``format("dedup_kafka")``: the sink as a data source of Spark."""

from __future__ import annotations

from pyspark.sql.types import StructType

from dedup.sinks.foreach_batch import columns_of
from dedup.sinks.kafka.options import sink_options
from dedup.sinks.kafka.record_shape import record_shape
from dedup.sinks.kafka.task import SinkTask
from dedup.sinks.kafka.work import check_cluster
from dedup.sinks.sink_source import SinkSource


class KafkaSinkSource(SinkSource):
    """The format ``dedup_kafka``, with the columns and options of Spark's own ``kafka`` sink."""

    format_name = "dedup_kafka"
    to_read = 'from Kafka, use dedup.kafka_records, or format("kafka")'
    for_batches = 'df.write.format("kafka")'

    @property
    def takes_complete(self) -> bool:
        """Readers of Kafka tell the newest record of a key from those before."""
        return True

    def work(self, schema: StructType) -> SinkTask:
        """Return the work, when columns and cluster have been looked at."""
        options = sink_options(self.options)
        task = SinkTask(options, record_shape(columns_of(schema), options))
        check_cluster(options)
        return task
