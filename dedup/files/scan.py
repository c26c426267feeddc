"""Parquet files to packed blobs in one pass: the rows never meet the JVM.

What Spark hands to this pass is a list of **splits**: a file as Spark's source found it, and which
part of it to read. The row groups that begin in a part belong to it, so that a large file is read
by several tasks without a look at its footer on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dedup import faults
from dedup.errors import DataError
from dedup.files import parquet_fit
from dedup.files.gathered import Gathered
from dedup.spark.executor.pack import pack
from dedup.spark.plan import Plan

#: Rows of a batch, and about as many bytes of it.
BATCH_ROWS = 65_536
_BATCH_BYTES = 16 << 20
#: Rows that are read at a time, as Spark does it (``spark.sql.parquet.columnarReaderBatchSize``).
_READ_ROWS = 4096
_READ_BYTES = 2 << 20


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
        with _as_listed(split), parquet_fit.opened(str(split.path)) as file:
            in_file = pa.schema([c for c in self.columns if c.name not in self.folders])
            wrong = parquet_fit.misfit(file, in_file)
            if wrong is not None:
                raise DataError(
                    f"{split.path} came while the run went on, and is to be read by Spark itself: "
                    f"{wrong}. Nothing of it was taken. Run again."
                )
            places = [self._place(file, column) for column in self.columns]
            groups = split.row_groups(file.metadata)
            rows = sum(file.metadata.row_group(group).num_rows for group in groups)
            wanted = sorted({place for place in places if place is not None})
            for batch in _batches(file, groups, wanted):
                rows -= batch.num_rows
                yield [
                    pa.repeat(pa.scalar(folders[column.name], column.type), batch.num_rows)
                    if column.name in self.folders
                    else pa.nulls(batch.num_rows, column.type)
                    if place is None
                    else converted(batch.column(wanted.index(place)), column.type)
                    for column, place in zip(self.columns, places, strict=True)
                ]
            if rows:
                raise pa.ArrowInvalid(f"its rows and its footer differ by {abs(rows)}")

    def _place(self, file: pq.ParquetFile, column: pa.Field) -> int | None:
        """Position of a column among those of the file; None where the file lacks it."""
        if column.name in self.folders:
            return None
        return next(iter(parquet_fit.positions(file.schema_arrow, column.name)), None)


@dataclass(frozen=True, slots=True)
class Split:
    """Part of a file.

    Parameters
    ----------
    path : Path
    size, mtime_ms : int
        The file's, as Spark listed it for the micro-batch.
    number, count : int
        Which part, counted from 0, of how many.
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

    def row_groups(self, metadata: pq.FileMetaData) -> list[int]:
        """Return the row groups that begin in this part; each group begins in one part."""
        found = []
        for group in range(metadata.num_row_groups):
            part = _begin(metadata.row_group(group)) * self.count // max(self.size, 1)
            if min(max(part, 0), self.count - 1) == self.number:
                found.append(group)
        return found


def _begin(group: pq.RowGroupMetaData) -> int:
    """Where a row group begins in its file."""
    if not group.num_columns:
        return 0
    column = group.column(0)
    begin: int = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset > 0:
        begin = min(begin, column.dictionary_page_offset)
    return begin


@contextmanager
def _as_listed(split: Split) -> Iterator[None]:
    """Refuse a file that is not as it was listed, before and after it is read, and name it."""
    _check(split)
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        _check(split)
        raise DataError(
            f"{split.path} cannot be read as Parquet: {str(error).rstrip('.')}. Nothing of its "
            "micro-batch was taken. Mend the file under its name, or put an empty file in its "
            "place to leave it out, and run again.",
            remedy="bad-records",
        ) from error
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


def _batches(
    file: pq.ParquetFile, groups: list[int], places: list[int]
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of some row groups, a bounded number of bytes at a time."""
    names = [file.schema_arrow.names[place] for place in places]
    # A dot in a name would be taken for a field of a struct.
    every = len(names) == len(file.schema_arrow) or any("." in name for name in names)
    for group in groups:
        about = file.metadata.row_group(group)
        row_bytes = max(1, about.total_byte_size // max(1, about.num_rows))
        gathered = Gathered(BATCH_ROWS - _READ_ROWS + 1, _BATCH_BYTES)
        # What is large in memory may be small in the file, and stand in a few rows.
        for batch in file.iter_batches(
            max(1, min(_READ_ROWS, _READ_BYTES // row_bytes)),
            row_groups=[group],
            columns=None if every else names,
            use_threads=False,
        ):
            if gathered.add(batch.select(places) if every else batch.select(names)):
                yield from _joined(gathered.take())
        yield from _joined(gathered.take())


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield pa.concat_batches(batches) if len(batches) > 1 else batches[0]


def converted(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column as the type that Spark gives it; times without a zone are instants."""
    return column if column.type == wanted else column.cast(wanted)
