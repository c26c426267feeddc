"""Write packed blobs to Parquet files in one pass, in which no row goes through the JVM."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from dedup.errors import faults
from dedup.sinks.files.output_files import parquet_writer
from dedup.sinks.files.slice_files import FileShape, SliceFiles, WrittenFile, gather, staging_folder
from dedup.spark.executor.task import Task
from dedup.spark.executor.unpack import unpack
from dedup.spark.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Columns of the pass's result, a row for each file: path, folder that it belongs in, size.
WRITTEN = "path string, folder string, bytes bigint"
_WRITTEN_ARROW = pa.schema([("path", pa.string()), ("folder", pa.string()), ("bytes", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """The last pass of a query whose tasks write its rows, instead of `unpack`.

    On the driver it is the `dedup.sinks.folder_sink.RowsWriter` of such a query. `staging` is a
    folder on a file system that all tasks and the driver share.
    """

    staging: str
    shape: FileShape

    def __call__(self, plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task, and yield its files as rows of `WRITTEN`."""
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

    def write(self, batch: DataFrame, folder: Path, split_by: str | None) -> None:
        """Run the micro-batch, and move the files of its tasks to a folder."""
        written = batch.collect()
        faults.point("files.collected")
        files = [WrittenFile(row["path"], row["folder"], row["bytes"], 0) for row in written]
        gather(files, folder)
        for parent in {Path(file.path).parent for file in files}:
            # The remaining files are from attempts that Spark does not count.
            shutil.rmtree(parent, ignore_errors=True)

    def write_no_rows(self, batch: DataFrame, folder: Path, without: str | None) -> None:
        folder.mkdir(parents=True)
        columns, path = self.shape.columns, folder / "part-none.parquet"
        with parquet_writer(path, columns, self.shape.compression) as writer:
            writer.write_table(columns.empty_table())
