"""The settings of a session under which files mean the same to pyarrow as to Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.files.orc_input import UTC_NAMES
from dedup.files.types import LeftToSpark
from dedup.spark.driver import checks

_READ = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
_READ_FORMAT = {
    "parquet": {
        "spark.sql.parquet.binaryAsString": "false",
        "spark.sql.parquet.int96AsTimestamp": "true",
        "spark.sql.parquet.int96TimestampConversion": "false",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
        "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
        "spark.sql.parquet.int96RebaseModeInRead": "corrected",
        "spark.sql.parquet.fieldId.read.enabled": "false",
    },
    "orc": {
        "spark.sql.orc.impl": "native",
        "orc.force.positional.evolution": "false",
        "spark.hadoop.orc.force.positional.evolution": "false",
    },
}
_WRITE = {
    "spark.sql.parquet.datetimeRebaseModeInWrite": "corrected",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_CODEC = "spark.sql.parquet.compression.codec"
_CODECS = {"snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "none": "none",
           "uncompressed": "none"}  # fmt: skip


def check_reading(spark: SparkSession, file_format: str, columns: T.StructType) -> None:
    """Leave files to Spark whose meaning the session has changed.

    Raises
    ------
    LeftToSpark
        Naming the setting.
    """
    _check(spark, _READ | _READ_FORMAT[file_format])
    if file_format == "orc" and T.TimestampType() in _kinds(columns):
        jvm = spark._jvm
        assert jvm is not None, "a classic session has one"
        zone = jvm.java.util.TimeZone.getDefault().getID()
        if zone not in UTC_NAMES:
            raise LeftToSpark(f"the JVM's time zone is {zone}, in which it reads the times of ORC")


def codec_to_write(spark: SparkSession) -> str:
    """Return the compression of the output, as pyarrow calls it.

    Raises
    ------
    LeftToSpark
        Naming the setting under which only Spark writes as it would.
    """
    _check(spark, _WRITE)
    codec = checks.setting(spark, _CODEC, "snappy").lower()
    if codec not in _CODECS:
        raise LeftToSpark(f"{_CODEC} is {codec}")
    return _CODECS[codec]


def _check(spark: SparkSession, needed: Mapping[str, str]) -> None:
    for name, value in needed.items():
        found = checks.setting(spark, name, value)
        if found.lower() != value:
            raise LeftToSpark(f"{name} is {found}")


def _kinds(kind: T.DataType) -> Iterator[T.DataType]:
    """Yield a type and all that are in it."""
    yield kind
    if isinstance(kind, T.StructType):
        inner = [field.dataType for field in kind.fields]
    elif isinstance(kind, T.ArrayType):
        inner = [kind.elementType]
    else:
        inner = [kind.keyType, kind.valueType] if isinstance(kind, T.MapType) else []
    for one in inner:
        yield from _kinds(one)
