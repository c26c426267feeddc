"""Reads files and packs their rows into blobs in one pass, so that no row enters the JVM.

A task gets a list of **splits** from Spark. A split names a file as Spark's source listed it
(``path``, ``size``, ``mtime_ms``), and the part of the file to read: part ``number``, from 0, of
``count`` parts. Each row group belongs to one part. So several tasks can share a large file, and
the driver need not read the file's footer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.errors import DataError, faults
from dedup.sources.files.exact_values import WRITE_AGAIN, NotExact, unreadable
from dedup.sources.files.parquet_input import ParquetInput, positions
from dedup.spark.executor.pack import pack
from dedup.spark.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The first pass of a query over files. It replaces `pack`, and gets splits instead of rows."""

    #: The user's columns, from files and folders.
    columns: pa.Schema
    #: The plan's names for `columns`, in the same order.
    names: tuple[str, ...]
    #: Names of the partition columns.
    folders: frozenset[str]
    #: The plan's name for the column with the micro-batch's time, or None without that column.
    now_column: str | None

    def __call__(self, plan: Plan, splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the packed rows of one task. Raises what `pack` and `rows` raise."""
        yield from pack(plan, self.rows(splits))

    def rows(self, splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the splits, with the time of the micro-batch.

        Raises DataError for a file that is missing, damaged, or changed since Spark listed it.
        """
        names = [*self.names, *([] if self.now_column is None else [self.now_column])]
        for batch in splits:
            nows = batch.column("now")
            for split, now in zip(batch.drop_columns(["now"]).to_pylist(), nows, strict=True):
                for rows in self._rows(split):
                    if self.now_column is not None:
                        rows.append(pa.repeat(now, len(rows[0])))
                    yield pa.RecordBatch.from_arrays(rows, names=names)

    def _rows(self, split: dict[str, Any]) -> Iterator[list[pa.Array]]:
        faults.point("scan.begin")
        # The path is not URL-encoded.
        path = Path("/" + split["path"].removeprefix("file:").lstrip("/"))
        with _as_listed(path, split), ParquetInput(str(path)) as file:
            in_file = pa.schema([c for c in self.columns if c.name not in self.folders])
            problem = file.misfit(in_file)
            if problem is not None:
                raise DataError(
                    f"{path} was added during the run, and only Spark itself can read it: "
                    f"{problem}. None of its rows was read. Run again."
                )
            there = pa.schema([c for c in in_file if positions(file.schema, c.name)])
            by_folder = [c for c in self.columns if c.name in self.folders]
            folders = {c.name: pa.scalar(split["folders"][c.name], c.type) for c in by_folder}
            parts = file.parts
            for part, rows in enumerate(parts):
                if part * split["count"] // len(parts) != split["number"]:
                    continue
                for batch in file.batches(part, there):
                    rows -= batch.num_rows
                    yield [
                        pa.repeat(folders[column.name], batch.num_rows)
                        if column.name in folders
                        else batch.column(column.name)
                        if column.name in there.names
                        else pa.nulls(batch.num_rows, column.type)
                        for column in self.columns
                    ]
                if rows:
                    raise pa.ArrowInvalid(f"its rows and its footer differ by {abs(rows)}")


@contextmanager
def _as_listed(path: Path, split: dict[str, Any]) -> Iterator[None]:
    """Check, before and after the body runs, that a file is still as Spark listed it."""
    _check(path, split)
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        _check(path, split)
        why = str(error).rstrip(".")
        raise unreadable(path, why, file_format="Parquet") from error
    except NotExact as error:
        raise DataError(f"{path}: {error}. {WRITE_AGAIN}", remedy="bad-records") from None
    _check(path, split)


def _check(path: Path, split: dict[str, Any]) -> None:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}. It existed when its micro-batch began. "
            "Restore it, and run again.",
            remedy="unfinished-files",
        ) from None
    if (status.st_size, status.st_mtime_ns // 1_000_000) != (split["size"], split["mtime_ms"]):
        raise DataError(
            f"{path} was overwritten while its micro-batch was read. No row of the micro-batch was "
            "used. Wait until its writer has finished, and run again.",
            remedy="unfinished-files",
        )
