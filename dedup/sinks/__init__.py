"""Sinks that publish each micro-batch whole and once.

Where to find a rule:

======================================================= ================================
a task or driver fences earlier owners of a slot        `protocol`, and each ``slots``
what to publish if a micro-batch runs again             `protocol`, `single_commit`
how the content hash shows that rows have changed       `content`, `marker`
lost markers, an older checkpoint, another owner        `ledger`, `output_owner`
slices staged in files, and the manifest of them        `slice_store`
work of tasks and driver that all sinks share           `work`
rows, bytes, retries and time, for listeners            `figures`
formats, functions and options of a sink                `kind`, `formats`, `options`
functions of users that a replay must not repeat        `side_effects`
======================================================= ================================
"""

from __future__ import annotations

from dedup.errors.lazy import lazily

__all__ = [
    "SinkMetrics",
    "TransactionalSink",
    "WriteAheadSink",
    "custom_sink",
    "dedup_folder",
    "delta_once",
    "delta_sink",
    "files_sink",
    "iceberg_once",
    "iceberg_sink",
    "kafka_sink",
    "mysql_ddl",
    "mysql_sink",
    "once_per_batch",
    "postgres_ddl",
    "postgres_sink",
    "published_files",
    "stable",
    "to_confluent_avro",
]

_HOMES = {
    "SinkMetrics": "dedup.sinks.figures",
    "TransactionalSink": "dedup.sinks.kit.transactional",
    "WriteAheadSink": "dedup.sinks.kit.write_ahead",
    "custom_sink": "dedup.sinks.kit.function",
    "dedup_folder": "dedup.sinks.files.folder",
    "delta_once": "dedup.sinks.lakehouse.spark_once",
    "delta_sink": "dedup.sinks.lakehouse.function",
    "files_sink": "dedup.sinks.files.function",
    "iceberg_once": "dedup.sinks.lakehouse.spark_once",
    "iceberg_sink": "dedup.sinks.lakehouse.function",
    "kafka_sink": "dedup.sinks.kafka.function",
    "mysql_ddl": "dedup.sinks.mysql.columns",
    "mysql_sink": "dedup.sinks.mysql.function",
    "once_per_batch": "dedup.sinks.side_effects",
    "postgres_ddl": "dedup.sinks.postgres.columns",
    "postgres_sink": "dedup.sinks.postgres.function",
    "published_files": "dedup.sinks.files.plans",
    "stable": "dedup.sinks.side_effects",
    "to_confluent_avro": "dedup.sinks.kafka.confluent_avro",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
