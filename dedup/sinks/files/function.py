"""The sink as a function for ``foreachBatch``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dedup.sinks.files.inspection import inspect_files
from dedup.sinks.files.options import FORMAT, files_options
from dedup.sinks.files.ready import ready
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.kind import SinkKind

FILES = SinkKind(
    format_name=FORMAT,
    function_name="files_sink",
    parse=files_options,
    prepare=ready,
    inspect=lambda options, progress: inspect_files(options.path, progress),
    to_read="its output, use spark.read.parquet, json or csv",
    for_batches="df.write.parquet",
)


def files_sink(
    path: str | os.PathLike[str],
    *,
    checkpoint: str,
    file_format: str = "parquet",
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> SinkFunction:
    """Return a function for ``foreachBatch`` that writes each micro-batch to a folder once.

    It does what ``format("dedup_files")`` does, for queries that write to several places, and on
    PySpark 4.0 as well.

    Parameters
    ----------
    path : path or str
        The output: a folder that driver and executors share, or ``s3://bucket/folder``.
    checkpoint : str
        The query's checkpoint location.
    file_format : str
        ``parquet``, ``json`` or ``csv``.
    partition_by : sequence of str, optional
        Columns whose values name folders below that of the micro-batch.
    options : mapping of str to str, optional
        Any other option of the format. Two sinks of one query each need a `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or cannot be; at the first micro-batch, if the columns cannot be
        written, or the output is another's.
    MissingExtraError
        At the first micro-batch, if `path` is on S3, and the extra ``s3`` is not installed.
    """
    given = {"path": os.fspath(path), "checkpointLocation": checkpoint, "file.format": file_format}
    if partition_by:
        names = [partition_by] if isinstance(partition_by, str) else partition_by
        given["partition.by"] = ",".join(names)
    return SinkFunction(FILES, files_options(given | dict(options or {})), checkpoint)
