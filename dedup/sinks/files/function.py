"""The kind `FILES` of the files sink, and the public function `files_sink`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError
from dedup.sinks.files.columns import file_shape
from dedup.sinks.files.inspection import inspect_folder
from dedup.sinks.files.options import FORMAT, FilesOptions, files_options
from dedup.sinks.files.output_root import OutputRoot
from dedup.sinks.files.work import FilesWork
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.kind import SinkKind
from dedup.sinks.output_owner import foreign_to_all


def ready(options: FilesOptions, schema: T.StructType) -> FilesWork:
    shape = file_shape(options, schema)
    root = OutputRoot(options.path)
    if not options.is_on_s3:
        Path(options.path).mkdir(parents=True, exist_ok=True)
    other = foreign_to_all(root)
    if other is not None:
        raise ConfigError(
            f"path={root.url()} holds micro-batches of {other}: give a new folder.",
            remedy="output-folder",
        )
    root.check_exclusive()
    return FilesWork(options, shape)


FILES = SinkKind(
    format_name=FORMAT,
    function_name="files_sink",
    parse=files_options,
    ready=ready,
    inspect=lambda options, progress: inspect_folder(options.path, progress),
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

    The function does the same as ``format("dedup_files")``. Use it for queries that write to
    several places, and on PySpark 3.5 and 4.0.

    Parameters
    ----------
    path : path or str
        The output, which is a folder that driver and executors share, or ``s3://bucket/folder``.
    checkpoint : str
        The query's checkpoint location.
    file_format : str
        ``parquet``, ``json`` or ``csv``.
    partition_by : sequence of str, optional
        Columns whose values name folders below the folder of the micro-batch.
    options : mapping of str to str, optional
        Any other options of the format. Two sinks of one query need different values of `name`.

    Raises
    ------
    ConfigError
        If an option is unknown or invalid. At the first micro-batch, if the sink cannot write a
        column, or if the output belongs to another query or program.
    MissingExtraError
        At the first micro-batch, if `path` is on S3 and the extra ``s3`` is not installed.
    """
    texts = {"path": os.fspath(path), "file.format": file_format}
    if partition_by:
        names = [partition_by] if isinstance(partition_by, str) else partition_by
        texts["partition.by"] = ",".join(names)
    return SinkFunction.of(FILES, checkpoint, texts, options)
