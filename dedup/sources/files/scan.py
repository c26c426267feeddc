"""Files to packed blobs in one pass: the rows never meet the JVM.

What Spark hands to this pass is a list of **splits**: a file as Spark's source found it, and which
stretch of it to read. The row groups that begin in a stretch belong to it, so that a large file is
read by several tasks without a look at its footer on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.errors import DataError, faults
from dedup.sources.files.exact_values import NotExact
from dedup.sources.files.parquet_input import ParquetInput, Part, positions
from dedup.sources.files.unreadable import WRITE_AGAIN, unreadable
from dedup.spark.executor.pack import pack
from dedup.spark.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """First pass over splits, in place of `pack` over rows.

    Parameters
    ----------
    columns : pyarrow.Schema
        The user's columns, from files and folders.
    names : tuple of str
        What the plan calls them, in the same order.
    folders : frozenset of str
        Those that are named by folders.
    now_column : str or None
        What the plan calls the time of the micro-batch.
    """

    columns: pa.Schema
    names: tuple[str, ...]
    folders: frozenset[str]
    now_column: str | None

    def __call__(self, plan: Plan, splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the packed rows of one task; errors as `pack`, and as `rows`."""
        yield from pack(plan, self.rows(splits))

    def rows(self, splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the splits, with the time of the micro-batch.

        Raises
        ------
        DataError
            Naming a file that is gone, damaged, or not as it was when Spark listed it.
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
            wrong = file.misfit(in_file)
            if wrong is not None:
                raise DataError(
                    f"{split.path} came while the run went on, and is to be read by Spark itself: "
                    f"{wrong}. Nothing of it was taken. Run again."
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
    """Stretch of a file.

    Parameters
    ----------
    path : Path
    size, mtime_ms : int
        The file's, as Spark listed it for the micro-batch.
    number, count : int
        Which stretch, counted from 0, of how many.
    """

    path: Path
    size: int
    mtime_ms: int
    number: int
    count: int

    @classmethod
    def of(cls, row: dict[str, Any]) -> Split:
        """Return the split that a row of the list names."""
        # As it is: nothing in it is encoded.
        path = Path("/" + row["path"].removeprefix("file:").lstrip("/"))
        return cls(path, row["size"], row["mtime_ms"], row["number"], row["count"])

    def parts(self, parts: Sequence[Part]) -> list[int]:
        """Return the numbers of the parts that begin in it; each part begins in one stretch."""
        found = []
        for number, part in enumerate(parts):
            where = part.begin * self.count // max(self.size, 1)
            if min(max(where, 0), self.count - 1) == self.number:
                found.append(number)
        return found


@contextmanager
def _as_listed(split: Split) -> Iterator[None]:
    """Refuse a file that is not as it was listed, before and after it is read, and name it."""
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
            f"{split.path} cannot be read: {error.strerror}. It was there when its micro-batch "
            "began. Put it back, and run again.",
            remedy="unfinished-files",
        ) from None
    if (status.st_size, status.st_mtime_ns // 1_000_000) != (split.size, split.mtime_ms):
        raise DataError(
            f"{split.path} was written again while its micro-batch was read. Nothing of the "
            "micro-batch was taken. Let whoever writes it finish, and run again.",
            remedy="unfinished-files",
        )
