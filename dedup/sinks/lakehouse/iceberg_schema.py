"""The columns of a table of Iceberg as Spark names them, and those of a stream as Iceberg does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sinks.lakehouse.columns import NotWritten, TableColumn
from dedup.sinks.lakehouse.spark_types import SparkType, spark_type

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

#: By pyiceberg's name of a type Spark's, and Arrow's type.
_SCALARS: dict[str, tuple[str, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    "int": ("int", pa.int32()),
    "long": ("bigint", pa.int64()),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "string": ("string", pa.large_string()),
    "binary": ("binary", pa.large_binary()),
    "date": ("date", pa.date32()),
    "timestamptz": ("timestamp", pa.timestamp("us", "UTC")),
    "timestamp": ("timestamp_ntz", pa.timestamp("us")),
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def columns_of(schema: Schema) -> list[TableColumn]:
    """Return the columns of a table."""
    columns = []
    for one in schema.fields:
        try:
            kind, arrow = _type(one.field_type)
            columns.append(TableColumn(one.name, kind, arrow, one.required))
        except NotWritten as error:
            why = f"its type there is {error}"
            columns.append(TableColumn(one.name, str(error), pa.null(), one.required, why))
    return columns


def _type(told: Any) -> tuple[str, pa.DataType]:
    """Return Spark's name of a type and Arrow's type of it."""
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    if isinstance(told, DecimalType):
        digits, scale = told.precision, told.scale
        return f"decimal({digits},{scale})", pa.decimal128(digits, scale)
    if isinstance(told, ListType):
        kind, arrow = _inner(told.element_type, told.element_required)
        return f"array<{kind}>", pa.large_list(pa.field("element", arrow))
    if isinstance(told, MapType):
        key, key_arrow = _type(told.key_type)
        kind, arrow = _inner(told.value_type, told.value_required)
        return f"map<{key},{kind}>", pa.map_(key_arrow, arrow)
    if isinstance(told, StructType):
        names, fields = [], []
        for one in told.fields:
            kind, arrow = _inner(one.field_type, one.required)
            names.append(f"{one.name}:{kind}")
            fields.append(pa.field(one.name, arrow))
        return f"struct<{','.join(names)}>", pa.struct(fields)
    if str(told) not in _SCALARS:
        raise NotWritten(str(told))
    return _SCALARS[str(told)]


def _inner(told: Any, is_required: bool) -> tuple[str, pa.DataType]:
    if is_required:
        raise NotWritten("nested and requires a value, which this sink does not look for")
    return _type(told)


def schema_of(stream: Sequence[tuple[str, str]]) -> Schema:
    """Return the schema of a new table with the columns of a stream.

    Parameters
    ----------
    stream : sequence of (str, str)
        Names and Spark's types.

    Raises
    ------
    ConfigError
        Naming a column of a type that Iceberg does not have, or that this sink does not write.
    """
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    numbers = count(1)
    fields = []
    for name, kind in stream:
        number = next(numbers)
        try:
            made = _made(spark_type(kind), numbers)
        except NotWritten as error:
            raise ConfigError(
                f"Column {name!r} cannot be created: Iceberg has no {error}, or this sink does not "
                "write it. Cast it to another type."
            ) from None
        fields.append(NestedField(number, name, made, required=False))
    return Schema(*fields)


def _made(kind: SparkType, numbers: Iterator[int]) -> Any:
    """Return Iceberg's type for one of Spark's; integers of 8 and 16 bits become 32."""
    from pyiceberg import types

    inner = [(next(numbers), name, _made(each, numbers)) for name, each in kind.inner]
    if kind.name == "array":
        return types.ListType(inner[0][0], inner[0][2], False)
    if kind.name == "map":
        (key, _, key_type), (value, _, value_type) = inner
        return types.MapType(key, key_type, value, value_type, False)
    if kind.name == "struct":
        fields = [types.NestedField(number, name, made, False) for number, name, made in inner]
        return types.StructType(*fields)
    if decimal := _DECIMAL.fullmatch(kind.name):
        return types.DecimalType(int(decimal[1]), int(decimal[2]))
    scalars = {
        "boolean": types.BooleanType, "tinyint": types.IntegerType, "smallint": types.IntegerType,
        "int": types.IntegerType, "bigint": types.LongType, "float": types.FloatType,
        "double": types.DoubleType, "string": types.StringType, "binary": types.BinaryType,
        "date": types.DateType, "timestamp": types.TimestamptzType,
        "timestamp_ntz": types.TimestampType,
    }  # fmt: skip
    if kind.name not in scalars:
        raise NotWritten(kind.name)
    return scalars[kind.name]()
