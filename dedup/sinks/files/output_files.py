"""The file formats that tasks write, which are Parquet and lines of text."""

from __future__ import annotations

import gzip
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dedup.errors import DataError, DedupError, faults
from dedup.sources.files.parquet_input import BatchBuffer
from dedup.storage.localfile import sync

#: Size of a row group in Arrow's memory. A task buffers one group for each folder it writes to.
GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 20
#: The writer samples this number of rows to decide which columns get a dictionary.
_SAMPLE_ROWS = 16_384
#: Size of the rows in Arrow's memory that are made text at once.
_LINES_BYTES = 16 << 20
#: Largest row. Arrow's functions crash if a text that they make has more than 2 GiB, and JSON makes
#: six bytes of one.
_LARGEST_BYTES = 256 << 20


@dataclass(slots=True)
class OutputFile(ABC):
    """A new file that a task writes. `compression` is a codec in pyarrow's spelling."""

    path: Path
    columns: pa.Schema
    compression: str
    nbytes: int = field(default=0, init=False)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows whose columns have the file's order. Raises DedupError if the disk is full."""
        self._take(rows.rename_columns(self.columns.names).cast(self.columns))

    def finish(self) -> None:
        """Write the buffered rows, and make the file durable."""
        with refusing(self.path):
            self._close()
            sync(self.path)
            sync(self.path.parent)
            self.nbytes = self.path.stat().st_size

    def drop(self) -> None:
        """Close and remove the file, because its task has failed."""
        with suppress(OSError, pa.ArrowException):
            self._let_go()
        with suppress(OSError):
            os.unlink(self.path)

    @abstractmethod
    def _take(self, rows: pa.RecordBatch) -> None:
        """Write or buffer rows, and update `nbytes`."""

    @abstractmethod
    def _close(self) -> None:
        """Write the buffered rows and the end of the file."""

    @abstractmethod
    def _let_go(self) -> None:
        """Close the file without writing buffered rows."""


@dataclass(slots=True)
class ParquetOutput(OutputFile):
    """A Parquet file. Each row group takes about `group_bytes` of memory in Arrow."""

    group_bytes: int | None = None
    _gathered: BatchBuffer = field(init=False)
    _writer: pq.ParquetWriter | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._gathered = BatchBuffer(_GROUP_ROWS, self.group_bytes or GROUP_BYTES)

    def _take(self, rows: pa.RecordBatch) -> None:
        if self._gathered.add(rows):
            self._write_group()

    def _close(self) -> None:
        self._write_group()
        writer = self._writer or self._opened()  # a file without rows has columns too
        writer.close()

    def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write_group(self) -> None:
        batches = self._gathered.take()
        if not batches:
            return
        rows = pa.Table.from_batches(batches, self.columns)
        with refusing(self.path):
            writer = self._writer or self._opened(repeating=_repeating(rows))
            writer.write_table(rows, row_group_size=rows.num_rows)
            self.nbytes = self.path.stat().st_size
        faults.point("files.group", self.path)

    def _opened(self, repeating: list[str] | bool = True) -> pq.ParquetWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = parquet_writer(
            self.path, self.columns, self.compression, repeating=repeating
        )
        return self._writer


@dataclass(slots=True)
class TextOutput(OutputFile):
    """A text file that begins with `head`. The function `lines` turns rows into text."""

    lines: Callable[[pa.RecordBatch], bytes]
    head: bytes = b""
    _raw: BinaryIO | None = field(default=None, init=False)
    _out: BinaryIO | gzip.GzipFile | None = field(default=None, init=False)

    def _take(self, rows: pa.RecordBatch) -> None:
        for piece in _pieces(rows):
            data = self.lines(piece)
            with refusing(self.path):
                self._opened().write(data)
                assert self._raw is not None
                self.nbytes = self._raw.tell()
        faults.point("files.group", self.path)

    def _opened(self) -> BinaryIO | gzip.GzipFile:
        if self._out is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._raw = self._out = open(self.path, "xb")  # noqa: SIM115
            if self.compression == "gzip":
                self._out = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=6, mtime=0)
            self._out.write(self.head)
        return self._out

    def _close(self) -> None:
        out, raw = self._opened(), self._raw
        assert raw is not None
        out.close()  # writes the end of a compressed file, and leaves `raw` open
        raw.close()

    def _let_go(self) -> None:
        if self._raw is not None:
            self._raw.close()


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide rows into pieces of at most `_LINES_BYTES`, or of one row."""
    if rows.nbytes <= _LINES_BYTES:
        yield rows
    elif rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _pieces(rows.slice(0, half))
        yield from _pieces(rows.slice(half))
    elif rows.nbytes <= _LARGEST_BYTES:
        yield rows
    else:
        raise DataError(
            f"A row has {rows.nbytes >> 20:,} MiB, and a line of text has space for "
            f"{_LARGEST_BYTES >> 20}. Nothing of its micro-batch was published. Write Parquet."
        )


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Replace an OSError from writing to `path` by a DedupError that says what to do."""
    try:
        yield
    except OSError as error:
        raise DedupError(
            f"{path} cannot be written: {error.strerror or error}. Free space on that disk, or "
            "repair the folder, and run again. Nothing is lost.",
            remedy="local-disk",
        ) from error


def parquet_writer(
    path: Path, columns: pa.Schema, compression: str, *, repeating: list[str] | bool = True
) -> pq.ParquetWriter:
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
    """Return the columns with the metadata that Spark writes to the footer of a Parquet file.

    From the Spark version readers know that old dates are in today's calendar. `spark_json`
    describes what Parquet cannot express, such as comments on columns.
    """
    return columns.with_metadata(
        {
            "org.apache.spark.version": version,
            "org.apache.spark.sql.parquet.row.metadata": spark_json,
        }
    )


def _repeating(rows: pa.Table) -> list[str]:
    """Return the columns whose values repeat, so that a dictionary makes the file smaller."""
    sample = rows.slice(0, _SAMPLE_ROWS)
    repeating = []
    for column, name in zip(sample.columns, sample.column_names, strict=True):
        if pa.types.is_nested(column.type):
            repeating += list(_leaves(column.type, name))
        elif pc.count_distinct(column, mode="all").as_py() * 2 <= len(column):
            repeating.append(name)
    return repeating


def _leaves(kind: pa.DataType, path: str) -> Iterator[str]:
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
