"""Writes a column as Avro in Confluent's wire format: zero, the schema's ID, and the bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import ConfigError, DataError, MissingExtraError
from dedup.sources.kafka.registry import Registry
from dedup.spark.driver.shipping import shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import types as T  # noqa: N812

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
        from pyspark.sql import types as T  # noqa: N812

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
    if newest.kind != "AVRO" or newest.id is None:
        raise ConfigError(f"The newest schema of {subject} is not Avro but {newest.kind}.")
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
        try:
            from dedup.sources.kafka.avro_types import reader_schema
        except ModuleNotFoundError as error:
            if error.name != "fastavro":
                raise
            raise MissingExtraError("kafka", "Writing Avro") from None
        try:
            found = reader_schema(self.text, self.references, is_record=False)
        except ConfigError:
            raise
        except Exception as error:  # fastavro raises many classes
            raise ConfigError(
                f"The Avro schema of {self.subject} cannot be used: {type(error).__name__}: "
                f"{error}. Correct the schema."
            ) from None
        (self._schema, self._names), self.type = found.parsed, found.type
        self._plain(self.type)  # raises ConfigError

    def __reduce__(self) -> Any:
        return AvroEncoder, (
            self.schema_id, self.text, self.references, self.subject, self.column,
        )  # fmt: skip

    def check(self, kind: T.DataType) -> None:
        """Raise ConfigError if a column of this Spark type cannot be written by the schema."""
        from pyspark.sql import types as T  # noqa: N812
        from pyspark.sql.pandas.types import from_arrow_type

        wanted = from_arrow_type(self.type, prefer_timestamp_ntz=True)
        if not isinstance(wanted, T.StructType) or not isinstance(kind, T.StructType):
            if kind.simpleString() != wanted.simpleString():
                raise self._unfit(f"Column `{self.column}`", kind, wanted)
            return
        defaults = {each["name"] for each in self._schema["fields"] if "default" in each}
        given = {each.name: each.dataType for each in kind.fields}
        for name, one in ((each.name, each.dataType) for each in wanted.fields):
            if name not in given:
                if name not in defaults:
                    raise ConfigError(
                        f"Column `{self.column}` lacks field {name}, which the Avro schema of "
                        f"{self.subject} needs. Add it."
                    )
            elif given[name].simpleString() != one.simpleString():
                raise self._unfit(f"Field {name} of column `{self.column}`", given[name], one)
        if others := given.keys() - set(wanted.names):
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
        """Yield each batch with the encoded column.

        Raises DataError for a value that the schema cannot hold.
        """
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

        fine, plain = self._plain(column.type)
        values = column.cast(fine).cast(plain).to_pylist()
        head = b"\0" + self.schema_id.to_bytes(4, "big")
        encoded: list[bytes | None] = []
        for value in values:
            if value is None:
                encoded.append(None)
                continue
            out = io.BytesIO(head)
            out.seek(len(head))
            fastavro.schemaless_writer(out, self._schema, _with_dicts(value, plain))
            encoded.append(out.getvalue())
        return encoded

    def _plain(self, kind: pa.DataType) -> tuple[pa.DataType, pa.DataType]:
        """Return the types to cast a column to, one after the other.

        The first has the units of the schema, and the cast fails if a value has finer ones. The
        second has the numbers that Avro writes.
        """
        return _plain_types(self._schema, kind, self._names)


def _plain_types(
    schema: Any, kind: pa.DataType, names: Mapping[str, Any]
) -> tuple[pa.DataType, pa.DataType]:
    from dedup.sources.kafka.avro_types import MEANING

    if isinstance(schema, list):
        [schema] = [branch for branch in schema if branch not in ("null", {"type": "null"})]
    if isinstance(schema, str):
        schema = names.get(schema, {"type": schema})
    meaning = schema.get(MEANING, "")
    if (schema["type"], meaning) == ("fixed", "uuid"):
        raise ConfigError(
            "The Avro schema has a uuid of 16 bytes, which cannot be written. Use a string."
        )
    if pa.types.is_struct(kind):
        fields = {each["name"]: each["type"] for each in schema["fields"]}
        inside = [(each.name, _plain_types(fields[each.name], each.type, names)) for each in kind]
        return pa.struct([(n, one[0]) for n, one in inside]), pa.struct(
            [(n, one[1]) for n, one in inside]
        )
    if pa.types.is_map(kind):
        fine, plain = _plain_types(schema["values"], kind.item_type, names)
        return pa.map_(pa.string(), fine), pa.map_(pa.string(), plain)
    if pa.types.is_list(kind):
        fine, plain = _plain_types(schema["items"], kind.value_type, names)
        return pa.list_(fine), pa.list_(plain)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms" if meaning.endswith("millis") else "us", kind.tz), pa.int64()
    if pa.types.is_date(kind):
        return kind, pa.int32()
    return kind, kind


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
