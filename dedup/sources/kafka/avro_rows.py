"""Decodes the values of Kafka's records from Avro, in tasks."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import ConfigError
from dedup.sources.kafka.avro_bounds import AvroBounds
from dedup.sources.kafka.avro_types import AvroSchema, Parsed, other_time, parsed, reader_schema
from dedup.sources.kafka.registry import Registry, WriterSchema
from dedup.sources.strict_json import CAUSE, FIELDS

#: Decodes a record's bytes to its fields. Broken bytes may raise any exception.
Decode: TypeAlias = Callable[[bytes], dict[str, Any]]

_HEADER_BYTES = 5
#: Largest ID of a schema. Registries reject larger numbers.
_MAX_SCHEMA_ID = (1 << 31) - 1
#: If the registry does not know an ID, we ask for this ID again only after this many seconds.
_UNKNOWN_S = 30.0
#: After this many unknown IDs, we pause for this long before we ask for a new ID. So a process asks
#: at most 100 times a second.
_UNKNOWN_FREE, _UNKNOWN_PAUSE_S = 100, 0.01
_CAUSE_CHARS = 300


@dataclass(slots=True)
class AvroDecoder:
    """Decodes the values of record batches. The driver creates the decoder, and tasks use it.

    Raises ConfigError for a schema that cannot be used.
    """

    #: JSON of the reader's schema, and of the schemas to which the reader's schema refers.
    text: str
    references: tuple[str, ...] = ()
    #: The registry with the writers' schemas, if values have Confluent's wire format. Otherwise
    #: None.
    registry: Registry | None = None
    #: JSON of the schema with which all values were written. None means the reader's schema.
    writer: str | None = None
    schema: AvroSchema = field(init=False, repr=False)
    _plain: Decode = field(init=False, repr=False)
    _writers: dict[int, Decode | str] = field(default_factory=dict, init=False, repr=False)
    _unknown: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            self.schema = reader_schema(self.text, self.references)
            self._plain = self._decode_by(parsed(self.writer) if self.writer else None)
        except ConfigError:
            raise
        except Exception as error:  # fastavro raises many classes
            raise ConfigError(
                f"The Avro schema cannot be used: {type(error).__name__}: {_line(error)}. Correct "
                "the schema."
            ) from None

    def __reduce__(self) -> Any:
        return AvroDecoder, (self.text, self.references, self.registry, self.writer)

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with two more columns, `FIELDS` and `CAUSE`.

        Column ``value`` keeps the bytes of poison records, and becomes null in other rows. Raises
        SourceError if the registry does not answer. Then no record counts as poison.
        """
        for batch in batches:
            values = batch.column("value")
            fields, causes = self._decoded(values.to_pylist())
            cause = pa.array(causes, pa.string())
            kept = pc.if_else(pc.is_valid(cause), values, pa.scalar(None, values.type))
            columns = [kept if n == "value" else batch.column(n) for n in batch.schema.names]
            yield pa.RecordBatch.from_arrays(
                [*columns, fields, cause], names=[*batch.schema.names, FIELDS, CAUSE]
            )

    def _decoded(self, values: list[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        records: list[Any] = []
        causes: list[str | None] = []
        convert = self.schema.convert
        for value in values:
            record, cause = None, None
            if value is not None:
                decode = self._decoder(value)
                if isinstance(decode, str):
                    cause = decode
                else:
                    try:
                        fields = decode(value)
                        record = convert(fields) if convert else fields
                    except Exception as error:  # foreign bytes may raise any
                        cause = f"It is not Avro of this schema: {_line(error)}."
            records.append(record)
            causes.append(cause)
        return self._column(records, causes), causes

    def _column(self, records: list[Any], causes: list[str | None]) -> pa.Array:
        """Return records as a column. A record that does not fit becomes null and gets a cause."""
        kind = self.schema.type
        try:
            return pa.array(records, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass
        for index, record in enumerate(records):
            try:
                pa.array([record], kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                records[index] = None
                causes[index] = f"A value does not fit its column: {_line(error)}."
        return pa.array(records, kind)

    def _decoder(self, value: bytes) -> Decode | str:
        """Return the function that decodes this value, or the reason why we cannot decode it."""
        if self.registry is None:
            return self._plain
        if len(value) < _HEADER_BYTES:
            return f"It has {len(value)} bytes, too few for Confluent's wire format."
        if value[0] != 0:
            return f"It is not in Confluent's wire format: its first byte is {value[0]}."
        schema_id = int.from_bytes(value[1:_HEADER_BYTES], "big")
        return self._writers.get(schema_id) or self._ask(schema_id, self.registry)

    def _ask(self, schema_id: int, registry: Registry) -> Decode | str:
        now_s = time.monotonic()
        while self._unknown and next(iter(self._unknown.values())) <= now_s:  # the oldest is first
            del self._unknown[next(iter(self._unknown))]
        cause = f"The schema registry has no schema with ID {schema_id}."
        if schema_id > _MAX_SCHEMA_ID or schema_id in self._unknown:
            return cause
        if len(self._unknown) >= _UNKNOWN_FREE:
            time.sleep(_UNKNOWN_PAUSE_S)
        schema = registry.by_id(schema_id)
        if schema is None:
            self._unknown[schema_id] = time.monotonic() + _UNKNOWN_S
            return cause
        self._writers[schema_id] = self._writer(schema_id, schema)
        return self._writers[schema_id]

    def _writer(self, schema_id: int, schema: WriterSchema) -> Decode | str:
        if schema.kind != "AVRO":
            return f"Its schema, with ID {schema_id}, is not Avro but {schema.kind}."
        try:
            return self._decode_by(parsed(schema.text, schema.references), skip=_HEADER_BYTES)
        except Exception as error:  # fastavro has many
            return f"Its schema, with ID {schema_id}, cannot be read: {_line(error)}."

    def _decode_by(self, written: Parsed | None, skip: int = 0) -> Decode:
        reader, reader_names = self.schema.parsed
        writer, writer_names = written or self.schema.parsed
        bounds = AvroBounds(writer, writer_names)
        if problem := other_time(writer, reader, (writer_names, reader_names)):
            raise ValueError(problem)

        def decode(value: bytes) -> dict[str, Any]:
            bounds.check(value, skip)
            stream = io.BytesIO(value)
            stream.seek(skip)
            record: Any = fastavro.schemaless_reader(stream, writer, reader if written else None)
            return record  # type: ignore[no-any-return]

        return decode


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".") or "the bytes end too early"
    return text if len(text) <= _CAUSE_CHARS else f"{text[:_CAUSE_CHARS]}..."
