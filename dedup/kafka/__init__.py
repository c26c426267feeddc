"""Kafka at both ends of a query: records in with stable identities, records out exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.lazy import lazily

if TYPE_CHECKING:
    from dedup.kafka.connector import add_connector, connector_jars, packages
    from dedup.kafka.sink.function import kafka_sink
    from dedup.kafka.source.group_offsets import OffsetsToGroup
    from dedup.kafka.source.kafka_records import kafka_records
    from dedup.kafka.source.poison import poison_counts
    from dedup.kafka.source.quarantine import quarantined_records
    from dedup.kafka.source.record_columns import Field, Header
    from dedup.kafka.source.registry import Registry
    from dedup.kafka.source.start import FromGroup, FromOffsets
    from dedup.kafka.source.value_formats import Avro, ConfluentAvro, Json

__all__ = [
    "Avro",
    "ConfluentAvro",
    "Field",
    "FromGroup",
    "FromOffsets",
    "Header",
    "Json",
    "OffsetsToGroup",
    "Registry",
    "add_connector",
    "connector_jars",
    "kafka_records",
    "kafka_sink",
    "packages",
    "poison_counts",
    "quarantined_records",
]

__getattr__, __dir__ = lazily(
    __name__,
    __all__,
    {
        "dedup.kafka.connector": "add_connector connector_jars packages",
        "dedup.kafka.sink.function": "kafka_sink",
        "dedup.kafka.source.group_offsets": "OffsetsToGroup",
        "dedup.kafka.source.kafka_records": "kafka_records",
        "dedup.kafka.source.poison": "poison_counts",
        "dedup.kafka.source.quarantine": "quarantined_records",
        "dedup.kafka.source.record_columns": "Field Header",
        "dedup.kafka.source.registry": "Registry",
        "dedup.kafka.source.start": "FromGroup FromOffsets",
        "dedup.kafka.source.value_formats": "Avro ConfluentAvro Json",
    },
)
