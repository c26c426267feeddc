"""Formats of a Kafka record's value, and parsers that turn the value's fields into columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from dedup.errors import ConfigError, MissingExtraError
from dedup.errors.cause import spark_cause
from dedup.sources import strict_json
from dedup.sources.kafka.registry import Registry
from dedup.sources.strict_json import CAUSE, FIELDS
from dedup.spark.driver.shipping import shipped

if TYPE_CHECKING:
    from dedup.sources.kafka.avro_rows import AvroDecoder

_ONE_OBJECT = "a value is one JSON object in UTF-8, and on_error= decides about others"
#: Options of `from_json` that would change what counts as a poison record.
_FIXED = dict.fromkeys(("mode", "multiline", "encoding", "charset", "linesep"), _ONE_OBJECT)
#: Adds two columns to records. `FIELDS` is null for a tombstone or a poison record. `CAUSE` is the
#: reason why a record is poison, and is null for other records.
Parser: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Json:
    """The format of values that are one JSON object in UTF-8.

    Parameters
    ----------
    schema : str or StructType
        Schema of the fields, as DDL or as Spark's type. Fields that are not in the schema are
        ignored. A ``NOT NULL`` field must be present.
    options : mapping of str to str
        Options of Spark's `from_json`, such as ``timestampFormat``.
    """

    schema: str | T.StructType
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Avro:
    """The format of values that are the bytes of one Avro record, without a header.

    Parameters
    ----------
    schema : str or mapping
        The reader's schema, as JSON text or parsed. Its fields become columns.
    writer : str or mapping, optional
        The schema with which all values were written. Default: the reader's schema.
    """

    schema: str | Mapping[str, Any]
    writer: str | Mapping[str, Any] | None = None

    def decoder(self, topics: tuple[str, ...]) -> AvroDecoder:
        """Return the decoder of these values."""
        return _decoder(self.schema, writer=self.writer)


@dataclass(frozen=True, slots=True)
class ConfluentAvro:
    """Confluent's wire format of Avro: the ID of a schema, and then a record of that schema.

    Parameters
    ----------
    registry : Registry or str
        The registry of the schemas, or its URL.
    schema : str or mapping, optional
        The reader's schema, to which Avro's schema resolution converts every record. Default: the
        newest schema of `subject` when the query starts. Then columns may change with a restart.
    subject : str, optional
        The registry's name for the schema's versions. Default: the topic's name and ``-value``.
    """

    registry: Registry | str
    schema: str | Mapping[str, Any] | None = None
    subject: str | None = None

    def decoder(self, topics: tuple[str, ...]) -> AvroDecoder:
        """Return the decoder of these values. If no schema is given, fetch it from the registry."""
        registry = Registry(self.registry) if isinstance(self.registry, str) else self.registry
        if self.schema is not None:
            return _decoder(self.schema, registry=registry)
        if self.subject is None and len(topics) != 1:
            raise ConfigError(
                "ConfluentAvro needs schema= or subject= for several topics or a pattern, because "
                "all records get the same columns."
            )
        subject = self.subject or f"{topics[0]}-value"
        newest = registry.latest(subject)
        if newest.kind != "AVRO":
            raise ConfigError(f"The newest schema of {subject} is not Avro but {newest.kind}.")
        return _decoder(newest.text, registry=registry, references=newest.references)


#: Values of the parameter ``value`` of `kafka_records`.
ValueFormat: TypeAlias = str | Json | Avro | ConfluentAvro


def parser(spark: SparkSession, value: ValueFormat, topics: tuple[str, ...]) -> Parser | None:
    """Return the function that parses the values of records, or None for raw values."""
    if isinstance(value, Json):
        strict_json.check_options(value.options, _FIXED, "Option {}")
        schema, options = _spark_schema(spark, value.schema), value.options

        def parse_json(records: DataFrame) -> DataFrame:
            tagged = strict_json.with_tagged(records, F.col("value").cast("string"))
            return strict_json.with_fields(tagged, schema, options)

        return parse_json
    if isinstance(value, (Avro, ConfluentAvro)):
        decoder = value.decoder(topics)
        fields = from_arrow_type(decoder.schema.type, prefer_timestamp_ntz=True)
        load = shipped(decoder)

        def decode(batches: Any) -> Any:
            return load().batches(batches)

        def parse_avro(records: DataFrame) -> DataFrame:
            added = [T.StructField(FIELDS, fields), T.StructField(CAUSE, T.StringType())]
            return records.mapInArrow(decode, T.StructType([*records.schema.fields, *added]))

        return parse_avro
    if value != "raw":
        raise ConfigError(
            f"value={value!r} is unknown. Give 'raw', Json(...), Avro(...) or ConfluentAvro(...)."
        )
    return None


def _spark_schema(spark: SparkSession, schema: str | T.StructType) -> T.StructType:
    if isinstance(schema, T.StructType):
        return schema
    try:
        return spark.createDataFrame([], schema).schema
    except Exception as error:  # Spark raises many classes for a text that it cannot parse
        raise ConfigError(
            f"The schema {schema!r} of Json cannot be used: {spark_cause(str(error))}"
        ) from None


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
    written = None if writer is None else _text(writer)
    return AvroDecoder(_text(schema), references, registry, written)


def _text(schema: str | Mapping[str, Any]) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)
