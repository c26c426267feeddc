"""De-duplicates streams in Spark Structured Streaming.

Within a horizon of time, each record ID passes exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.core.version import VERSION as __version__  # noqa: N811
from dedup.errors.lazy import lazily

if TYPE_CHECKING:
    from dedup import tools
    from dedup.core.metrics import BatchMetrics
    from dedup.sinks.files.function import files_sink
    from dedup.sinks.files.parquet import dedup_parquet
    from dedup.sinks.files.plans import published_files
    from dedup.sinks.formats import register
    from dedup.sinks.kafka.confluent_avro import to_confluent_avro
    from dedup.sinks.kafka.function import kafka_sink
    from dedup.sinks.kit.function import custom_sink
    from dedup.sinks.kit.transactional import TransactionalSink
    from dedup.sinks.kit.write_ahead import WriteAheadSink
    from dedup.sinks.lakehouse.function import delta_sink, iceberg_sink
    from dedup.sinks.lakehouse.spark_once import delta_once, iceberg_once
    from dedup.sinks.mysql.columns import mysql_ddl
    from dedup.sinks.mysql.function import mysql_sink
    from dedup.sinks.postgres.columns import postgres_ddl
    from dedup.sinks.postgres.function import postgres_sink
    from dedup.sinks.side_effects import once_per_batch, stable
    from dedup.sinks.split import split
    from dedup.sources import record_id
    from dedup.sources.kafka.connector import add_kafka_connector, kafka_jars, kafka_packages
    from dedup.sources.kafka.kafka_records import kafka_records
    from dedup.sources.kafka.listeners import OffsetsToGroup
    from dedup.sources.kafka.poison import poison_counts, quarantined_records
    from dedup.sources.kafka.record_columns import Field, Header
    from dedup.sources.kafka.registry import Registry
    from dedup.sources.kafka.start import FromGroup, FromOffsets
    from dedup.sources.kafka.values import Avro, ConfluentAvro, Decoder, Json
    from dedup.spark.driver.operator import dedup_by_id, dedup_by_sequence
    from dedup.spark.idtime import time_from_id
    from dedup.tools.check.check_query import check_query
    from dedup.tools.restarts import ExponentialDelay, FailureRate, FixedDelay, run_with_restarts
    from dedup.tools.watch.listener import DedupListener

__all__ = [
    "Avro",
    "BatchMetrics",
    "ConfluentAvro",
    "Decoder",
    "DedupListener",
    "ExponentialDelay",
    "FailureRate",
    "Field",
    "FixedDelay",
    "FromGroup",
    "FromOffsets",
    "Header",
    "Json",
    "OffsetsToGroup",
    "Registry",
    "TransactionalSink",
    "WriteAheadSink",
    "__version__",
    "add_kafka_connector",
    "check_query",
    "custom_sink",
    "dedup_by_id",
    "dedup_by_sequence",
    "dedup_parquet",
    "delta_once",
    "delta_sink",
    "files_sink",
    "iceberg_once",
    "iceberg_sink",
    "kafka_jars",
    "kafka_packages",
    "kafka_records",
    "kafka_sink",
    "mysql_ddl",
    "mysql_sink",
    "once_per_batch",
    "poison_counts",
    "postgres_ddl",
    "postgres_sink",
    "published_files",
    "quarantined_records",
    "record_id",
    "register",
    "run_with_restarts",
    "split",
    "stable",
    "time_from_id",
    "to_confluent_avro",
    "tools",
]

__getattr__, __dir__ = lazily(
    __name__,
    __all__,
    {
        "dedup.core.metrics": "BatchMetrics",
        "dedup.sinks.files.function": "files_sink",
        "dedup.sinks.files.parquet": "dedup_parquet",
        "dedup.sinks.files.plans": "published_files",
        "dedup.sinks.formats": "register",
        "dedup.sinks.kafka.confluent_avro": "to_confluent_avro",
        "dedup.sinks.kafka.function": "kafka_sink",
        "dedup.sinks.kit.function": "custom_sink",
        "dedup.sinks.kit.transactional": "TransactionalSink",
        "dedup.sinks.kit.write_ahead": "WriteAheadSink",
        "dedup.sinks.lakehouse.function": "delta_sink iceberg_sink",
        "dedup.sinks.lakehouse.spark_once": "delta_once iceberg_once",
        "dedup.sinks.mysql.columns": "mysql_ddl",
        "dedup.sinks.mysql.function": "mysql_sink",
        "dedup.sinks.postgres.columns": "postgres_ddl",
        "dedup.sinks.postgres.function": "postgres_sink",
        "dedup.sinks.side_effects": "once_per_batch stable",
        "dedup.sinks.split": "split",
        "dedup.sources.kafka.connector": "add_kafka_connector kafka_jars kafka_packages",
        "dedup.sources.kafka.listeners": "OffsetsToGroup",
        "dedup.sources.kafka.kafka_records": "kafka_records",
        "dedup.sources.kafka.poison": "poison_counts quarantined_records",
        "dedup.sources.kafka.record_columns": "Field Header",
        "dedup.sources.kafka.registry": "Registry",
        "dedup.sources.kafka.start": "FromGroup FromOffsets",
        "dedup.sources.kafka.values": "Avro ConfluentAvro Decoder Json",
        "dedup.sources.record_id": "",
        "dedup.spark.driver.operator": "dedup_by_id dedup_by_sequence",
        "dedup.spark.idtime": "time_from_id",
        "dedup.tools": "",
        "dedup.tools.check.check_query": "check_query",
        "dedup.tools.restarts": "ExponentialDelay FailureRate FixedDelay run_with_restarts",
        "dedup.tools.watch.listener": "DedupListener",
    },
)
