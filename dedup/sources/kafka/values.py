"""Formats of a Kafka record's key and value, and parsers that turn their fields into columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from dedup.errors import ConfigError
from dedup.errors.cause import spark_cause
from dedup.sources.files.bypass import text_types
from dedup.sources.files.text_values import Spelling
from dedup.sources.kafka.decoder import (
    CAUSE,
    FIELDS,
    KEY_CAUSE,
    KEY_FIELDS,
    BytesDecoder,
    FunctionDecoder,
    fields_type,
    need_fastavro,
)
from dedup.sources.kafka.json_decoder import JsonDecoder
from dedup.sources.kafka.registry import Registry
from dedup.spark.driver import checks
from dedup.spark.driver.shipping import shipped

if TYPE_CHECKING:
    from dedup.sources.kafka.avro_rows import AvroDecoder

#: Options of `Json`, in lower case, and the fields of `Spelling` that they set.
_JSON_OPTIONS = {
    "dateformat": "date", "timestampformat": "timestamp", "timestampntzformat": "timestamp_ntz",
    "timezone": "time_zone",
}  # fmt: skip
#: Adds two columns to records. `FIELDS` is null for a missing key or value and for a poison record.
#: `CAUSE` is the reason why a record is poison, and is null for other records.
Parser: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Json:
    """The format of keys or values that are one JSON object in UTF-8.

    Parameters
    ----------
    schema : str or StructType
        Schema of the fields, as DDL or as Spark's type. Fields that are not in the schema are
        ignored. A ``NOT NULL`` field must be present.
    options : mapping of str to str
        Any of ``dateFormat``, ``timestampFormat``, ``timestampNTZFormat``, whose patterns have the
        letters that ``dedup/cli/VALUES.md`` lists, and ``timeZone``, for times without a zone.
        Default: ISO 8601, and the session's time zone.
    """

    schema: str | T.StructType
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Avro:
    """The format of keys or values that are the bytes of one Avro record, without a header.

    A key may also be a single value, such as a string.

    Parameters
    ----------
    schema : str or mapping
        The reader's schema, as JSON text or parsed. Its fields become columns.
    writer : str or mapping, optional
        The schema with which all values were written. Default: the reader's schema.
    """

    schema: str | Mapping[str, Any]
    writer: str | Mapping[str, Any] | None = None

    def decoder(self, topics: tuple[str, ...], part: str = "value") -> AvroDecoder:
        return _avro(self.schema, part, writer=self.writer)


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
        The registry's name for the schema's versions. Default: the topic's name and ``-value``, or
        ``-key`` for a key.
    """

    registry: Registry | str
    schema: str | Mapping[str, Any] | None = None
    subject: str | None = None

    def decoder(self, topics: tuple[str, ...], part: str = "value") -> AvroDecoder:
        registry = Registry(self.registry) if isinstance(self.registry, str) else self.registry
        if self.schema is not None:
            return _avro(self.schema, part, registry=registry)
        if self.subject is None and len(topics) != 1:
            raise ConfigError(
                "ConfluentAvro needs schema= or subject= for several topics or a pattern, because "
                "all records get the same columns."
            )
        subject = self.subject or f"{topics[0]}-{part}"
        newest = registry.latest(subject)
        return _avro(newest.text, part, registry=registry, references=newest.references)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A format of keys or values that a function of yours reads.

    Parameters
    ----------
    function : callable
        Gets the bytes, and returns a dict or a Row with the fields of `schema`. Other fields are
        ignored, and missing fields are null. It runs in tasks, so it must pickle, and machines need
        the modules that it imports. If it raises an exception, or returns a value that does not fit
        the schema exactly, the record is a poison record. If it raises `dedup.errors.SourceError`,
        the query stops.
    schema : str or StructType
        Schema of the fields, as DDL or as Spark's type. A ``NOT NULL`` field must be present. A
        ``TIMESTAMP`` takes a datetime with a time zone, a ``TIMESTAMP_NTZ`` one without. Both have
        microseconds, and years from 1 to 9999 in UTC. A ``FLOAT`` takes only numbers that it holds
        exactly.
    """

    function: Callable[[bytes], Mapping[str, Any] | Row]
    schema: str | T.StructType


#: Values of the parameters ``value`` and ``key`` of `kafka_records`.
ValueFormat: TypeAlias = str | Json | Avro | ConfluentAvro | Decoder


def parser(
    spark: SparkSession, form: ValueFormat, topics: tuple[str, ...], part: str = "value"
) -> Parser | None:
    """Return the function that parses "value" or "key" of records, or None for raw bytes."""
    if isinstance(form, Json):
        schema = text_types(_spark_schema(spark, form.schema, "Json"))
        return _in_tasks(_json_decoder(spark, schema, form), _nullable(schema), part)
    if isinstance(form, Decoder):
        schema = _spark_schema(spark, form.schema, "Decoder")
        return _in_tasks(FunctionDecoder(form.function, schema), schema, part)
    if isinstance(form, (Avro, ConfluentAvro)):
        decoder = form.decoder(topics, part)
        return _in_tasks(decoder, from_arrow_type(decoder.type, prefer_timestamp_ntz=True), part)
    if form != "raw":
        raise ConfigError(
            f"{part}={form!r} is unknown. Give 'raw', Json(...), Avro(...), ConfluentAvro(...) or "
            "Decoder(...)."
        )
    return None


def _in_tasks(decoder: BytesDecoder, kind: T.DataType, part: str) -> Parser:
    load = shipped(decoder)

    def decode(batches: Any) -> Any:
        return load().batches(batches, part)

    def parse(records: DataFrame) -> DataFrame:
        added = [T.StructField(FIELDS, kind), T.StructField(CAUSE, T.StringType())]
        return records.mapInArrow(decode, T.StructType([*records.schema.fields, *added]))

    return parse


def with_key(parse_key: Parser, parse: Parser | None) -> Parser:
    """Return a parser of keys and values. It adds `KEY_FIELDS`, `CAUSE`, and `FIELDS` if any."""

    def parse_both(records: DataFrame) -> DataFrame:
        rows = parse_key(records).withColumnsRenamed({FIELDS: KEY_FIELDS, CAUSE: KEY_CAUSE})
        cause = F.concat(F.lit("Key: "), F.col(KEY_CAUSE))
        if parse is not None:
            rows = parse(rows)
            cause = F.coalesce(CAUSE, cause)
        return rows.withColumn(CAUSE, cause).drop(KEY_CAUSE)

    return parse_both


def _spark_schema(spark: SparkSession, schema: str | T.StructType, owner: str) -> T.StructType:
    if isinstance(schema, T.StructType):
        return schema
    try:
        return spark.createDataFrame([], schema).schema
    except Exception as error:  # Spark raises many classes for a text that it cannot parse
        raise ConfigError(
            f"The schema {schema!r} of {owner} cannot be used: {spark_cause(str(error))}"
        ) from None


def _nullable(schema: T.StructType) -> T.StructType:
    """Return a schema whose fields may be null, nested ones as well."""
    text = re.sub(r'"(nullable|containsNull|valueContainsNull)":false', r'"\1":true', schema.json())
    return T.StructType.fromJson(json.loads(text))


def _json_decoder(spark: SparkSession, schema: T.StructType, form: Json) -> JsonDecoder:
    zone = checks.time_zone(spark)
    spelled: dict[str, Any] = {"time_zone": zone}
    for name, value in form.options.items():
        if name.lower() not in _JSON_OPTIONS:
            raise ConfigError(
                f"Option {name}={value} has no meaning for Json: a value is one JSON object in "
                "UTF-8, and on_error= decides about others. Leave it out."
            )
        spelled[_JSON_OPTIONS[name.lower()]] = value
    kind = fields_type(schema, "Json")
    try:
        return JsonDecoder(kind, Spelling(**spelled))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The schema or an option of Json cannot be used: {error}.") from None


def _avro(
    schema: str | Mapping[str, Any],
    part: str,
    *,
    registry: Registry | None = None,
    writer: str | Mapping[str, Any] | None = None,
    references: tuple[str, ...] = (),
) -> AvroDecoder:
    need_fastavro("Reading Avro")
    from dedup.sources.kafka.avro_rows import AvroDecoder

    written = None if writer is None else _text(writer)
    return AvroDecoder(_text(schema), references, registry, written, is_record=part == "value")


def _text(schema: str | Mapping[str, Any]) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)
