"""Spark's other state stores: settings that choose one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX = "spark.sql.streaming.stateStore."
_CLASSES = "org.apache.spark.sql.execution.streaming.state."
ROCKSDB = {_PREFIX + "providerClass": _CLASSES + "RocksDBStateStoreProvider"}
ROCKSDB_V2 = ROCKSDB | {_PREFIX + "checkpointFormatVersion": "2"}
CHANGELOG = ROCKSDB | {_PREFIX + "rocksdb.changelogCheckpointing.enabled": "true"}
CHANGELOG_V2 = CHANGELOG | ROCKSDB_V2
STORES = {
    "rocksdb v1": ROCKSDB,
    "rocksdb v1 changelog": CHANGELOG,
    "rocksdb v2 changelog": CHANGELOG_V2,
}


def configure(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Give a session settings."""
    for name, value in settings.items():
        spark.conf.set(name, value)


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give a session settings that it has not, for a while."""
    configure(spark, settings)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
