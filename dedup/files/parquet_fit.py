"""Which Parquet files pyarrow reads with the meaning that they have for Spark.

Parquet's types are few, and what writers put into them differs: times before 1582 in two
calendars, lists in three layouts, timestamps in three encodings. What is not known to read
alike is left to Spark (parquet-format, LogicalTypes.md; SPARK-31404 for the calendars).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

#: What a list or a map adds to the path of what is in it.
_LAYOUT = re.compile(r"\.list\.element|\.key_value\.(?:key|value)")
_VERSION = b"org.apache.spark.version"
#: Keys of files whose old dates and times are in the calendar of Julius Caesar, and the release
#: of Spark from which on they are only where such a key says so.
_OLD_CALENDAR = ((b"org.apache.spark.legacyDateTime", (3, 0)),
                 (b"org.apache.spark.legacyINT96", (3, 1)))  # fmt: skip


def opened(path: str) -> pq.ParquetFile:
    """Return a file, ready to be compared and read.

    Raises
    ------
    OSError, pyarrow.ArrowException
        Where it is not there, or no Parquet file.
    """
    # Spark's own default, INT96, holds nanoseconds of which Spark drops the last three digits.
    return pq.ParquetFile(
        path, coerce_int96_timestamp_unit="us", page_checksum_verification=True, pre_buffer=False
    )


def misfit(file: pq.ParquetFile, columns: pa.Schema) -> str | None:
    """Say what only Spark reads as it means it; None for a file that pyarrow may read.

    Parameters
    ----------
    file : ParquetFile
        From `opened`.
    columns : pyarrow.Schema
        Columns to read, as `dedup.files.types.arrow_schema` makes them. The file may lack some.
    """
    found = file.schema_arrow
    wanted: dict[str, pa.DataType] = {}
    for field in columns:
        where = positions(found, field.name)
        if len(where) > 1:
            return f"it has {len(where)} columns named {field.name!r}, in other case"
        if where:
            wanted[found.names[where[0]]] = field.type
    stored_as_int96, has_times = set(), False
    for leaf in map(file.schema.column, range(len(file.schema))):
        name = next((n for n in _beginnings(leaf.path) if n in found.names), "")
        if name not in wanted:
            continue
        if leaf.max_repetition_level != len(_LAYOUT.findall(leaf.path)):
            return f"its column {name!r} is a list or map in another layout than today's"
        if leaf.physical_type == "INT96":
            stored_as_int96.add(name)
        told = json.loads(leaf.logical_type.to_json())
        has_times |= leaf.physical_type == "INT96" or told["Type"] in ("Date", "Timestamp")
    for name, kind in wanted.items():
        type_found = found.field(name).type
        if name in stored_as_int96 and type_found == pa.timestamp("us"):
            type_found = pa.timestamp("us", "UTC")
        elif name in stored_as_int96:
            return f"its column {name!r} holds INT96 inside"
        if not _alike(type_found, kind):
            return f"its column {name!r} is {type_found}, where {kind} is expected"
    return _other_calendar(file) if has_times else None


def positions(schema: pa.Schema, name: str) -> list[int]:
    """Return where columns of that name are, in any case of letters, as Spark looks them up."""
    return [i for i, other in enumerate(schema.names) if other.lower() == name.lower()]


def _beginnings(path: str) -> Iterator[str]:
    """The path of a leaf and those of what it lies in, the longest first."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a cast gives the values that Spark reads."""
    is_ = pa.types
    if is_.is_dictionary(found):  # as Arrow's writers note for themselves
        return is_.is_string(wanted) and _alike(found.value_type, wanted)
    if is_.is_string(wanted):
        return bool(is_.is_string(found) or is_.is_large_string(found))
    if is_.is_binary(wanted):
        return bool(
            is_.is_binary(found) or is_.is_large_binary(found) or is_.is_fixed_size_binary(found)
        )
    if is_.is_timestamp(wanted):
        return (
            bool(is_.is_timestamp(found))
            and found.unit != "ns"
            and (found.tz is None) == (wanted.tz is None)
        )
    if is_.is_list(wanted):
        return bool(is_.is_list(found)) and _alike(found.value_type, wanted.value_type)
    if is_.is_map(wanted):
        return (
            bool(is_.is_map(found))
            and _alike(found.key_type, wanted.key_type)
            and _alike(found.item_type, wanted.item_type)
        )
    if is_.is_struct(wanted):
        if not is_.is_struct(found) or found.num_fields != wanted.num_fields:
            return False
        return all(
            a.name == b.name and _alike(a.type, b.type) for a, b in zip(found, wanted, strict=True)
        )
    return bool(found == wanted)


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
