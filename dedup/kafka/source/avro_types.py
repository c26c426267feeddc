"""Types of Avro as types of Arrow, without loss, or refused by name.

The rules are those of the Avro specification 1.12, "Logical Types"; a logical type that is not
known there is ignored, as it demands.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from dedup.errors import ConfigError
from dedup.kafka.source.avro_bounds import MAX_DECIMAL_BYTES

#: Makes what Arrow takes of what fastavro gives; None where they are the same.
Convert: TypeAlias = Callable[[Any], Any] | None
#: A schema that holds names is a tree of these.
Schema: TypeAlias = str | dict[str, Any] | list[Any]

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_UTC_US, _LOCAL_US = pa.timestamp("us", "UTC"), pa.timestamp("us")
#: Of those without a type in Spark (times of day, nanoseconds) the number stays as it is written.
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-micros"): _UTC_US,
    ("long", "local-timestamp-micros"): _LOCAL_US,
}
_MILLIS = {("long", "timestamp-millis"): _UTC_US, ("long", "local-timestamp-millis"): _LOCAL_US}
_REFUSED_LOGICAL = {"duration": "Spark has no type of months, days and milliseconds"}
_MAX_DIGITS = 38
#: Where `without_logical_types` notes the unit of a time.
_UNIT = "__unit"
#: Python would round to 28 digits.
_EXACT = Context(prec=1000)


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """A type of Arrow, and how values of it are made.

    Parameters
    ----------
    type : pyarrow.DataType
    convert : callable or None
        From what fastavro gives, never None, to what Arrow takes.
    """

    type: pa.DataType
    convert: Convert = None


@dataclass(slots=True)
class AvroSchema:
    """A reader's schema, and what its records become.

    Parameters
    ----------
    text : str
        JSON.
    references : iterable of str
        JSON of schemas that it names and does not define.

    Raises
    ------
    ConfigError
        If it is no schema of a record, or holds a type that Spark has not, naming the field.
    """

    text: str
    references: Iterable[str] = ()
    fields: tuple[tuple[str, AvroColumn], ...] = field(init=False)

    def __post_init__(self) -> None:
        names: dict[str, dict[str, Any]] = {}
        for text in self.references:
            _name_all(_parsed(text), "", names)
        schema = _parsed(self.text)
        _name_all(schema, "", names)
        if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
            raise ConfigError(
                "The Avro schema is that of no record, so it has no fields to become columns: "
                "give the schema of a record, or read the values raw."
            )
        space = _namespace(schema, "")
        above = (_full(schema, ""),)
        self.fields = tuple(
            (str(f["name"]), _field(f, str(f["name"]), space, names, above))
            for f in schema["fields"]
        )

    @property
    def type(self) -> pa.StructType:
        """Arrow's type of a record; every field may be null, as it is in a tombstone."""
        return pa.struct([pa.field(name, column.type) for name, column in self.fields])

    @property
    def converts(self) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
        """The fields whose values must be converted, and how."""
        return tuple((n, c.convert) for n, c in self.fields if c.convert is not None)


def without_logical_types(schema: Schema) -> Any:
    """Return a schema whose values fastavro gives as they are written, decimals aside.

    A decimal is written in the writer's scale, which the reader need not share.
    """
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: value for name, value in schema.items() if name in ("default", "symbols")}
    for name, value in schema.items():
        if name in plain:
            continue
        if name == "logicalType" and value != "decimal":
            if (unit := str(value).rpartition("-")[2]) in ("millis", "micros", "nanos"):
                plain[_UNIT] = unit
        elif name in ("type", "items", "values"):
            plain[name] = without_logical_types(value)
        elif name == "fields":
            plain[name] = [without_logical_types(one) for one in value]
        else:
            plain[name] = value
    return plain


def other_unit(
    written: Any, read: Any, names: tuple[Mapping[str, Any], Mapping[str, Any]], path: str = ""
) -> str | None:
    """Say which time has another unit in the reader's schema, or return None.

    Avro itself would take the number of one for the number of the other.

    Parameters
    ----------
    written, read
        What `without_logical_types` made of the writer's and the reader's schema, as fastavro
        parsed it.
    names
        The types that each of them names.
    path : str
        The field that they are of.
    """
    for one in _branches(written, names[0]):
        for other in _branches(read, names[1]):
            units = one.get(_UNIT), other.get(_UNIT)
            if None not in units and units[0] != units[1]:
                return f"{path} is in {units[0]} there, and in {units[1]} in the reader's schema"
            theirs = {f["name"]: f["type"] for f in one.get("fields", ())}
            pairs = [
                (f"{path}.{f['name']}".lstrip("."), theirs[f["name"]], f["type"])
                for f in other.get("fields", ())
                if f["name"] in theirs
            ]
            inner = {"items", "values"} & one.keys() & other.keys()
            pairs += [(f"{path}.{key}", one[key], other[key]) for key in inner]
            for where, wrote, reads in pairs:
                if found := other_unit(wrote, reads, names, where):
                    return found
    return None


def _branches(schema: Any, named: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the types that a schema allows."""
    if isinstance(schema, list):
        return [one for branch in schema for one in _branches(branch, named)]
    if isinstance(schema, str):
        return [named.get(schema, {})]
    inner = schema["type"]
    return [schema] if isinstance(inner, str) else _branches(inner, named)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"The Avro schema is no JSON: {error}.") from None


def _namespace(schema: Mapping[str, Any], outer: str) -> str:
    name = str(schema.get("name", ""))
    return name.rpartition(".")[0] if "." in name else str(schema.get("namespace", outer))


def _full(schema: Mapping[str, Any], outer: str) -> str:
    name = str(schema.get("name", ""))
    space = _namespace(schema, outer)
    return name if "." in name or not space else f"{space}.{name}"


def _name_all(schema: Any, outer: str, names: dict[str, dict[str, Any]]) -> None:
    """Collect the named types of a schema, each with its namespace written out."""
    if isinstance(schema, list):
        for branch in schema:
            _name_all(branch, outer, names)
    elif isinstance(schema, dict):
        space = outer
        if schema.get("type") in ("record", "error", "enum", "fixed"):
            space = _namespace(schema, outer)
            names[_full(schema, outer)] = {**schema, "name": _full(schema, outer)}
        for inner in ("type", "items", "values"):
            if isinstance(schema.get(inner), (dict, list)):
                _name_all(schema[inner], space, names)
        for one in schema.get("fields") or ():
            _name_all(one.get("type"), space, names)


def _field(
    given: Mapping[str, Any],
    path: str,
    space: str,
    names: Mapping[str, Any],
    above: tuple[str, ...],
) -> AvroColumn:
    column = _column(given["type"], path, space, names, above)
    if not isinstance(given.get("default"), str) or pa.types.is_string(column.type):
        return column
    # JSON has no bytes: a default of theirs is text, each of whose characters stands for one.
    convert = column.convert

    def from_default(value: Any) -> Any:
        value = value.encode("latin-1") if isinstance(value, str) else value
        return value if convert is None else convert(value)

    return AvroColumn(column.type, from_default)


def _column(
    schema: Any, path: str, space: str, names: Mapping[str, Any], above: tuple[str, ...]
) -> AvroColumn:
    """Return what a schema becomes; `above` are the records that it lies in."""
    if isinstance(schema, list):
        return _union(schema, path, space, names, above)
    if isinstance(schema, str):
        if schema in _PLAIN:
            return AvroColumn(_PLAIN[schema])
        named = names.get(schema if "." in schema or not space else f"{space}.{schema}")
        named = named or names.get(schema)
        if named is not None:
            return _column(named, path, "", names, above)
        raise _refused(path, schema, "no type has this name" if schema != "null" else "it is empty")
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, (dict, list)):
        return _column(kind, path, space, names, above)
    if kind == "array":
        return _array(_column(schema["items"], f"{path}.items", space, names, above))
    if kind == "map":
        return _map(_column(schema["values"], f"{path}.values", space, names, above))
    if kind == "enum":
        return AvroColumn(pa.string())
    if kind in ("record", "error"):
        return _record(schema, path, space, names, above)
    if not isinstance(kind, str):
        raise _refused(path, schema, "it is no schema")
    return _primitive(schema, kind, path, space, names, above)


def _primitive(
    schema: Mapping[str, Any],
    kind: str,
    path: str,
    space: str,
    names: Mapping[str, Any],
    above: tuple[str, ...],
) -> AvroColumn:
    logical = schema.get("logicalType")
    if logical in _REFUSED_LOGICAL:
        raise _refused(path, logical, _REFUSED_LOGICAL[str(logical)])
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
        if not 0 < digits <= _MAX_DIGITS or not 0 <= scale <= digits:
            raise _refused(
                path, f"decimal({digits}, {scale})", f"Spark's have at most {_MAX_DIGITS} digits"
            )
        return AvroColumn(pa.decimal128(digits, scale), _Decimals(scale))
    if (kind, logical) in _MILLIS:
        return AvroColumn(_MILLIS[kind, str(logical)], _micros)
    if (kind, logical) in _LOGICAL:
        return AvroColumn(_LOGICAL[kind, str(logical)])
    if kind == "fixed":
        if logical == "uuid" and schema.get("size") == 16:
            return AvroColumn(pa.string(), _uuid)
        return AvroColumn(pa.binary())
    return _column(kind, path, space, names, above)


def _union(
    branches: list[Any], path: str, space: str, names: Mapping[str, Any], above: tuple[str, ...]
) -> AvroColumn:
    values = [branch for branch in branches if branch not in ("null", {"type": "null"})]
    if len(values) != 1:
        raise _refused(
            path, json.dumps(branches)[:100], "a union may hold one type, and null besides"
        )
    return _column(values[0], path, space, names, above)


def _array(items: AvroColumn) -> AvroColumn:
    convert = items.convert
    if convert is None:
        return AvroColumn(pa.list_(items.type))
    return AvroColumn(
        pa.list_(items.type), lambda many: [None if one is None else convert(one) for one in many]
    )


def _map(values: AvroColumn) -> AvroColumn:
    convert = values.convert
    kind = pa.map_(pa.string(), values.type)
    if convert is None:
        return AvroColumn(kind, lambda many: list(many.items()))
    return AvroColumn(
        kind, lambda many: [(k, None if one is None else convert(one)) for k, one in many.items()]
    )


def _record(
    schema: Mapping[str, Any],
    path: str,
    space: str,
    names: Mapping[str, Any],
    above: tuple[str, ...],
) -> AvroColumn:
    name = _full(schema, space)
    if name in above:
        raise _refused(path, name, "it contains itself, and Spark's types are finite")
    inner = _namespace(schema, space)
    fields = [
        (str(f["name"]), _field(f, f"{path}.{f['name']}", inner, names, (*above, name)))
        for f in schema["fields"]
    ]
    if not fields:
        raise _refused(path, name, "it has no fields")
    kind = pa.struct([pa.field(n, column.type) for n, column in fields])
    converts = [(n, column.convert) for n, column in fields if column.convert is not None]
    return AvroColumn(kind, Fields(converts) if converts else None)


@dataclass(frozen=True, slots=True)
class Fields:
    """Converts the fields of a record in place."""

    converts: Iterable[tuple[str, Callable[[Any], Any]]]

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record with its fields converted."""
        for name, convert in self.converts:
            value = record[name]
            if value is not None:
                record[name] = convert(value)
        return record


@dataclass(frozen=True, slots=True)
class _Decimals:
    scale: int

    def __call__(self, value: Decimal | bytes) -> Decimal:
        # The writer's type may be plain bytes, or a decimal of its own scale.
        if isinstance(value, bytes):
            if len(value) > MAX_DECIMAL_BYTES:
                raise ValueError(f"a decimal has {len(value)} bytes")
            whole = Decimal(int.from_bytes(value, "big", signed=True))
            return whole.scaleb(-self.scale, _EXACT)
        return value


def _micros(millis: int) -> int:
    return millis * 1000


def _uuid(value: bytes) -> str:
    return str(uuid.UUID(bytes=value))


def _refused(path: str, kind: object, why: str) -> ConfigError:
    return ConfigError(
        f"Field {path} of the Avro schema is of type {kind}, which cannot become a column of "
        f"Spark: {why}. Leave the field out of the reader's schema (schema=), or read the values "
        "raw."
    )
