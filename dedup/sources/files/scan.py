"""Packs rows of files into blobs in one pass, without the JVM.

Spark passes a list of **splits**: a file as Spark's source listed it, and which stretch of it to
read. A stretch owns the row groups that begin in it. So several tasks can read a large file, and
the driver need not read its footer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.errors import DataError, faults
from dedup.sources.files.exact_values import WRITE_AGAIN, NotExact, unreadable
from dedup.sources.files.parquet_input import ParquetInput, Part, positions
from dedup.spark.executor.pack import pack
from dedup.spark.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The first pass over splits, instead of `pack` over rows."""

    #: The user's columns, from files and folders.
    columns: pa.Schema
    #: The plan's names for them, in the same order.
    names: tuple[str, ...]
    #: The partition columns.
    folders: frozenset[str]
    #: The plan's name for the time of the micro-batch.
    now_column: str | None

    def __call__(self, plan: Plan, splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the packed rows of one task; errors as `pack` and `rows`."""
        yield from pack(plan, self.rows(splits))

    def rows(self, splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the splits, with the time of the micro-batch.

        A file that is missing, damaged, or changed since Spark listed it raises DataError.
        """
        names = [*self.names, *([] if self.now_column is None else [self.now_column])]
        for batch in splits:
            nows = batch.column("now")
            for split, now in zip(batch.drop_columns(["now"]).to_pylist(), nows, strict=True):
                for rows in self._rows(Split.of(split), split.get("folders", {})):
                    if self.now_column is not None:
                        rows.append(pa.repeat(now, len(rows[0])))
                    yield pa.RecordBatch.from_arrays(rows, names=names)

    def _rows(self, split: Split, folders: dict[str, Any]) -> Iterator[list[pa.Array]]:
        faults.point("scan.begin")
        with _as_listed(split), ParquetInput(str(split.path)) as file:
            in_file = pa.schema([c for c in self.columns if c.name not in self.folders])
            problem = file.misfit(in_file)
            if problem is not None:
                raise DataError(
                    f"{split.path} was added during the run, and only Spark itself can read it: "
                    f"{problem}. None of its rows was read. Run again."
                )
            there = pa.schema([c for c in in_file if positions(file.schema, c.name)])
            for part in split.parts(file.parts):
                rows = file.parts[part].rows
                for batch in file.batches(part, there):
                    rows -= batch.num_rows
                    yield [
                        pa.repeat(pa.scalar(folders[column.name], column.type), batch.num_rows)
                        if column.name in self.folders
                        else batch.column(column.name)
                        if column.name in there.names
                        else pa.nulls(batch.num_rows, column.type)
                        for column in self.columns
                    ]
                if rows:
                    raise pa.ArrowInvalid(f"its rows and its footer differ by {abs(rows)}")


@dataclass(frozen=True, slots=True)
class Split:
    """A stretch of a file, as Spark listed it for the micro-batch."""

    path: Path
    size: int
    mtime_ms: int
    #: Which stretch, counted from 0, of how many.
    number: int
    count: int

    @classmethod
    def of(cls, row: dict[str, Any]) -> Split:
        """Return the split in a row of the list."""
        # The path is not encoded.
        path = Path("/" + row["path"].removeprefix("file:").lstrip("/"))
        return cls(path, row["size"], row["mtime_ms"], row["number"], row["count"])

    def parts(self, parts: Sequence[Part]) -> list[int]:
        """Return the numbers of the parts that begin in it; each part begins in one stretch."""
        last = self.count - 1
        stretches = [part.begin * self.count // max(self.size, 1) for part in parts]
        return [n for n, at in enumerate(stretches) if min(max(at, 0), last) == self.number]


@contextmanager
def _as_listed(split: Split) -> Iterator[None]:
    """Refuse a file that changed since it was listed, before and after it is read."""
    _check(split)
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        _check(split)
        why = str(error).rstrip(".")
        raise unreadable(split.path, why, file_format="Parquet") from error
    except NotExact as error:
        raise DataError(f"{split.path}: {error}. {WRITE_AGAIN}", remedy="bad-records") from None
    _check(split)


def _check(split: Split) -> None:
    try:
        status = split.path.stat()
    except OSError as error:
        raise DataError(
            f"{split.path} cannot be read: {error.strerror}. It existed when its micro-batch "
            "began. Restore it, and run again.",
            remedy="unfinished-files",
        ) from None
    if (status.st_size, status.st_mtime_ns // 1_000_000) != (split.size, split.mtime_ms):
        raise DataError(
            f"{split.path} was overwritten while its micro-batch was read. No row of the "
            "micro-batch was used. Wait until its writer has finished, and run again.",
            remedy="unfinished-files",
        )
