"""Reads Parquet files by pyarrow, with the values that Spark would read.

Writers of Parquet use two calendars for times before 1582, three layouts of lists and three
encodings of timestamps. If pyarrow and Spark may read a file differently, Spark reads it
(parquet-format, LogicalTypes.md; SPARK-31404 for the calendars).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrameReader
from pyspark.sql import types as T  # noqa: N812

from dedup.sources.files.exact_values import NotExact, converted, spark_type

#: Largest number of rows in a batch, and its approximate number of bytes.
BATCH_ROWS = 65_536
BATCH_BYTES = 16 << 20
#: Number of rows to read at a time, as in Spark (``spark.sql.parquet.columnarReaderBatchSize``).
_READ_ROWS = 4096
_READ_BYTES = 2 << 20

#: The part of a path in Parquet that leads to the items of a list or map.
_LAYOUT = re.compile(r"\.list\.element|\.key_value\.(?:key|value)")
#: Bytes of the signature that follows the footer if columns are encrypted. pyarrow would crash the
#: process when it reads the footer's entries for encrypted columns.
_SIGNATURE = 28
#: Logical types and units that Spark does not read.
_NOT_SPARKS = {"UUID": "UUIDs", "Float16": "half floats", "nanoseconds": "nanoseconds"}
#: Codecs whose libraries Spark does not ship.
_NO_CODECS = {"BROTLI", "LZO"}
_VERSION = b"org.apache.spark.version"
#: Metadata keys of files whose old dates and times are in the Julian calendar. With each key stands
#: the first release of Spark that writes it. Earlier releases always wrote the Julian calendar.
_OLD_CALENDAR = ((b"org.apache.spark.legacyDateTime", (3, 0)),
                 (b"org.apache.spark.legacyINT96", (3, 1)))  # fmt: skip


@dataclass(slots=True)
class BatchBuffer:
    """Collects record batches until they have enough rows or bytes."""

    max_rows: int
    max_bytes: int
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _rows: int = 0
    _nbytes: int = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Add a batch, and return whether the buffer is full."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._nbytes += batch.nbytes
        return self._rows >= self.max_rows or self._nbytes >= self.max_bytes

    def take(self) -> list[pa.RecordBatch]:
        """Return the batches, and empty the buffer."""
        taken, self._batches = self._batches, []
        self._rows = self._nbytes = 0
        return taken


class ParquetInput:
    """An open Parquet file. Every method may raise OSError or pyarrow.ArrowException."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = self._opened("us")
        with open(path, "rb") as source:
            source.seek(-8, os.SEEK_END)
            footer_bytes = int.from_bytes(source.read(4), "little")
        if footer_bytes == self._file.metadata.serialized_size + _SIGNATURE:
            self._file.close()
            raise pa.ArrowNotImplementedError("some of its columns are encrypted")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _opened(self, int96_unit: str) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._path,
            coerce_int96_timestamp_unit=int96_unit,
            page_checksum_verification=True,
            pre_buffer=False,
        )

    @property
    def schema(self) -> pa.Schema:
        """The schema of all columns, as pyarrow reads them."""
        return self._file.schema_arrow

    @property
    def parts(self) -> list[int]:
        """The number of rows of each row group, in the order of the file."""
        metadata = self._file.metadata
        return [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]

    @cached_property
    def _columns(self) -> list[tuple[pa.Field, list[pq.ColumnSchema], set[str]]]:
        """Each column, with its leaf columns in Parquet and the types of the leaf columns."""
        leaves, columns = map(self._file.schema.column, range(len(self._file.schema))), []
        for column in self.schema:
            own = list(islice(leaves, _width(column.type)))
            # Only the converted type names an interval.
            kinds = {(c.logical_type.type, c.converted_type, c.physical_type) for c in own}
            columns.append((column, own, set(chain.from_iterable(kinds))))
        return columns

    @property
    def spark_schema(self) -> pa.Schema:
        """The schema of all columns, with the types that Spark gives them."""
        columns = ((column, spark_type(column.type, stored)) for column, _, stored in self._columns)
        return pa.schema([column.with_type(kind).remove_metadata() for column, kind in columns])

    def misfit(self, columns: pa.Schema) -> str | None:
        """Return why only Spark may read these columns, or None if pyarrow may read them.

        `columns` are from `dedup.sources.files.bypass.arrow_schema`. The file may lack some of the
        columns.
        """
        for name in columns.names:
            count = len(positions(self.schema, name))
            if count > 1:
                return f"it has {count} columns named {name!r}, in other case"
        has_times = False
        for column, leaves, stored in self._columns:
            for place in positions(columns, column.name):
                wanted = columns.field(place).type
                if any(c.max_repetition_level != len(_LAYOUT.findall(c.path)) for c in leaves):
                    layout = "a list or map in another layout than today's"
                    return f"its column {column.name!r} is {layout}"
                # UUIDs may be read as stored.
                kinds = (spark_type(column.type, names) for names in (stored, stored - {"UUID"}))
                if spark_type(wanted, ()) not in kinds:
                    return (
                        f"its column {column.name!r} is {column.type}, where {wanted} is expected"
                    )
                has_times |= not stored.isdisjoint(("INT96", "DATE", "TIMESTAMP"))
        return _other_calendar(self._file) if has_times else None

    def unread_by_spark(self, columns: pa.Schema) -> str | None:
        """Return why Spark cannot read these columns, or None if Spark can.

        Raises NotExact for a value of which Spark would lose digits.
        """
        int96 = []
        for column, leaves, stored in self._columns:
            for place in positions(columns, column.name):
                logical = [json.loads(leaf.logical_type.to_json()) for leaf in leaves]
                kinds = {name for one in logical for name in (one["Type"], one.get("timeUnit"))}
                # Spark reads such columns as they are stored.
                if columns.field(place).type in (pa.int64(), pa.binary()):
                    kinds.clear()
                for kind in kinds & _NOT_SPARKS.keys():
                    what = _NOT_SPARKS[kind]
                    return f"its column {column.name!r} holds {what}, which Spark does not read"
                if "INT96" in stored:
                    int96.append(column.with_type(spark_type(column.type, stored)))
        groups = range(self._file.num_row_groups)
        for group in map(self._file.metadata.row_group, groups):
            codecs = {group.column(at).compression for at in range(group.num_columns)}
            for codec in codecs & _NO_CODECS:
                return f"it is compressed by {codec.capitalize()}, for which Spark has no codec"
        if int96 and _VERSION not in (self._file.metadata.metadata or {}):
            for part in groups:
                for _ in self.batches(part, pa.schema(int96)):
                    pass
        return None

    def batches(self, part: int, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of row group `part`, a bounded number of bytes at a time.

        `columns` has the wanted names and types. Raises NotExact for a value that the type of its
        column cannot hold.
        """
        names = [self.schema.names[positions(self.schema, name)[0]] for name in columns.names]
        int96 = [c.name for c, _, stored in self._columns if c.name in names and "INT96" in stored]
        nanos = self._read(self._opened("ns"), part, int96) if int96 else repeat(None)
        buffer = BatchBuffer(BATCH_ROWS - _READ_ROWS + 1, BATCH_BYTES)
        for rows, twins in zip(self._read(self._file, part, names), nanos, strict=False):
            arrays = []
            for name, column in zip(names, columns, strict=True):
                twin = twins.column(name) if name in int96 else None
                try:
                    arrays.append(converted(rows.column(name), column.type, twin))
                except NotExact as error:
                    raise NotExact(f"its column {column.name!r} {error}") from None
            batch = pa.RecordBatch.from_arrays(arrays, names=columns.names) if arrays else rows
            if buffer.add(batch):
                yield from _joined(buffer.take())
        yield from _joined(buffer.take())

    def _read(self, file: pq.ParquetFile, part: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        about = file.metadata.row_group(part)
        row_bytes = max(1, about.total_byte_size // max(1, about.num_rows))
        # Read few rows at a time, because rows may be small in the file but large in memory.
        for batch in file.iter_batches(
            max(1, min(_READ_ROWS, _READ_BYTES // row_bytes)),
            row_groups=[part],
            # pyarrow would take a name with a dot for a field of a struct.
            columns=None if any("." in name for name in names) else names,
            use_threads=False,
        ):
            yield batch.select(names)


def positions(schema: pa.Schema, name: str) -> list[int]:
    """Return the positions of all columns with this name, ignoring case as Spark does."""
    return [i for i, other in enumerate(schema.names) if other.lower() == name.lower()]


def _width(kind: pa.DataType) -> int:
    inner = getattr(kind, "storage_type", kind)
    return sum(_width(inner.field(at).type) for at in range(inner.num_fields)) or 1


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield pa.concat_batches(batches) if len(batches) > 1 else batches[0]


def _other_calendar(file: pq.ParquetFile) -> str | None:
    metadata = file.metadata.metadata or {}
    version = metadata.get(_VERSION)
    if version is None:
        return None
    numbers = tuple(int(n) for n in version.split(b".")[:2])
    if any(key in metadata or numbers < first for key, first in _OLD_CALENDAR):
        return "its dates and times may be in the Julian calendar"
    return None


def spark_columns(
    reader: DataFrameReader,
    places: str | list[str],
    paths: Sequence[Path],
    root: Path | None = None,
) -> T.StructType:
    """Return the columns of files as Spark infers them, even if Spark cannot read some types.

    Tasks read these types as others: nanoseconds as microseconds, UUIDs as text, half floats as
    floats. `places` and `paths` name the same files. Folders below `root` are partition columns.
    Raises Spark's errors.
    """
    try:
        return reader.load(places).schema
    except Exception:
        with suppress(Exception), tempfile.TemporaryDirectory(prefix="dedup-columns-") as scratch:
            for number, path in enumerate(paths):
                if path.stat().st_size:
                    folder = Path(scratch, "" if root is None else path.parent.relative_to(root))
                    folder.mkdir(parents=True, exist_ok=True)
                    _stand_in(path, folder / f"{number}-{path.name}")
            return reader.option("basePath", scratch).load(scratch).schema
        raise


def _stand_in(path: Path, place: Path) -> None:
    with ParquetInput(str(path)) as file:
        known = file.spark_schema
        if known.types == file.schema.types:
            place.symlink_to(path)
        else:
            pq.write_table(known.empty_table(), place, store_schema=False)
