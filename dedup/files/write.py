"""Packed blobs to Parquet files in one pass: what the tasks of a micro-batch write.

A task writes its rows to files of its own below a folder that readers pass over, makes them
durable, and then tells their names. The driver publishes those of the attempts that Spark counts
(`dedup.files.task_files`); what other attempts wrote is removed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup import faults
from dedup.catalog.localfile import sync
from dedup.errors import DedupError
from dedup.files.gathered import Gathered
from dedup.spark.executor.task import Task
from dedup.spark.executor.unpack import unpack
from dedup.spark.plan import Plan

#: What the pass tells of each file: where it is, and below which folder it belongs.
WRITTEN = "path string, folder string, bytes bigint"
#: Arrow bytes of a row group; a task holds one per verdict that goes to a folder of its own.
_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 20
#: Rows by which is decided which columns repeat their values.
_SAMPLE_ROWS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWriter:
    """Last pass, in place of `unpack`.

    Parameters
    ----------
    staging : str
        Folder on a file system that all tasks and the driver share.
    columns : pyarrow.Schema
        The rows' columns, `split_by` left out, with the metadata that Spark writes.
    split_by : str or None
        Column whose values name folders, such as ``verdict=duplicate``.
    compression : str
        As pyarrow calls it.
    """

    staging: str
    columns: pa.Schema
    split_by: str | None
    compression: str

    def __call__(self, plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what was written, in rows of `WRITTEN`.

        Raises
        ------
        DedupError
            If the disk is full, or the folder cannot be written.
        """
        task = Task.current(plan)
        folder = Path(self.staging, batch_folder(task.epoch, task.run_id))
        files: dict[str, _File] = {}
        with ExitStack() as stack:
            for rows in unpack(plan, batches):
                for below, part in self._parts(rows):
                    if not part.num_rows:
                        continue
                    if below not in files:
                        name = f"part-{task.partition:05d}-{uuid.uuid4().hex}.parquet"
                        files[below] = _File(folder / name, self.columns, self.compression)
                        stack.callback(files[below].drop_unfinished)
                    files[below].add(part)
            for file in files.values():
                file.finish()
        faults.point("files.written")
        yield pa.RecordBatch.from_pylist(
            [
                {"path": str(f.path), "folder": below, "bytes": f.nbytes}
                for below, f in files.items()
            ],
            schema=_WRITTEN_ARROW,
        )

    def _parts(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows by the folders they belong to."""
        if self.split_by is None:
            yield "", rows
            return
        values = rows.column(self.split_by)
        rest = rows.drop_columns([self.split_by])
        for value in pc.unique(values).to_pylist():
            yield f"{self.split_by}={value}", rest.filter(pc.equal(values, value))


_WRITTEN_ARROW = pa.schema([("path", pa.string()), ("folder", pa.string()), ("bytes", pa.int64())])


def batch_folder(batch_id: int, run_id: str) -> str:
    """Name of the folder of what the tasks of a micro-batch write."""
    return f"files-{batch_id:012d}-{run_id}"


@dataclass(slots=True)
class _File:
    """One Parquet file, in row groups of about as many bytes."""

    path: Path
    columns: pa.Schema
    compression: str
    nbytes: int = 0
    _gathered: Gathered = field(default_factory=lambda: Gathered(_GROUP_ROWS, _GROUP_BYTES))
    _writer: pq.ParquetWriter | None = None
    _is_finished: bool = False

    def add(self, rows: pa.RecordBatch) -> None:
        if self._gathered.add(_as(rows, self.columns)):
            self._write_group()

    def finish(self) -> None:
        """Write the rest and the footer; the file is durable then."""
        self._write_group()
        with _refusing(self.path):
            assert self._writer is not None
            self._writer.close()
            sync(self.path)
            sync(self.path.parent)
            self.nbytes = self.path.stat().st_size
        self._is_finished = True

    def drop_unfinished(self) -> None:
        """Let go of a file whose task has failed."""
        if self._is_finished:
            return
        with suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with suppress(OSError):
            os.unlink(self.path)

    def _write_group(self) -> None:
        batches = self._gathered.take()
        if not batches:
            return
        rows = pa.Table.from_batches(batches, self.columns)
        with _refusing(self.path):
            if self._writer is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = parquet_writer(
                    self.path, rows.schema, self.compression, repeating=_repeating(rows)
                )
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        faults.point("files.group", self.path)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Say what to do where a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise DedupError(
            f"{path} cannot be written: {error.strerror or error}. Free space on that disk, or "
            "mend what is wrong with the folder, and run again. Nothing is lost.",
            remedy="local-disk",
        ) from error


def parquet_writer(
    path: Path, columns: pa.Schema, compression: str, *, repeating: list[str] | bool = True
) -> pq.ParquetWriter:
    """Return a writer of Parquet that reads as if Spark had written it."""
    writer = pq.ParquetWriter(
        path,
        columns,
        compression=compression,
        use_dictionary=repeating,
        store_schema=False,
        store_decimal_as_integer=True,
        write_page_checksum=True,
    )
    noted = columns.metadata or {}
    writer.add_key_value_metadata({name.decode(): noted[name].decode() for name in noted})
    return writer


def with_spark_metadata(columns: pa.Schema, spark_json: str, version: str) -> pa.Schema:
    """Return the columns with what Spark notes in the footer of a file.

    By the version a reader knows that old dates are in today's calendar, and by the columns what
    Parquet has no words for, such as comments.
    """
    noted: Mapping[str, str] = {
        "org.apache.spark.version": version,
        "org.apache.spark.sql.parquet.row.metadata": spark_json,
    }
    return columns.with_metadata(noted)


def _as(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the rows under the names and types of the output."""
    arrays = [
        column if column.type == wanted.type else column.cast(wanted.type)
        for column, wanted in zip(rows.columns, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _repeating(rows: pa.Table) -> list[str]:
    """Return the columns that a dictionary makes smaller; where it does not, it costs time."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    found = []
    for column, name in zip(sample.columns, sample.column_names, strict=True):
        if pa.types.is_nested(column.type):
            found += list(_leaves(column.type, name))
        elif pc.count_distinct(column, mode="all").as_py() * 2 <= len(column):
            found.append(name)
    return found


def _leaves(kind: pa.DataType, path: str) -> Iterator[str]:
    """Yield the paths of a column's leaves, as Parquet names them."""
    if pa.types.is_list(kind):
        yield from _leaves(kind.value_type, f"{path}.list.element")
    elif pa.types.is_map(kind):
        yield from _leaves(kind.key_type, f"{path}.key_value.key")
        yield from _leaves(kind.item_type, f"{path}.key_value.value")
    elif pa.types.is_struct(kind):
        for inner in kind:
            yield from _leaves(inner.type, f"{path}.{inner.name}")
    else:
        yield path
