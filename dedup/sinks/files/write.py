"""Packed blobs to Parquet files in one pass: what the tasks of a micro-batch write.

The driver publishes the files of the attempts that Spark counts (`dedup.sinks.files.task_files`).
It removes what other attempts wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dedup.sinks.files.slice_files import FileShape, SliceFiles, staging_folder
from dedup.spark.executor.task import Task
from dedup.spark.executor.unpack import unpack
from dedup.spark.plan import Plan

#: What the pass tells of each file: where it is, and below which folder it belongs.
WRITTEN = "path string, folder string, bytes bigint"
_WRITTEN_ARROW = pa.schema([("path", pa.string()), ("folder", pa.string()), ("bytes", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWriter:
    """Last pass, in place of `unpack`.

    Parameters
    ----------
    staging : str
        Folder on a file system that all tasks and the driver share.
    shape : FileShape
    """

    staging: str
    shape: FileShape

    def __call__(self, plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what was written, in rows of `WRITTEN`.

        Raises
        ------
        DedupError
            If the disk is full, or the folder cannot be written.
        """
        task = Task.current(plan)
        folder = Path(self.staging, staging_folder(task.epoch, task.run_id))
        with SliceFiles(folder, self.shape, task.partition) as files:
            for rows in unpack(plan, batches):
                files.add(rows)
            written = files.finish()
        yield pa.RecordBatch.from_pylist(
            [{"path": f.path, "folder": f.folder, "bytes": f.nbytes} for f in written],
            schema=_WRITTEN_ARROW,
        )
