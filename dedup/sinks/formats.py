"""All kinds of sinks, and how a Spark session gets their formats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dedup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from dedup.sinks.kind import OutputInspection, SinkKind
    from dedup.sinks.work import SinkWork


def register(spark: SparkSession) -> None:
    """Register the sink formats of this package with a session. A second call does no harm.

    ``df.writeStream.format("dedup_kafka")`` then writes each micro-batch to Kafka once. The formats
    ``dedup_postgres`` and ``dedup_mysql`` write to PostgreSQL and MySQL, ``dedup_files`` to a
    folder of files, ``dedup_delta`` and ``dedup_iceberg`` to tables of Delta Lake and Iceberg.

    Parameters
    ----------
    spark : SparkSession
        A classic session or one of Spark Connect. If a program has several classic sessions, pass
        the active session: `writeStream.start` looks formats up in the active session, not in the
        DataFrame's.

    Raises
    ------
    ConfigError
        On PySpark 3.5 and 4.0.
    """
    _check_pyspark()
    from dedup.sinks.data_source import source_of

    for kind in sink_kinds().values():
        spark.dataSource.register(source_of(kind))


def prepared_sink(
    sink: object, schema: StructType, checkpoint: str | os.PathLike[str] | None
) -> SinkWork:
    """Return a sink's work, or raise the error that the sink would raise when its query starts.

    `sink` is a pair of format and options, or a function that `postgres_sink` or the like has
    returned. `schema` has the columns of the stream. `checkpoint` is the option
    ``checkpointLocation``.
    """
    from dedup.sinks.foreach_batch import SinkFunction

    if isinstance(sink, SinkFunction):
        return sink.prepare(schema)
    kinds = sink_kinds()
    match sink:
        case (str(name), Mapping() as settings) if name in kinds:
            _check_pyspark()
            options = {} if checkpoint is None else {"checkpointLocation": os.fspath(checkpoint)}
            for option, value in settings.items():
                options[option] = str(value).lower() if isinstance(value, bool) else str(value)
            return kinds[name].prepare(kinds[name].parse(options), schema)
        case _:
            raise ConfigError(
                "sink= takes a format of this package and its options, such as ('dedup_files', "
                "{'path': 'orders'}), or what a function such as postgres_sink returned. Formats "
                f"are {', '.join(kinds)}."
            )


def inspect_output(format_name: str, options: Mapping[str, str]) -> OutputInspection:
    """Return what an output holds, what is unfinished, and what the next start of its query does.

    The method `inspect` of a function such as `postgres_sink` returns the same.

    Parameters
    ----------
    format_name : str
        A format of this package, such as ``dedup_postgres``. Use ``dedup_files`` also for the
        output of `dedup_folder` or of ``dedup run``.
    options : mapping of str to str
        The options of the sink in the query. Without ``checkpointLocation`` the result covers the
        sink's markers of all queries (of a table of Delta Lake: of all queries in its history), and
        does not know which micro-batch the next start runs.

    Raises
    ------
    ConfigError
        If the format or an option is unknown or missing, if the output or the checkpoint does not
        exist, or if the checkpoint belongs to another query than the folder of files.
    SinkError
        If the output cannot be read, or a marker is damaged.
    CatalogError
        If the storage of a folder of files cannot be reached.
    MissingExtraError
        If the format's extra is not installed.
    """
    from dedup.sinks.options import located
    from dedup.spark.driver.checkpoint_log import read_progress

    kinds = sink_kinds()
    if format_name not in kinds:
        raise ConfigError(f"Format {format_name!r} is unknown. Formats are {', '.join(kinds)}.")
    kind = kinds[format_name]
    where = {name.lower(): value for name, value in options.items()}.get("checkpointlocation")
    # Nothing reads this checkpoint: only a running sink needs the folder of its ledger, below it.
    parsed = kind.parse(options if where else {**options, "checkpointLocation": "/_"})
    return kind.inspect(parsed, read_progress(located(where)) if where else None)


def _check_pyspark() -> None:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"PySpark {version('pyspark')} does not hand batches of rows to a streaming sink; the "
            "formats dedup_delta, dedup_files, dedup_iceberg, dedup_kafka, dedup_mysql and "
            "dedup_postgres need PySpark 4.1 or newer. Use "
            "writeStream.foreachBatch(kafka_sink(...)), or postgres_sink, mysql_sink, files_sink, "
            "delta_sink or iceberg_sink, which do the same: all of them are in dedup.sinks."
        ) from None


def sink_kinds() -> dict[str, SinkKind[Any]]:
    from dedup.sinks.files.function import FILES
    from dedup.sinks.kafka.function import KAFKA
    from dedup.sinks.lakehouse.function import DELTA_LAKE, ICEBERG_TABLES
    from dedup.sinks.mysql.function import MYSQL
    from dedup.sinks.postgres.function import POSTGRES

    kinds = (KAFKA, POSTGRES, MYSQL, FILES, DELTA_LAKE, ICEBERG_TABLES)
    return {kind.format_name: kind for kind in kinds}
