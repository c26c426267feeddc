"""Decides whether tasks may read and write files by pyarrow, without Spark.

They may do so only if pyarrow reads and writes the same values as Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.spark.driver import checks
from dedup.spark.versions import IS_SPARK_3

#: The default of Spark 3.5, EXCEPTION, rejects times that two calendars name differently. Tasks
#: read and write them as Spark 4 does by default.
_CORRECTED = "corrected|exception" if IS_SPARK_3 else "corrected"
_READ = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": _CORRECTED,
    "spark.sql.parquet.int96RebaseModeInRead": _CORRECTED,
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
_WRITE = {
    "spark.sql.parquet.datetimeRebaseModeInWrite": _CORRECTED,
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_CODEC = "spark.sql.parquet.compression.codec"
_CODECS = {"snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "none": "none",
           "uncompressed": "none"}  # fmt: skip
#: Arrow types of the types without parameters.
PLAIN: dict[type[T.DataType], pa.DataType] = {
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
#: Keys in a column's metadata that change how Spark reads or writes the column.
_SPECIAL = {
    "__CHAR_VARCHAR_TYPE_STRING": "a text that is padded or cut",
    "EXISTS_DEFAULT": "filled with a default where a file lacks it",
    "parquet.field.id": "found by its field ID",
}


class LeftToSpark(Exception):
    """Raised with the reason why Spark itself must read or write the files."""


def check_reading(spark: SparkSession) -> None:
    """Raise LeftToSpark if a setting changes how Spark reads Parquet."""
    _check(spark, _READ)


def codec_to_write(spark: SparkSession) -> str:
    """Return pyarrow's name of the output's compression."""
    _check(spark, _WRITE)
    codec = checks.setting(spark, _CODEC, "snappy").lower()
    if codec not in _CODECS:
        raise LeftToSpark(f"{_CODEC} is {codec}")
    return _CODECS[codec]


def _check(spark: SparkSession, needed: Mapping[str, str]) -> None:
    for name, value in needed.items():
        actual = checks.setting(spark, name, value)
        if actual.lower() not in value.split("|"):
            raise LeftToSpark(f"{name} is {actual}")


def arrow_schema(columns: T.StructType, time_zone: str) -> pa.Schema:
    """Return the Arrow schema in which Spark would pass the columns to Python.

    Timestamps have the session's time zone. Raises LeftToSpark if only Spark can read and write a
    column's type.
    """
    return pa.schema([_field(field, field.name, time_zone) for field in columns.fields])


def text_types(columns: T.StructType) -> T.StructType:
    """Return the columns as files of text have them: without lengths, collations and field IDs."""

    def plain(each: dict[str, Any]) -> dict[str, Any]:
        for name in ("type", "elementType", "keyType", "valueType"):
            kind = each.get(name)
            if isinstance(kind, str) and kind.startswith(("char(", "varchar(")):
                each = each | {name: "string"}
        return each | {"metadata": {}} if "metadata" in each else each

    fields = json.loads(columns.json(), object_hook=plain)
    return T.StructType.fromJson(fields)


def text_schema(columns: T.StructType, time_zone: str = "UTC") -> pa.Schema:
    """Return the Arrow schema of columns in files of text. Raises what `arrow_schema` raises."""
    return arrow_schema(text_types(columns), time_zone)


def _field(field: T.StructField, path: str, time_zone: str) -> pa.Field:
    for name, what in _SPECIAL.items():
        if name in (field.metadata or {}):
            raise LeftToSpark(f"column {path!r} is {what}")
    return pa.field(field.name, _type(field.dataType, path, time_zone), field.nullable)


def _type(kind: T.DataType, path: str, time_zone: str) -> pa.DataType:
    if type(kind) in PLAIN:
        return PLAIN[type(kind)]
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
