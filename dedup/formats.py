"""The formats of this package, made known to a session."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from dedup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    spark.dataSource.register(KafkaSinkSource)
    spark.dataSource.register(PostgresSinkSource)
    spark.dataSource.register(FilesSinkSource)
    spark.dataSource.register(DeltaSinkSource)
    spark.dataSource.register(IcebergSinkSource)
