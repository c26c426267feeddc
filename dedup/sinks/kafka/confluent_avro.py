"""Writes a column as Avro in Confluent's wire format: zero, the schema's ID, and the bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from dedup.errors import ConfigError, DataError
from dedup.sources.kafka.decoder import need_fastavro
from dedup.sources.kafka.registry import Registry
from dedup.spark.driver.shipping import shipped

_SHOWN_CHARS = 100


def to_confluent_avro(
    registry: Registry | str,
    *,
    subject: str,
    schema: str | Mapping[str, Any] | None = None,
    column: str = "value",
) -> Callable[[DataFrame], DataFrame]:
    """Return a function that writes a column of a DataFrame in Confluent's wire format.

    Pass it to ``DataFrame.transform``. The column becomes binary: a zero byte, the ID of the
    schema, and the Avro bytes. Null stays null, which Kafka reads as a tombstone.

    Parameters
    ----------
    registry : Registry or str
        The schema registry, or its URL. The driver asks it once, when the function is applied.
    subject : str
        The registry's name for the schema's versions, such as ``"orders-value"``.
    schema : str or mapping, optional
        The schema to write, as JSON text or parsed. It is registered if `subject` lacks it.
        Default: the newest schema of `subject`. Give the schema for an exactly-once sink.
        Otherwise, if somebody registers a new version, a micro-batch that is replayed after a
        restart has other bytes, and the sink stops the query.
    column : str
        Name of the column. A struct becomes a record. Each field must have the type that
        `kafka_records` gives a field of the schema, in the order of the schema if it is nested. A
        field with a default value may be missing at the top level.

    Raises
    ------
    ConfigError
        When the function is applied, if the registry refuses the schema or lacks the subject, or
        the column does not have the types of the schema.
    SourceError
        When the function is applied, if the registry does not answer.
    MissingExtraError
        If fastavro is not installed.

    Notes
    -----
    A value that the schema cannot hold stops the query with a DataError: null in a field that may
    not be null, a symbol that an enum lacks, or microseconds for ``timestamp-millis``.
    """

    def encode(rows: DataFrame) -> DataFrame:
        encoder = _encoder(registry, subject, schema, column)
        if column not in rows.columns:
            raise ConfigError(
                f"Column `{column}`, to be written as Avro, does not exist. Columns are "
                f"{', '.join(rows.columns)}. Build it with F.struct(...).alias({column!r})."
            )
        encoder.check(rows.schema[column].dataType)
        load = shipped(encoder)

        def batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return load().batches(batches)

        fields = [
            T.StructField(column, T.BinaryType()) if one.name == column else one
            for one in rows.schema.fields
        ]
        return rows.mapInArrow(batches, T.StructType(fields))

    return encode


def _encoder(
    registry: Registry | str, subject: str, schema: str | Mapping[str, Any] | None, column: str
) -> AvroEncoder:
    server = Registry(registry) if isinstance(registry, str) else registry
    if schema is not None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        # Parse it before it is registered.
        _ = AvroEncoder(0, text, (), subject, column).type
        return AvroEncoder(server.register(subject, text), text, (), subject, column)
    newest = server.latest(subject)
    assert newest.id is not None, "only an answer to a request by ID lacks it"
    return AvroEncoder(newest.id, newest.text, newest.references, subject, column)


@dataclass
class AvroEncoder:
    """Encodes one column. The driver creates the encoder, and tasks use it."""

    schema_id: int
    text: str
    references: tuple[str, ...]
    subject: str
    column: str
    #: The type that the column must have, except for missing fields.
    type: pa.DataType = field(init=False)

    def __post_init__(self) -> None:
        need_fastavro("Writing Avro")
        from dedup.sources.kafka.avro_types import MEANING, reader_schema

        try:
            schema = reader_schema(self.text, self.references, is_record=False)
        except ConfigError:
            raise
        except Exception as error:  # fastavro raises many classes
            raise ConfigError(
                f"The Avro schema of {self.subject} cannot be used: {type(error).__name__}: "
                f"{error}. Correct the schema."
            ) from None
        self._schema, names = schema.parsed
        if any((one["type"], one.get(MEANING)) == ("fixed", "uuid") for one in names.values()):
            raise ConfigError(
                "The Avro schema has a uuid of 16 bytes, which cannot be written. Use a string."
            )
        self.type, *self._written = schema.column.types

    def __reduce__(self) -> Any:
        return AvroEncoder, (
            self.schema_id, self.text, self.references, self.subject, self.column,
        )  # fmt: skip

    def check(self, kind: T.DataType) -> None:
        """Raise ConfigError if a column of this Spark type cannot be written by the schema."""
        wanted = from_arrow_type(self.type, prefer_timestamp_ntz=True)
        if not isinstance(wanted, T.StructType) or not isinstance(kind, T.StructType):
            if kind.simpleString() != wanted.simpleString():
                raise self._unfit(f"Column `{self.column}`", kind, wanted)
            return
        defaults = {each["name"] for each in self._schema["fields"] if "default" in each}
        kinds = {each.name: each.dataType for each in kind.fields}
        for name, one in ((each.name, each.dataType) for each in wanted.fields):
            if name not in kinds:
                if name not in defaults:
                    raise ConfigError(
                        f"Column `{self.column}` lacks field {name}, which the Avro schema of "
                        f"{self.subject} needs. Add it."
                    )
            elif kinds[name].simpleString() != one.simpleString():
                raise self._unfit(f"Field {name} of column `{self.column}`", kinds[name], one)
        if others := kinds.keys() - set(wanted.names):
            raise ConfigError(
                f"Column `{self.column}` has fields that the Avro schema of {self.subject} lacks: "
                f"{', '.join(sorted(others))}. Leave them out, or register a schema with them."
            )

    def _unfit(self, what: str, kind: T.DataType, wanted: T.DataType) -> ConfigError:
        return ConfigError(
            f"{what} is {kind.simpleString()}, and must be {wanted.simpleString()} for the Avro "
            f"schema of {self.subject}. Cast it."
        )

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            at = batch.schema.get_field_index(self.column)
            encoded = pa.array(self._encoded(batch.column(at)), pa.binary())
            yield batch.set_column(at, self.column, encoded)

    def _encoded(self, column: pa.Array) -> list[bytes | None]:
        try:
            return self._bytes(column)
        except Exception as error:  # Arrow and fastavro raise many classes
            if len(column) == 1:
                shown = repr(column[0].as_py())
                raise DataError(
                    f"Column `{self.column}` has a value that the Avro schema of {self.subject} "
                    f"cannot hold: {type(error).__name__}: {error}. The value: "
                    f"{shown[:_SHOWN_CHARS]}. Nothing of its slice was published."
                ) from None
        # Encode row by row, so that the error names the value.
        return [one for row in range(len(column)) for one in self._encoded(column.slice(row, 1))]

    def _bytes(self, column: pa.Array) -> list[bytes | None]:
        import fastavro

        kind = column.type
        # The first cast fails if a value has finer units than the schema.
        for target in self._written:
            # Fields may be missing or in another order at the top level.
            if pa.types.is_struct(target):
                target = pa.struct([target.field(each.name) for each in kind])
            column = column.cast(target)
        head = b"\0" + self.schema_id.to_bytes(4, "big")
        encoded: list[bytes | None] = []
        for value in column.to_pylist():
            if value is None:
                encoded.append(None)
                continue
            out = io.BytesIO(head)
            out.seek(len(head))
            fastavro.schemaless_writer(out, self._schema, _with_dicts(value, column.type))
            encoded.append(out.getvalue())
        return encoded


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    """Return a value in which each map is a dict. Arrow returns maps as lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _with_dicts(each, kind.item_type) for key, each in value}
    if pa.types.is_list(kind):
        return [_with_dicts(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {each.name: _with_dicts(value[each.name], each.type) for each in kind}
    return value
