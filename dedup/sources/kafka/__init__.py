"""Reads Kafka topics as a DataFrame, with the columns that `dedup_by_id` needs."""

from __future__ import annotations

from dedup.errors.lazy import lazily

__all__ = [
    "Avro",
    "ConfluentAvro",
    "Decoder",
    "Field",
    "FromCheckpoint",
    "FromGroup",
    "FromOffsets",
    "Header",
    "Json",
    "OffsetsToGroup",
    "Registry",
    "add_kafka_connector",
    "kafka_jars",
    "kafka_packages",
    "poison_counts",
    "quarantined_records",
]

_HOMES = {
    "Avro": "dedup.sources.kafka.values",
    "ConfluentAvro": "dedup.sources.kafka.values",
    "Decoder": "dedup.sources.kafka.values",
    "Field": "dedup.sources.kafka.record_columns",
    "FromCheckpoint": "dedup.sources.kafka.start",
    "FromGroup": "dedup.sources.kafka.start",
    "FromOffsets": "dedup.sources.kafka.start",
    "Header": "dedup.sources.kafka.record_columns",
    "Json": "dedup.sources.kafka.values",
    "OffsetsToGroup": "dedup.sources.kafka.listeners",
    "Registry": "dedup.sources.kafka.registry",
    "add_kafka_connector": "dedup.sources.kafka.connector",
    "kafka_jars": "dedup.sources.kafka.connector",
    "kafka_packages": "dedup.sources.kafka.connector",
    "poison_counts": "dedup.sources.kafka.poison",
    "quarantined_records": "dedup.sources.kafka.poison",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
