"""Kafka at both ends of a query: records in with stable identities, records out exactly once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "Avro": "dedup.kafka.source.value_formats",
    "ConfluentAvro": "dedup.kafka.source.value_formats",
    "Field": "dedup.kafka.source.record_columns",
    "FromGroup": "dedup.kafka.source.start",
    "FromOffsets": "dedup.kafka.source.start",
    "Header": "dedup.kafka.source.record_columns",
    "Json": "dedup.kafka.source.value_formats",
    "OffsetsToGroup": "dedup.kafka.source.group_offsets",
    "Registry": "dedup.kafka.source.registry",
    "add_connector": "dedup.kafka.connector",
    "connector_jars": "dedup.kafka.connector",
    "kafka_records": "dedup.kafka.source.kafka_records",
    "kafka_sink": "dedup.kafka.sink.function",
    "packages": "dedup.kafka.connector",
    "poison_counts": "dedup.kafka.source.poison",
    "quarantined_records": "dedup.kafka.source.quarantine",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: neither Spark nor a client of Kafka is needed before."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
