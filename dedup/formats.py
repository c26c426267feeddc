"""The formats of this package, made known to a session."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from dedup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from dedup.sinks.sink_source import SinkSource


def register(spark: SparkSession) -> None:
    """Make the formats of this package known to a session; twice is fine.

    ``df.writeStream.format("dedup_kafka")`` writes to Kafka, each micro-batch once,
    ``format("dedup_postgres")`` to PostgreSQL, ``format("dedup_files")`` to a folder of files,
    ``format("dedup_delta")`` and ``format("dedup_iceberg")`` to tables of Delta Lake and Iceberg.

    Parameters
    ----------
    spark : SparkSession
        Classic or Spark Connect. With several classic sessions in one program it must be the active
        one: `writeStream.start` looks formats up there, whatever session the DataFrame came from.

    Raises
    ------
    ConfigError
        On PySpark 4.0.
    """
    for source in _sources():
        spark.dataSource.register(source)


def check_sink(format_name: str, options: Mapping[str, object], schema: StructType) -> None:
    """Refuse what a sink of this package would refuse when its query starts.

    Parameters
    ----------
    format_name : str
        Such as ``dedup_kafka``.
    options : mapping of str to object
        As ``writeStream.option`` takes them, the option ``checkpointLocation`` among them.
    schema : StructType
        What the sink is given.

    Raises
    ------
    DedupError
        What the sink would raise.
    """
    known = {source.name(): source for source in _sources()}
    if format_name not in known:
        raise ConfigError(f"sink={format_name!r} is no format of this package: {', '.join(known)}.")
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    known[format_name](texts).work(schema)


def _sources() -> tuple[type[SinkSource], ...]:
    from pyspark.sql import datasource

    if not hasattr(datasource, "DataSourceStreamArrowWriter"):
        raise ConfigError(
            f"PySpark {version('pyspark')} hands a sink of a stream single rows; the formats "
            "dedup_delta, dedup_files, dedup_iceberg, dedup_kafka and dedup_postgres need PySpark "
            "4.1 or newer. Use writeStream.foreachBatch(dedup.kafka.kafka_sink(...)), "
            "postgres_sink of dedup.postgres, files_sink of dedup.files, or delta_sink or "
            "iceberg_sink of dedup.lakehouse, which do the same."
        )
    from dedup.files.sink.files_format import FilesSinkSource
    from dedup.kafka.sink.data_source import KafkaSinkSource
    from dedup.lakehouse.lake_formats import DeltaSinkSource, IcebergSinkSource
    from dedup.postgres.postgres_format import PostgresSinkSource

    return (
        KafkaSinkSource, PostgresSinkSource, FilesSinkSource, DeltaSinkSource, IcebergSinkSource,
    )  # fmt: skip
