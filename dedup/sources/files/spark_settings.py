"""The settings of a session under which files mean the same to pyarrow as to Spark."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from dedup.sources.files.types import LeftToSpark
from dedup.spark.driver import checks

_READ = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "corrected",
    "spark.sql.parquet.int96RebaseModeInRead": "corrected",
    "spark.sql.parquet.fieldId.read.enabled": "false",
}
_WRITE = {
    "spark.sql.parquet.datetimeRebaseModeInWrite": "corrected",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
_CODEC = "spark.sql.parquet.compression.codec"
_CODECS = {"snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "none": "none",
           "uncompressed": "none"}  # fmt: skip


def check_reading(spark: SparkSession) -> None:
    """Leave files to Spark whose meaning the session has changed.

    Raises
    ------
    LeftToSpark
        Naming the setting.
    """
    _check(spark, _READ)


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
