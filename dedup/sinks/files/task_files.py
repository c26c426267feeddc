"""Unpack the operator's result in tasks, and write the rows to files without the JVM."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from dedup.errors import faults
from dedup.sinks.files.slice_files import FileShape, SliceFiles, WrittenFile, gather, staging_folder
from dedup.sinks.utf8 import only_utf8
from dedup.spark.executor.task import Task
from dedup.spark.executor.unpack import unpack
from dedup.spark.plan import Plan

#: Columns of a task's result. Each row has the fields of a `WrittenFile`.
WRITTEN = "path string, name string, nbytes bigint"
#: What to do about a text that is not UTF-8.
_ADVICE = "Correct the record, or write Parquet (--output-format parquet), which keeps all bytes."
_WRITTEN_ARROW = pa.schema([("path", pa.string()), ("name", pa.string()), ("nbytes", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """The last pass of a query whose tasks write the rows to files. It replaces `unpack`.

    On the driver this object is also the query's `dedup.sinks.folder_sink.RowsWriter`. `staging` is
    a folder on a file system that all tasks and the driver share.
    """

    staging: str
    shape: FileShape

    def __call__(self, plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task, and yield a row with the columns `WRITTEN` for each file."""
        task = Task.current(plan)
        folder = Path(self.staging, staging_folder(task.epoch, task.run_id))
        with SliceFiles(folder, self.shape, task.partition) as files:
            for rows in unpack(plan, batches):
                with only_utf8(self.shape.file_format.upper(), _ADVICE):
                    files.add(rows)
            written = files.finish()
        yield pa.RecordBatch.from_pylist(list(map(asdict, written)), schema=_WRITTEN_ARROW)

    def write(self, batch: DataFrame, folder: Path, split_by: str | None) -> None:
        """Run the micro-batch, and move the files that its tasks wrote to `folder`."""
        files = [WrittenFile(**row.asDict()) for row in batch.collect()]
        faults.point("files.collected")
        gather(files, folder)
        for parent in {Path(file.path).parent for file in files}:
            # The remaining files are from attempts whose results Spark did not accept.
            shutil.rmtree(parent, ignore_errors=True)

    def write_no_rows(self, batch: DataFrame, folder: Path, without: str | None) -> None:
        self.shape.new_file(folder / f"part-none{self.shape.ending}").finish()
