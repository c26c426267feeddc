"""What the value of a record may hold: the words that a user says to `kafka_records`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from dedup.errors import ConfigError, MissingExtraError
from dedup.sources.kafka.registry import Registry

if TYPE_CHECKING:
    from pyspark.sql import types as T  # noqa: N812

    from dedup.sources.kafka.avro_rows import AvroDecoder


@dataclass(frozen=True, slots=True)
class Json:
    """A value is one JSON object, in UTF-8.

    Parameters
    ----------
    schema : str or StructType
        Of its fields, as DDL or as Spark's type. Fields that it does not name are left out. One
        that is ``NOT NULL`` must be there.
    options : mapping of str to str
        As Spark's `from_json` takes them, such as ``timestampFormat``.
    """

    schema: str | T.StructType
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Avro:
    """A value is the bytes of one Avro record, without a header.

    Parameters
    ----------
    schema : str or mapping
        The reader's schema, as JSON or parsed: these fields become columns.
    writer : str or mapping, optional
        The schema that all values were written with. Default: the reader's.
    """

    schema: str | Mapping[str, Any]
    writer: str | Mapping[str, Any] | None = None

    def decoder(self, topics: tuple[str, ...]) -> AvroDecoder:
        """Return what decodes such values."""
        return _decoder(self.schema, writer=self.writer)


@dataclass(frozen=True, slots=True)
class ConfluentAvro:
    """A value is an Avro record behind the ID of its schema (Confluent's wire format).

    Parameters
    ----------
    registry : Registry or str
        Knows the schemas; a text is its URL.
    schema : str or mapping, optional
        The reader's schema: whatever a record was written with is brought to it by Avro's rules of
        schema resolution. Default: the newest of `subject` when the query starts, so that the
        columns may change with a restart.
    subject : str, optional
        Default: the topic's name with ``-value`` behind it.
    """

    registry: Registry | str
    schema: str | Mapping[str, Any] | None = None
    subject: str | None = None

    def decoder(self, topics: tuple[str, ...]) -> AvroDecoder:
        """Return what decodes such values; asks the registry where there is no schema."""
        registry = Registry(self.registry) if isinstance(self.registry, str) else self.registry
        if self.schema is not None:
            return _decoder(self.schema, registry=registry)
        if self.subject is None and len(topics) != 1:
            raise ConfigError(
                "ConfluentAvro needs schema= or subject= where there are several topics, or a "
                "pattern: all records get the same columns."
            )
        subject = self.subject or f"{topics[0]}-value"
        newest = registry.latest(subject)
        if newest.kind != "AVRO":
            raise ConfigError(f"The newest schema of {subject} is not Avro but {newest.kind}.")
        return _decoder(newest.text, registry=registry, references=newest.references)


#: What `kafka_records` takes as ``value``.
ValueFormat: TypeAlias = str | Json | Avro | ConfluentAvro


def _decoder(
    schema: str | Mapping[str, Any],
    *,
    registry: Registry | None = None,
    writer: str | Mapping[str, Any] | None = None,
    references: tuple[str, ...] = (),
) -> AvroDecoder:
    try:
        from dedup.sources.kafka.avro_rows import AvroDecoder
    except ModuleNotFoundError as error:
        if error.name != "fastavro":
            raise
        raise MissingExtraError("kafka", "Reading Avro") from None
    text = _text(schema)
    decoder = AvroDecoder(text, references, registry, None if writer is None else _text(writer))
    decoder.check()
    return decoder


def _text(schema: str | Mapping[str, Any]) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)
