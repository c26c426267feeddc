"""The kinds of the Delta Lake and Iceberg sinks, and the functions `delta_sink`, `iceberg_sink`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from pyspark.sql import types as T  # noqa: N812

from dedup.sinks.columns import refuse_twins
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.inspection import SinkInspection, inspection_of
from dedup.sinks.kind import SinkKind
from dedup.sinks.lakehouse.delta import (
    delta_library,
    delta_marker,
    delta_queries,
    delta_target,
    open_delta,
)
from dedup.sinks.lakehouse.iceberg import (
    iceberg_library,
    iceberg_marker,
    iceberg_queries,
    iceberg_target,
    open_iceberg,
)
from dedup.sinks.lakehouse.options import DELTA, ICEBERG, LakeOptions, lake_options
from dedup.sinks.lakehouse.work import LakeWork
from dedup.spark.driver.checkpoint_log import Progress


def ready(options: LakeOptions, schema: T.StructType) -> LakeWork:
    refuse_twins(schema.fieldNames())
    target = delta_target if options.format_name == DELTA else iceberg_target
    return LakeWork(options, target(options, schema))


def inspect_lake(options: LakeOptions, progress: Progress | None) -> SinkInspection:
    known = None if progress is None else {progress.query_id}
    if options.format_name == DELTA:
        delta = open_delta(options)
        queries = sorted(known or delta_queries(delta, options))
        return inspection_of((delta_marker(delta, options, each)[0] for each in queries), progress)
    iceberg_library()
    iceberg = open_iceberg(options)
    queries = sorted(known or iceberg_queries(iceberg, options))
    return inspection_of((iceberg_marker(iceberg, options, each) for each in queries), progress)


def _kind(format_name: str, function_name: str) -> SinkKind[LakeOptions]:
    return SinkKind(
        format_name=format_name,
        function_name=function_name,
        parse=partial(lake_options, format_name),
        ready=ready,
        inspect=inspect_lake,
    )


DELTA_LAKE = _kind(DELTA, "delta_sink")
ICEBERG_TABLES = _kind(ICEBERG, "iceberg_sink")


def delta_sink(
    path: str | os.PathLike[str],
    *,
    checkpoint: str,
    create: bool = False,
    options: Mapping[str, str] | None = None,
) -> SinkFunction:
    """Return a function for ``foreachBatch`` that writes each micro-batch to Delta Lake once.

    The function does the same as ``format("dedup_delta")``. Use it for queries that write to
    several places, and on PySpark 3.5 and 4.0. It needs no jar of Delta Lake.

    Parameters
    ----------
    path : str or PathLike
        The folder of the table, or a URI such as ``s3://bucket/orders``.
    checkpoint : str
        The query's checkpoint location.
    create : bool, optional
        Create a missing table from the columns of the stream.
    options : mapping of str to str, optional
        Any other options of the format. Two sinks of one query need different values of `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or invalid. At the first micro-batch, if table and columns do not
        fit.
    MissingExtraError
        If the extra ``delta`` is not installed.
    """
    delta_library()
    texts = {"path": os.fspath(path), "create": str(create).lower()}
    return SinkFunction.of(DELTA_LAKE, checkpoint, texts, options)


def iceberg_sink(
    table: str,
    *,
    checkpoint: str,
    catalog: str = "default",
    create: bool = False,
    options: Mapping[str, str] | None = None,
) -> SinkFunction:
    """Return a function for ``foreachBatch`` that writes each micro-batch to Iceberg once.

    The function does the same as ``format("dedup_iceberg")``. Use it for queries that write to
    several places, and on PySpark 3.5 and 4.0. It needs no jar of Iceberg.

    Parameters
    ----------
    table : str
        The table's name with its namespace, such as ``shop.orders``.
    checkpoint : str
        The query's checkpoint location.
    catalog : str, optional
        Name of a catalog in pyiceberg's configuration. Options such as ``catalog.uri`` override
        that configuration.
    create : bool, optional
        Create a missing table from the columns of the stream.
    options : mapping of str to str, optional
        Any other options of the format. Two sinks of one query need different values of `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or invalid. At the first micro-batch, if table and columns do not
        fit.
    MissingExtraError
        If the extra ``iceberg`` is not installed.
    """
    iceberg_library()
    texts = {"table": table, "catalog": catalog, "create": str(create).lower()}
    return SinkFunction.of(ICEBERG_TABLES, checkpoint, texts, options)
