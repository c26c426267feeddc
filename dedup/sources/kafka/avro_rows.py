"""Avro in the values of Kafka's records, as columns: what the tasks do."""

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
from dedup.sources.kafka.avro_types import AvroSchema, Parsed, other_time, parsed
from dedup.sources.kafka.parsed import CAUSE, FIELDS
from dedup.sources.kafka.registry import Registry, WriterSchema

#: Makes a record's fields of its bytes; raises whatever the bytes provoke.
Decode: TypeAlias = Callable[[bytes], dict[str, Any]]

_HEADER_BYTES = 5
#: Greater IDs are no numbers to a registry.
_MAX_SCHEMA_ID = (1 << 31) - 1
#: How long an ID that the registry did not know is not asked for again, in seconds.
_UNKNOWN_S = 30.0
#: If so many are unknown, each other new ID waits: then 100 a second load the registry at most.
_UNKNOWN_FREE, _UNKNOWN_PAUSE_S = 100, 0.01
_CAUSE_CHARS = 300


@dataclass(slots=True)
class AvroDecoder:
    """Decodes the values of record batches; made on the driver, used in tasks.

    Parameters
    ----------
    text : str
        JSON of the reader's schema.
    references : tuple of str
        JSON of the schemas that it names.
    registry : Registry or None
        Knows the writers' schemas (Confluent's wire format). None: every value was written with
        the reader's, or with `writer`.
    writer : str or None
        JSON of the one schema of all writers, without a registry.
    """

    text: str
    references: tuple[str, ...] = ()
    registry: Registry | None = None
    writer: str | None = None
    _schema: AvroSchema | None = field(default=None, init=False, repr=False)
    _plain: Decode | None = field(default=None, init=False, repr=False)
    _writers: dict[int, Decode | str] = field(default_factory=dict, init=False, repr=False)
    _unknown: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def __getstate__(self) -> Any:
        return self.text, self.references, self.registry, self.writer

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @property
    def schema(self) -> AvroSchema:
        """The reader's schema."""
        if self._schema is None:
            self._schema = AvroSchema(self.text, self.references)
        return self._schema

    def check(self) -> None:
        """Refuse schemas that cannot be used.

        Raises
        ------
        ConfigError
            Saying what is wrong with them.
        """
        try:
            self._start()
        except ConfigError:
            raise
        except Exception as error:  # fastavro has many
            raise ConfigError(
                f"The Avro schema cannot be used: {type(error).__name__}: {_line(error)}. Correct "
                "the schema."
            ) from None

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with `FIELDS` and `CAUSE` behind its columns.

        The bytes of a value stay where it has a cause, and are null elsewhere.

        Raises
        ------
        SourceError
            If the registry does not answer. That is not the record's fault.
        """
        self._start()
        for batch in batches:
            values = batch.column("value")
            fields, causes = self._decoded(values.to_pylist())
            cause = pa.array(causes, pa.string())
            kept = pc.if_else(pc.is_valid(cause), values, pa.scalar(None, values.type))
            columns = [kept if n == "value" else batch.column(n) for n in batch.schema.names]
            yield pa.RecordBatch.from_arrays(
                [*columns, fields, cause], names=[*batch.schema.names, FIELDS, CAUSE]
            )

    def _start(self) -> None:
        if self._plain is None:
            self._plain = self._decode_by(parsed(self.writer) if self.writer else None)

    def _decoded(self, values: list[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        records: list[Any] = []
        causes: list[str | None] = []
        convert = self.schema.convert
        for value in values:
            record, cause = None, None
            if value is not None:
                decode, cause = self._decoder(value)
                if decode is not None:
                    try:
                        found = decode(value)
                        record = convert(found) if convert else found
                    except Exception as error:  # whatever foreign bytes provoke
                        cause = f"It is not Avro of this schema: {_line(error)}."
            records.append(record)
            causes.append(cause)
        return self._column(records, causes), causes

    def _column(self, records: list[Any], causes: list[str | None]) -> pa.Array:
        """Return the records as a column; note a cause where one does not fit."""
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

    def _decoder(self, value: bytes) -> tuple[Decode | None, str | None]:
        """Return what reads this value, or why nothing does."""
        if self.registry is None:
            return self._plain, None
        if len(value) < _HEADER_BYTES:
            return None, f"It has {len(value)} bytes, too few for Confluent's wire format."
        if value[0] != 0:
            return None, f"It is not in Confluent's wire format: its first byte is {value[0]}."
        schema_id = int.from_bytes(value[1:_HEADER_BYTES], "big")
        found = self._writers.get(schema_id) or self._ask(schema_id, self.registry)
        return (None, found) if isinstance(found, str) else (found, None)

    def _ask(self, schema_id: int, registry: Registry) -> Decode | str:
        """Return what reads the values of a schema, or why nothing does."""
        now_s = time.monotonic()
        while self._unknown and next(iter(self._unknown.values())) <= now_s:  # the oldest is first
            del self._unknown[next(iter(self._unknown))]
        cause = f"The schema registry has no schema with ID {schema_id}."
        if schema_id > _MAX_SCHEMA_ID or schema_id in self._unknown:
            return cause
        if len(self._unknown) >= _UNKNOWN_FREE:
            time.sleep(_UNKNOWN_PAUSE_S)
        given = registry.by_id(schema_id)
        if given is None:
            self._unknown[schema_id] = time.monotonic() + _UNKNOWN_S
            return cause
        self._writers[schema_id] = self._writer(schema_id, given)
        return self._writers[schema_id]

    def _writer(self, schema_id: int, given: WriterSchema) -> Decode | str:
        if given.kind != "AVRO":
            return f"Its schema, with ID {schema_id}, is not Avro but {given.kind}."
        try:
            return self._decode_by(parsed(given.text, given.references), skip=_HEADER_BYTES)
        except Exception as error:  # fastavro has many
            return f"Its schema, with ID {schema_id}, cannot be read: {_line(error)}."

    def _decode_by(self, given: Parsed | None, skip: int = 0) -> Decode:
        reader, names = self.schema.parsed
        writer, theirs = given or self.schema.parsed
        bounds = AvroBounds(writer, theirs)
        if problem := other_time(writer, reader, (theirs, names)):
            raise ValueError(problem)

        def decode(value: bytes) -> dict[str, Any]:
            bounds.check(value, skip)
            stream = io.BytesIO(value)
            stream.seek(skip)
            record: Any = fastavro.schemaless_reader(stream, writer, reader if given else None)
            fields: dict[str, Any] = record
            return fields

        return decode


def _line(error: Exception) -> str:
    said = " ".join(str(error).split()).rstrip(".") or "the bytes end too early"
    return said if len(said) <= _CAUSE_CHARS else f"{said[:_CAUSE_CHARS]}..."
