"""The columns that pyarrow carries from file to file with Spark's meaning."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812

_PLAIN: dict[type[T.DataType], pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampNTZType: pa.timestamp("us"),
}
#: What Spark notes at a column, and then reads or writes it in a way of its own.
_NOTED = {
    "__CHAR_VARCHAR_TYPE_STRING": "a text that is padded or cut",
    "EXISTS_DEFAULT": "filled with a default where a file lacks it",
    "parquet.field.id": "found by its field ID",
}


class LeftToSpark(Exception):
    """Says why Spark itself is to read, or to write, the files."""


def arrow_schema(columns: T.StructType, time_zone: str) -> pa.Schema:
    """Return the Arrow schema under which Spark would hand the columns to Python.

    Parameters
    ----------
    columns : StructType
    time_zone : str
        That of the session, which timestamps carry as their name of the zone.

    Raises
    ------
    LeftToSpark
        For the first column of a type that only Spark reads and writes.
    """
    return pa.schema([_field(field, field.name, time_zone) for field in columns.fields])


def _field(field: T.StructField, path: str, time_zone: str) -> pa.Field:
    for name, what in _NOTED.items():
        if name in (field.metadata or {}):
            raise LeftToSpark(f"column {path!r} is {what}")
    return pa.field(field.name, _type(field.dataType, path, time_zone), field.nullable)


def _type(kind: T.DataType, path: str, time_zone: str) -> pa.DataType:
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)]
    if kind == T.StringType():  # without a collation
        return pa.string()
    if isinstance(kind, T.TimestampType):
        return pa.timestamp("us", time_zone)
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        element = _type(kind.elementType, f"{path}[]", time_zone)
        return pa.list_(pa.field("element", element, kind.containsNull))
    if isinstance(kind, T.MapType):
        value = _type(kind.valueType, f"{path}.value", time_zone)
        return pa.map_(
            _type(kind.keyType, f"{path}.key", time_zone),
            pa.field("value", value, kind.valueContainsNull),
        )
    if isinstance(kind, T.StructType) and kind.fields:
        return pa.struct([_field(f, f"{path}.{f.name}", time_zone) for f in kind.fields])
    raise LeftToSpark(f"column {path!r} is {kind.simpleString()}")
