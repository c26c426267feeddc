"""Check the columns of a stream before a query starts, and show records in errors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import ConfigError

#: Largest number of characters of a record that an error shows.
_SHOWN = 500
#: Largest number of decimal digits of Spark's integer types.
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


class Unsuitable(Exception):
    """A Spark column or value does not fit a column of the output. The message gives the reason."""


def refuse_twins(names: Iterable[str]) -> None:
    """Raise ConfigError if two columns have the same name, regardless of case."""
    seen = set()
    for name in names:
        if name.lower() in seen:
            raise ConfigError(
                f"The stream has two columns of the name {name!r}, or names that differ in case "
                "alone, which readers could not distinguish: rename one of them."
            )
        seen.add(name.lower())


def check_names(table: str, columns: Mapping[str, bool], names: Sequence[str]) -> None:
    """Raise ConfigError if a stream's columns do not fit a table.

    The table must have every column in `names`, and the stream must have every column that the
    table requires. `columns` maps each column of the table to True if the table requires it.
    """
    for name in names:
        if name not in columns:
            near = [other for other in columns if other.lower() == name.lower()]
            hint = repr(near[0]) if near else ", ".join(list(columns)[:20])
            raise ConfigError(
                f"Table {table} has no column {name!r}; it has {hint}. Rename or drop the column "
                "of the stream, or add it to the table."
            )
    for name, is_needed in columns.items():
        if is_needed and name not in names:
            raise ConfigError(
                f"Column {name!r} of table {table} must have a value, and the stream has no such "
                "column. Add it to the stream, or give the column a default."
            )


def plain_type(spark: str) -> str:
    """Return a Spark type without the collation of a text."""
    return "string" if spark.startswith("string ") else spark


def decimal_size(spark: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal Spark type, or None for another type."""
    match = _DECIMAL.fullmatch(spark)
    return (int(match[1]), int(match[2])) if match else None


def fitting_decimal(spark: str, kind: str, room: tuple[int, int] | None) -> tuple[int, int]:
    """Return the precision and scale of a Spark type that goes into a decimal column.

    `kind` is the column's type, and `room` its precision and scale, or None if it has no bounds.
    Raises Unsuitable if digits could be lost.
    """
    size = (_DIGITS[spark], 0) if spark in _DIGITS else decimal_size(spark)
    if size is None:
        raise Unsuitable(f"it is {spark}, and there {kind}; make it a decimal")
    if room is not None and (room[1] < size[1] or room[0] - room[1] < size[0] - size[1]):
        raise Unsuitable(
            f"it has {size[0]} digits, {size[1]} of them after the point, and there is room for "
            f"{room[0]} and {room[1]}"
        )
    return size


def check_length(texts: pa.Array, limit: int | None, unit: str = "characters") -> None:
    """Raise Unsuitable if a text is longer than a column. `unit` is ``characters`` or ``bytes``.

    Servers silently remove blanks beyond the limit.
    """
    lengths = pc.utf8_length(texts) if unit == "characters" else pc.binary_length(texts)
    most = pc.max(lengths).as_py() or 0
    if limit is not None and most > limit:
        raise Unsuitable(f"value too long: {most:,} {unit}, and the column takes {limit:,}")


def shown_record(row: pa.RecordBatch) -> str:
    """Return the beginning of one row as JSON, for errors."""
    text = record_as_json(row)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def record_as_json(row: pa.RecordBatch) -> str:
    """Return one row as JSON. Values that JSON lacks are spelled as by PostgreSQL's `to_jsonb`."""
    pairs = zip(row.schema.names, row.columns, strict=True)
    values = {name: _plain(column[0]) for name, column in pairs}
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def _plain(value: pa.Scalar) -> Any:
    """Return the value if JSON can hold it, or else a text of the value."""
    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_list(kind):
        return [_plain(one) for one in value.values]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # A Spark string may hold bytes that are not UTF-8.
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    try:
        plain = value.as_py()
    except (OverflowError, ValueError):  # a day outside Python's calendar
        return str(value.cast(pa.string()).as_py())
    if isinstance(plain, bytes):
        return f"\\x{plain.hex()}"
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"
    if isinstance(plain, bool | int | float):
        return plain
    return str(plain.isoformat() if hasattr(plain, "isoformat") else plain)
