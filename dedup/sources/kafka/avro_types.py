"""Maps Avro's types to types of Arrow that lose nothing, and refuses all other types by name.

The rules are in the Avro specification 1.12, "Logical Types". Readers must ignore logical types
that they do not know.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal
from typing import Any, NamedTuple, TypeAlias

import fastavro
import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sources.kafka.avro_bounds import MAX_DECIMAL_BYTES

#: Converts a value of fastavro, which is never None, to a value for Arrow. `Convert` itself is None
#: if Arrow takes the value of fastavro.
Convert: TypeAlias = Callable[[Any], Any] | None
#: A schema that fastavro has parsed, and the named types in the schema.
Parsed: TypeAlias = tuple[Any, Mapping[str, Any]]

_MAX_DIGITS = 38
#: Key under which `parsed` hides logical types from fastavro, which would convert their values.
MEANING = "__logical"
_TIMES = re.compile("date|time-.*|timestamp-.*|local-timestamp-.*")
#: Context for exact decimals. By default, Python would round to 28 digits.
_EXACT = Context(prec=1000)


class AvroColumn(NamedTuple):
    """A type of Arrow, and the function that converts values of fastavro to the type."""

    type: pa.DataType
    convert: Convert = None
    #: The type with the units of the schema, and the type of what Avro writes, if they differ.
    fine: pa.DataType | None = None
    plain: pa.DataType | None = None

    @property
    def types(self) -> tuple[pa.DataType, pa.DataType, pa.DataType]:
        return self.type, self.fine or self.type, self.plain or self.type


def _bytes(value: bytes | str) -> bytes:
    """Return a value as bytes. Default values in schemas are texts with one character per byte."""
    return value.encode("latin-1") if isinstance(value, str) else value


def _micros(millis: int) -> int:
    return millis * 1000


_UTC_US, _LOCAL_US = pa.timestamp("us", "UTC"), pa.timestamp("us")
_UTC_MS, _LOCAL_MS, _LONG = pa.timestamp("ms", "UTC"), pa.timestamp("ms"), pa.int64()
#: Columns by type and logical type. Spark lacks the logical types for times of day and nanoseconds,
#: so these values stay the numbers that were written.
_COLUMNS = {
    ("boolean", None): AvroColumn(pa.bool_()),
    ("int", None): AvroColumn(pa.int32()),
    ("int", "date"): AvroColumn(pa.date32(), plain=pa.int32()),
    ("long", None): AvroColumn(_LONG),
    ("long", "timestamp-micros"): AvroColumn(_UTC_US, plain=_LONG),
    ("long", "timestamp-millis"): AvroColumn(_UTC_US, _micros, _UTC_MS, _LONG),
    ("long", "local-timestamp-micros"): AvroColumn(_LOCAL_US, plain=_LONG),
    ("long", "local-timestamp-millis"): AvroColumn(_LOCAL_US, _micros, _LOCAL_MS, _LONG),
    ("float", None): AvroColumn(pa.float32()),
    ("double", None): AvroColumn(pa.float64()),
    ("bytes", None): AvroColumn(pa.binary(), _bytes),
    ("fixed", None): AvroColumn(pa.binary(), _bytes),
    ("string", None): AvroColumn(pa.string()),
    ("enum", None): AvroColumn(pa.string()),
}


class AvroSchema(NamedTuple):
    """A reader's schema, and the column of its values."""

    parsed: Parsed
    column: AvroColumn


def reader_schema(
    text: str, references: Iterable[str] = (), *, is_record: bool = True
) -> AvroSchema:
    """Return a reader's schema, given its JSON and the JSON of the schemas to which it refers.

    Raises ConfigError if `is_record` is true and the schema is not for a record, or if Spark lacks
    the type of a field. Raises fastavro's error if the text is not a schema.
    """
    schema, names = parsed(text, references)
    if not isinstance(schema, dict) or schema["type"] not in ("record", "error"):
        if not is_record:
            return AvroSchema((schema, names), _column(schema, "", names, ()))
        raise ConfigError(
            "The Avro schema describes no record, so it has no fields to become columns. Give the "
            "schema of a record, or read the values raw."
        )
    # Every field may be null, because a tombstone has no fields.
    return AvroSchema((schema, names), _record(schema, "", names, ()))


def parsed(text: str, references: Iterable[str] = ()) -> Parsed:
    """Parse a schema so that fastavro converts no values of logical types except decimals.

    A decimal has the writer's scale, which may differ from the reader's scale. Raises fastavro's
    errors.
    """
    names: dict[str, Any] = {}
    for source in (*references, text):
        schema: Any = fastavro.parse_schema(_hidden(json.loads(source)), named_schemas=names)
    return schema, names


def other_time(written: Any, read: Any, names: tuple[Any, Any], path: str = "") -> str | None:
    """Return a text about a time field whose two schemas have different logical types, or None.

    Avro itself would read the number in the wrong unit. `written` and `read` are the writer's and
    the reader's schema of the field `path`. `names` are the named types of the two schemas.
    """
    for one in _branches(written, names[0]):
        for other in _branches(read, names[1]):
            times = one.get(MEANING, ""), other.get(MEANING, "")
            if times[0] != times[1] and all(map(_TIMES.fullmatch, times)):
                return f"{path} is {times[0]}, but {times[1]} in the reader's schema"
            fields = other.get("fields", ())
            by_name = {name: f for f in fields for name in f.get("aliases", ())}
            by_name |= {f["name"]: f for f in fields}
            pairs = [
                (f"{path}.{mine['name']}".lstrip("."), f["type"], mine["type"])
                for f in one.get("fields", ())
                if (mine := by_name.get(f["name"]))
            ]
            inner = {"items", "values"} & one.keys() & other.keys()
            pairs += [(f"{path}.{key}", one[key], other[key]) for key in inner]
            for where, wrote, reads in pairs:
                if problem := other_time(wrote, reads, names, where):
                    return problem
    return None


def _hidden(schema: Any) -> Any:
    """Return a copy of a schema that hides all logical types except decimals from fastavro."""
    if isinstance(schema, list):
        return [_hidden(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {MEANING if key == "logicalType" else key: value for key, value in schema.items()}
    if renamed.get(MEANING) == "decimal":
        renamed["logicalType"] = "decimal"
    inner = {"type", "items", "values", "fields"} & renamed.keys()
    return renamed | {key: _hidden(renamed[key]) for key in inner}


def _branches(schema: Any, names: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if isinstance(schema, list):
        return [one for branch in schema for one in _branches(branch, names)]
    return [names.get(schema, {"type": schema}) if isinstance(schema, str) else schema]


def _column(schema: Any, path: str, names: Mapping[str, Any], above: tuple[str, ...]) -> AvroColumn:
    """Return the column for a schema. `above` holds the names of the enclosing records."""
    if isinstance(schema, list):
        values = [branch for branch in schema if branch not in ("null", {"type": "null"})]
        if len(values) != 1:
            raise _refused(path, json.dumps(schema)[:100], "a union may hold one type and null")
        return _column(values[0], path, names, above)
    if isinstance(schema, str):
        schema = names.get(schema, {"type": schema})
    kind, meaning = schema["type"], schema.get(MEANING)
    if kind in ("array", "map"):
        inside = "items" if kind == "array" else "values"
        return _many(kind, _column(schema[inside], f"{path}.{inside}", names, above))
    if kind in ("record", "error"):
        return _record(schema, path, names, above)
    if meaning == "duration":
        raise _refused(path, meaning, "Spark has no type of months, days and milliseconds")
    if meaning == "decimal" and kind in ("bytes", "fixed"):
        digits, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
        if not 0 < digits <= _MAX_DIGITS or not 0 <= scale <= digits:
            raise _refused(
                path, f"decimal({digits}, {scale})", f"Spark's have at most {_MAX_DIGITS} digits"
            )
        return AvroColumn(pa.decimal128(digits, scale), _decimals(scale))
    if (kind, meaning, schema.get("size")) == ("fixed", "uuid", 16):
        return AvroColumn(pa.string(), lambda value: str(uuid.UUID(bytes=_bytes(value))))
    column = _COLUMNS.get((kind, meaning)) or _COLUMNS.get((kind, None))
    if column is None:
        raise _refused(path, kind, "it is empty")
    return column


def _many(kind: str, inside: AvroColumn) -> AvroColumn:
    convert = inside.convert

    def each(value: Any) -> Any:
        return value if value is None or convert is None else convert(value)

    if kind == "map":
        entries, *others = (pa.map_(pa.string(), one) for one in inside.types)
        return AvroColumn(entries, lambda many: [(k, each(v)) for k, v in many.items()], *others)
    items, *others = map(pa.list_, inside.types)
    return AvroColumn(items, convert and (lambda many: [each(v) for v in many]), *others)


def _record(
    schema: Mapping[str, Any], path: str, names: Mapping[str, Any], above: tuple[str, ...]
) -> AvroColumn:
    name = schema["name"]
    if name in above:
        raise _refused(path, name, "it contains itself, and Spark's types are finite")
    if path and not schema["fields"]:
        raise _refused(path, name, "it has no fields")
    fields = [
        (f["name"], _column(f["type"], f"{path}.{f['name']}".lstrip("."), names, (*above, name)))
        for f in schema["fields"]
    ]
    converts = [(n, column.convert) for n, column in fields if column.convert is not None]
    defaults = {f["name"]: f["default"] for f in schema["fields"] if "default" in f}

    def convert(values: dict[str, Any]) -> dict[str, Any]:
        # A default value may lack fields, and all records share it, so do not change it.
        record = {**defaults, **values}
        for name, made in converts:
            value = record[name]
            if value is not None:
                record[name] = made(value)
        return record

    kind, *others = (pa.struct([(n, c.types[i]) for n, c in fields]) for i in range(3))
    return AvroColumn(kind, convert if converts or defaults else None, *others)


def _decimals(scale: int) -> Callable[[Decimal | bytes | str], Decimal]:
    def convert(value: Decimal | bytes | str) -> Decimal:
        # The writer's type may be plain bytes, or a decimal with another scale.
        if isinstance(value, Decimal):
            return value
        if len(value) > MAX_DECIMAL_BYTES:
            raise ValueError(f"a decimal has {len(value)} bytes")
        whole = Decimal(int.from_bytes(_bytes(value), "big", signed=True))
        return whole.scaleb(-scale, _EXACT)

    return convert


def _refused(path: str, kind: object, why: str) -> ConfigError:
    return ConfigError(
        f"Field {path} of the Avro schema has the type {kind}, which cannot become a column of "
        f"Spark: {why}. Leave the field out of the reader's schema (schema=), or read the values "
        "raw."
    )
