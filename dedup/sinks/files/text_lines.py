r"""Write rows as lines of JSON or CSV that Spark's readers read back without loss.

JSON lines leave out null fields of a row or a structure. Nulls in lists and maps are ``null``. NaN,
infinity and binary values (in Base64) are texts.

CSV lines are in Spark's dialect. Null is an empty field, and an empty text is ``""``. In a file of
one column null is ``""`` too, because readers skip empty lines. A text is in quotes if it contains
a comma, a quote, a backslash or a line end, or has a blank at either end. In quotes a ``\``
precedes each quote and each ``\``.

In both formats times have six digits after the second. Spark's own writer keeps only three.
"""

from __future__ import annotations

import base64
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import DataError
from dedup.sinks.utf8 import check_utf8

_TO_QUOTE_IN_CSV = r'[",\n\r\\]|^\s|\s$|^$'
_TO_ESCAPE_IN_JSON = r'["\\\x00-\x1f]'
#: 0001-01-01 and 10000-01-01 in days since 1970. Years between them have at most four digits.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_DAY_US = 86_400_000_000
#: Java's spelling of NaN and infinity, keyed by Arrow's spelling.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def csv_head(columns: pa.Schema) -> bytes:
    return _csv([pa.array([name]) for name in columns.names])


def csv_lines(rows: pa.RecordBatch) -> bytes:
    """Return a CSV line for each row. Raises DataError for a year before 1 or after 9999."""
    named = zip(rows.schema.names, rows.columns, strict=True)
    return _csv([_texts(column, name) for name, column in named])


def json_lines(rows: pa.RecordBatch) -> bytes:
    """Return a JSON line for each row.

    Raises DataError for a year before 1 or after 9999. Raises UnicodeDecodeError for a text that is
    not UTF-8, because readers would drop the whole line.
    """
    check_utf8(rows)
    if not rows.num_columns:
        return b"{}\n" * int(rows.num_rows)
    fields = [
        _field(name, _json(column, name))
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return _bytes(pc.binary_join_element_wise(_object(fields), "\n", ""))


def _csv(columns: list[pa.Array]) -> bytes:
    null = "" if len(columns) > 1 else '""'
    lines = pc.binary_join_element_wise(*(_cells(c).fill_null(null) for c in columns), ",")
    return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


def _cells(texts: pa.Array) -> pa.Array:
    found = pc.match_substring_regex(texts, _TO_QUOTE_IN_CSV).fill_null(False)
    if not pc.any(found, min_count=0).as_py():
        return texts
    inner = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.if_else(found, _quoted(inner), texts)


def _bytes(lines: pa.Array) -> bytes:
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset :][: len(lines) + 1]
    data = lines.buffers()[2]
    return b"" if data is None else bytes(memoryview(data)[offsets[0] : offsets[-1]])


def _object(fields: list[pa.Array]) -> pa.Array:
    # pyarrow returns null for rows that are null in every argument, so the first argument is "{".
    begun = pa.repeat(pa.scalar("{"), len(fields[0]))
    texts = pc.binary_join_element_wise(begun, *fields, ",", null_handling="skip")
    texts = pc.replace_substring(texts, "{,", "{", max_replacements=1)
    return pc.binary_join_element_wise(texts, "}", "")


def _field(name: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False) + ":", values, "")


def _json(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_map(kind):
        column = _compact(column)
        keys = _quoted(_escaped(_texts(column.keys, name)))
        entries = pc.binary_join_element_wise(
            keys, ":", _json(column.items, name).fill_null("null"), ""
        )
        return _joined(column, entries, "{", "}")
    if pa.types.is_list(kind):
        column = _compact(column)
        return _joined(column, _json(column.values, name).fill_null("null"), "[", "]")
    if pa.types.is_struct(kind):
        inner = [
            _field(field.name, _json(values, f"{name}.{field.name}"))
            for field, values in zip(kind, column.flatten(), strict=True)
        ]
        return pc.if_else(column.is_valid(), _object(inner), pa.scalar(None, pa.string()))
    texts = _texts(column, name)
    if pa.types.is_string(kind):
        return _quoted(_escaped(texts))
    if pa.types.is_floating(kind):
        not_finite = pc.is_in(texts, value_set=pa.array(_NOT_FINITE.values()))
        return pc.if_else(not_finite, _quoted(texts), texts)
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return _quoted(texts)
    return texts


def _compact(column: pa.Array) -> pa.Array:
    """Return the same lists, rebuilt so that Arrow stores no values outside of them."""
    return column.take(pa.array(np.arange(len(column))))


def _joined(column: pa.Array, values: pa.Array, begin: str, end: str) -> pa.Array:
    lists = pa.ListArray.from_arrays(column.offsets, values)
    joined = pc.binary_join_element_wise(begin, pc.binary_join(lists, ","), end, "")
    return pc.if_else(column.is_valid(), joined, pa.scalar(None, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.Array) -> pa.Array:
    found = pc.match_substring_regex(texts, _TO_ESCAPE_IN_JSON).fill_null(False)
    which = texts.filter(found).to_pylist()
    if not which:
        return texts
    escaped = pa.array([json.dumps(text, ensure_ascii=False)[1:-1] for text in which], pa.string())
    return pc.replace_with_mask(texts, found, escaped)


def _texts(column: pa.Array, name: str) -> pa.Array:
    """Convert the values of a column to texts. The column is not nested, and null stays null."""
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_floating(kind):
        return _numbers(column)
    if pa.types.is_date(kind):
        _check_years(column.view(pa.int32()), 1, name)
    if pa.types.is_timestamp(kind):
        return _times(column, name)
    if pa.types.is_binary(kind):
        return pa.array(
            [None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()],
            pa.string(),
        )
    return column.cast(pa.string())


def _numbers(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.string())
    # Add a fraction to whole numbers, so that readers infer a floating-point column.
    whole = pc.match_substring_regex(texts, r"^-?\d+$")
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return texts
    for text, in_java in _NOT_FINITE.items():
        texts = pc.if_else(pc.equal(texts, text), in_java, texts)
    return texts


def _times(column: pa.Array, name: str) -> pa.Array:
    """Return times as texts with six digits after the second, in UTC if they have a zone."""
    numbers = column.view(pa.int64())
    _check_years(numbers, _DAY_US, name)
    texts = pc.replace_substring(numbers.view(pa.timestamp("us")).cast(pa.string()), " ", "T")
    return texts if column.type.tz is None else pc.binary_join_element_wise(texts, "Z", "")


def _check_years(numbers: pa.Array, per_day: int, name: str) -> None:
    if len(numbers) == numbers.null_count:
        return
    found = pc.min_max(numbers).as_py()
    if found["min"] < _FIRST_DAY * per_day or found["max"] >= _END_DAY * per_day:
        at = found["min"] if found["min"] < 0 else found["max"]
        raise DataError(
            f"Column {name!r} has a date or time outside the years 1 to 9999 "
            f"({at // per_day:,} days from 1970-01-01), which readers of JSON and CSV do not take. "
            "Nothing of its micro-batch was published. Correct it in the query, or write Parquet."
        )
