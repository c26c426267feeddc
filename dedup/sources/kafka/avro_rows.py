"""Decodes keys and values of Kafka's records from Avro, in tasks."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sources.kafka.avro_bounds import AvroBounds
from dedup.sources.kafka.avro_types import AvroSchema, Parsed, other_time, parsed, reader_schema
from dedup.sources.kafka.decoder import BytesDecoder, Poison, line_of
from dedup.sources.kafka.registry import Registry, WriterSchema

#: Decodes bytes to a value of Avro, mostly a dict. Broken bytes may raise any exception.
Decode: TypeAlias = Callable[[bytes], Any]

_HEADER_BYTES = 5
#: Largest ID of a schema. Registries reject larger numbers.
_MAX_SCHEMA_ID = (1 << 31) - 1
#: If the registry does not know an ID, we ask for this ID again only after this many seconds.
_UNKNOWN_S = 30.0
#: After this many unknown IDs, we pause for this long before we ask for a new ID. So a process asks
#: at most 100 times a second.
_UNKNOWN_FREE, _UNKNOWN_PAUSE_S = 100, 0.01


@dataclass
class AvroDecoder(BytesDecoder):
    """Decodes Avro. The driver creates the decoder, and tasks use it."""

    #: JSON of the reader's schema, and of the schemas to which the reader's schema refers.
    text: str
    references: tuple[str, ...] = ()
    #: The registry with the writers' schemas, if values have Confluent's wire format. Otherwise
    #: None.
    registry: Registry | None = None
    #: JSON of the schema with which all values were written. None means the reader's schema.
    writer: str | None = None
    #: Whether the schema must describe a record. A key may also be a single value.
    is_record: bool = True
    type: pa.DataType = field(init=False, repr=False)
    _schema: AvroSchema = field(init=False, repr=False)
    _plain: Decode = field(init=False, repr=False)
    _writers: dict[int, Decode | str] = field(default_factory=dict, init=False, repr=False)
    _unknown: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            self._schema = reader_schema(self.text, self.references, is_record=self.is_record)
            self.type = self._schema.column.type
            self._plain = self._decode_by(parsed(self.writer) if self.writer else None)
        except ConfigError:
            raise
        except Exception as error:  # fastavro raises many classes
            raise ConfigError(
                f"The Avro schema cannot be used: {type(error).__name__}: {line_of(error)}. "
                "Correct the schema."
            ) from None

    def __reduce__(self) -> Any:
        return AvroDecoder, (
            self.text, self.references, self.registry, self.writer, self.is_record,
        )  # fmt: skip

    def decode(self, data: bytes) -> Any:
        decode = self._decoder(data)
        if isinstance(decode, str):
            raise Poison(decode)
        try:
            value = decode(data)
            convert = self._schema.column.convert
            return value if convert is None or value is None else convert(value)
        except Exception as error:  # foreign bytes may raise any
            raise Poison(f"It is not Avro of this schema: {line_of(error)}.") from None

    def _decoder(self, value: bytes) -> Decode | str:
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
            return f"Its schema, with ID {schema_id}, cannot be read: {line_of(error)}."

    def _decode_by(self, written: Parsed | None, skip: int = 0) -> Decode:
        reader, reader_names = self._schema.parsed
        writer, writer_names = written or self._schema.parsed
        bounds = AvroBounds(writer, writer_names)
        if problem := other_time(writer, reader, (writer_names, reader_names)):
            raise ValueError(problem)

        def decode(value: bytes) -> Any:
            bounds.check(value, skip)
            stream = io.BytesIO(value)
            stream.seek(skip)
            return fastavro.schemaless_reader(stream, writer, reader if written else None)

        return decode
