"""Parquet, where pyarrow reads it with the meaning that it has for Spark.

Parquet's types are few, and what writers put into them differs: times before 1582 in two
calendars, lists in three layouts, timestamps in three encodings. What is not known to read
alike is left to Spark (parquet-format, LogicalTypes.md; SPARK-31404 for the calendars).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property, partial
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from dedup.files.exact_values import instants_of_int96, leaves, named, plain
from dedup.files.gathered import Gathered

#: Rows of a batch, and about as many bytes of it.
BATCH_ROWS = 65_536
BATCH_BYTES = 16 << 20
#: Rows that are read at a time, as Spark does it (``spark.sql.parquet.columnarReaderBatchSize``).
_READ_ROWS = 4096
_READ_BYTES = 2 << 20

#: What a list or a map adds to the path of what is in it.
_LAYOUT = re.compile(r"\.list\.element|\.key_value\.(?:key|value)")
#: Logical types and units that Spark does not read.
_NOT_SPARKS = {"UUID": "UUIDs", "Float16": "half floats", "nanoseconds": "nanoseconds"}
#: Spark would need a library for them that it does not bring.
_NO_CODECS = {"BROTLI", "LZO"}
_VERSION = b"org.apache.spark.version"
#: Keys of files whose old dates and times are in the calendar of Julius Caesar, and the release
#: of Spark from which on they are only where such a key says so.
_OLD_CALENDAR = ((b"org.apache.spark.legacyDateTime", (3, 0)),
                 (b"org.apache.spark.legacyINT96", (3, 1)))  # fmt: skip


class Part(NamedTuple):
    """A row group.

    Parameters
    ----------
    begin : int
        Its first byte in the file, by which it belongs to one split.
    rows : int
    """

    begin: int
    rows: int


class ParquetInput:
    """A Parquet file that is open, ready to be compared and read.

    What cannot be read raises OSError or pyarrow.ArrowException.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = self._opened("us")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """All columns."""
        return self._file.schema_arrow

    @cached_property
    def parts(self) -> list[Part]:
        """The row groups, in the order of the file."""
        metadata = self._file.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [Part(_begin(group), group.num_rows) for group in groups]

    def misfit(self, columns: pa.Schema) -> str | None:
        """Say what only Spark reads as it means it; None for a file that pyarrow may read.

        Parameters
        ----------
        columns : pyarrow.Schema
            Columns to read, as `dedup.files.types.arrow_schema` makes them. The file may lack some.
        """
        for name in columns.names:
            count = len(positions(self.schema, name))
            if count > 1:
                return f"it has {count} columns named {name!r}, in other case"
        return _misfit(self._file, columns)

    def unread_by_spark(self, columns: pa.Schema) -> str | None:
        """Say what of these columns Spark itself would not read.

        Raises
        ------
        NotExact
            For a value that it would cut.
        """
        int96 = set()
        for name, kind, leaf in _leaves(self._file, columns):
            told = json.loads(leaf.logical_type.to_json())
            what = _NOT_SPARKS.get(told["Type"]) or _NOT_SPARKS.get(told.get("timeUnit", ""))
            # Asked for as they are stored, Spark reads them.
            if what is not None and kind not in (pa.int64(), pa.binary()):
                return f"its column {name!r} holds {what}, which Spark does not read"
            if leaf.physical_type == "INT96":
                int96.add(name)
        groups = range(self._file.num_row_groups)
        for group in map(self._file.metadata.row_group, groups):
            codecs = {group.column(at).compression for at in range(group.num_columns)}
            for codec in codecs & _NO_CODECS:
                return f"it is compressed by {codec.capitalize()}, for which Spark has no codec"
        if int96 and _VERSION not in (self._file.metadata.metadata or {}):
            nanos = self._opened("ns")
            for part in groups:
                for name in int96:
                    read = (_read(file, part, [name]) for file in (self._file, nanos))
                    for us, ns in zip(*(leaves(_one(t.column(0))) for t in read), strict=True):
                        _instants(name, us, ns)
        return None

    def batches(self, part: int, places: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of a row group, a bounded number of bytes at a time."""
        names = [self.schema.names[place] for place in places]
        # A dot in a name would be taken for a field of a struct.
        every = len(names) == len(self.schema) or any("." in name for name in names)
        about = self._file.metadata.row_group(part)
        row_bytes = max(1, about.total_byte_size // max(1, about.num_rows))
        gathered = Gathered(BATCH_ROWS - _READ_ROWS + 1, BATCH_BYTES)
        int96 = [c.path for c in _columns(self._file) if c.physical_type == "INT96"]
        int96 = [name for name in names if name in int96]
        nanos, at = _read(self._opened("ns"), part, int96) if int96 else None, 0
        # What is large in memory may be small in the file, and stand in a few rows.
        for batch in self._file.iter_batches(
            max(1, min(_READ_ROWS, _READ_BYTES // row_bytes)),
            row_groups=[part],
            columns=None if every else names,
            use_threads=False,
        ):
            batch = batch.select(places) if every else batch.select(names)
            for name in int96:
                assert nanos is not None
                ns = _one(nanos.column(name).slice(at, len(batch)))
                times = _instants(name, batch.column(name), ns)
                batch = batch.set_column(names.index(name), name, times)
            at += len(batch)
            if gathered.add(batch):
                yield from _joined(gathered.take())
        yield from _joined(gathered.take())


def positions(schema: pa.Schema, name: str) -> list[int]:
    """Return where columns of that name are, in any case of letters, as Spark looks them up."""
    return [i for i, other in enumerate(schema.names) if other.lower() == name.lower()]


def _columns(file: pq.ParquetFile) -> Iterator[pq.ColumnSchema]:
    return map(file.schema.column, range(len(file.schema)))


def _read(file: pq.ParquetFile, part: int, names: list[str]) -> pa.Table:
    dotted = any("." in name for name in names)
    return file.read_row_group(part, None if dotted else names, use_threads=False).select(names)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _instants(name: str, micros: pa.Array, nanos: pa.Array) -> pa.Array:
    with named(name):
        return instants_of_int96(micros, nanos)


def _leaves(
    file: pq.ParquetFile, columns: pa.Schema
) -> Iterator[tuple[str, pa.DataType, pq.ColumnSchema]]:
    """Yield the leaves of the columns, with name and type of the column that each is in."""
    found = file.schema_arrow
    wanted = {
        found.names[where]: field.type
        for field in columns
        for where in positions(found, field.name)
    }
    for leaf in _columns(file):
        name = next((n for n in _beginnings(leaf.path) if n in found.names), "")
        if name in wanted:
            yield name, wanted[name], leaf


def _begin(group: pq.RowGroupMetaData) -> int:
    """Where a row group begins in its file."""
    if not group.num_columns:
        return 0
    column = group.column(0)
    begin: int = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset > 0:
        begin = min(begin, column.dictionary_page_offset)
    return begin


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield pa.concat_batches(batches) if len(batches) > 1 else batches[0]


def _misfit(file: pq.ParquetFile, columns: pa.Schema) -> str | None:
    found = file.schema_arrow
    wanted: dict[str, pa.DataType] = {}
    uuids, stored_as_int96, has_times = set(), set(), False
    for name, kind, leaf in _leaves(file, columns):
        wanted[name] = kind
        if leaf.max_repetition_level != len(_LAYOUT.findall(leaf.path)):
            return f"its column {name!r} is a list or map in another layout than today's"
        if leaf.physical_type == "INT96":
            stored_as_int96.add(name)
        told = json.loads(leaf.logical_type.to_json())
        if told["Type"] == "UUID":
            uuids.add(name)
        has_times |= leaf.physical_type == "INT96" or told["Type"] in ("Date", "Timestamp")
    for name, kind in wanted.items():
        own = found.field(name)
        if name in stored_as_int96 and own.type == pa.timestamp("us"):
            own = own.with_type(pa.timestamp("us", "UTC"))
        elif name in stored_as_int96:
            return f"its column {name!r} holds INT96 inside"
        if not _alike(own.type, kind, holds_uuids=name in uuids):
            return f"its column {name!r} is {own.type}, where {kind} is expected"
    return _other_calendar(file) if has_times else None


def _beginnings(path: str) -> Iterator[str]:
    """The path of a leaf and those of what it lies in, the longest first."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _alike(found: pa.DataType, wanted: pa.DataType, *, holds_uuids: bool) -> bool:
    """Whether a cast gives the values that Spark reads, in nested columns too."""
    is_, found = pa.types, plain(found)
    inner = partial(_alike, holds_uuids=holds_uuids)
    if is_.is_list(wanted):
        return bool(is_.is_list(found)) and inner(found.value_type, wanted.value_type)
    if is_.is_map(wanted):
        return (
            bool(is_.is_map(found))
            and inner(found.key_type, wanted.key_type)
            and inner(found.item_type, wanted.item_type)
        )
    if is_.is_struct(wanted):
        if not is_.is_struct(found) or found.num_fields != wanted.num_fields:
            return False
        return all(
            a.name == b.name and inner(a.type, b.type) for a, b in zip(found, wanted, strict=True)
        )
    if is_.is_dictionary(found):  # as Arrow's writers note for themselves
        found = found.value_type
        return is_.is_string(wanted) and bool(is_.is_string(found) or is_.is_large_string(found))
    if is_.is_string(wanted):
        is_uuid = holds_uuids and found == pa.binary(16)
        return bool(is_.is_string(found) or is_.is_large_string(found) or is_uuid)
    if is_.is_binary(wanted):
        return bool(
            is_.is_binary(found) or is_.is_large_binary(found) or is_.is_fixed_size_binary(found)
        )
    if is_.is_timestamp(wanted):
        return bool(is_.is_timestamp(found)) and (found.tz is None) == (wanted.tz is None)
    return bool(found == wanted) or (is_.is_float16(found) and is_.is_float32(wanted))


def _other_calendar(file: pq.ParquetFile) -> str | None:
    told = file.metadata.metadata or {}
    version = told.get(_VERSION)
    if version is None:
        return None
    numbers = tuple(int(n) for n in version.split(b".")[:2])
    for key, first in _OLD_CALENDAR:
        if key in told or numbers < first:
            return "its dates and times may be in the calendar of before 1582"
    return None
