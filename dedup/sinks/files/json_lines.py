"""Rows as lines of JSON, with the meaning that they have where Spark writes them.

Null fields of a row or a structure are left out, nulls in lists and maps are ``null``, what is no
number is a text, and binary values are Base64. Times keep their six digits, of which Spark's
writer keeps three.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.sinks.files.text_values import no_numbers, value_texts
from dedup.sinks.utf8 import check_utf8

_TO_ESCAPE = r'["\\\x00-\x1f]'


def json_lines(rows: pa.RecordBatch) -> bytes:
    """Return a line for each row.

    Raises
    ------
    DataError
        As `dedup.sinks.files.text_values.value_texts`.
    UnicodeDecodeError
        For a text that is not UTF-8: a reader takes nothing of a line that has one.
    """
    check_utf8(rows)
    if not rows.num_columns:
        return b"{}\n" * int(rows.num_rows)
    fields = [
        _field(name, _values(column, name))
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return _bytes(pc.binary_join_element_wise(_object(fields), "\n", ""))


def _bytes(lines: pa.Array) -> bytes:
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset :][: len(lines) + 1]
    data = lines.buffers()[2]
    return b"" if data is None else bytes(memoryview(data)[offsets[0] : offsets[-1]])


def _object(fields: list[pa.Array]) -> pa.Array:
    # Of rows that are null in every argument pyarrow returns nothing, so there is a first one.
    begun = pa.repeat(pa.scalar("{"), len(fields[0]))
    texts = pc.binary_join_element_wise(begun, *fields, ",", null_handling="skip")
    texts = pc.replace_substring(texts, "{,", "{", max_replacements=1)
    return pc.binary_join_element_wise(texts, "}", "")


def _field(name: str, values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(json.dumps(name, ensure_ascii=False) + ":", values, "")


def _values(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_map(kind):
        column = _compact(column)
        keys = _quoted(_escaped(value_texts(column.keys, name)))
        entries = pc.binary_join_element_wise(
            keys, ":", _values(column.items, name).fill_null("null"), ""
        )
        return _joined(column, entries, "{", "}")
    if pa.types.is_list(kind):
        column = _compact(column)
        return _joined(column, _values(column.values, name).fill_null("null"), "[", "]")
    if pa.types.is_struct(kind):
        inner = [
            _field(field.name, _values(values, f"{name}.{field.name}"))
            for field, values in zip(kind, column.flatten(), strict=True)
        ]
        return pc.if_else(column.is_valid(), _object(inner), pa.scalar(None, pa.string()))
    texts = value_texts(column, name)
    if pa.types.is_string(kind):
        return _quoted(_escaped(texts))
    if pa.types.is_floating(kind):
        return pc.if_else(no_numbers(texts), _quoted(texts), texts)
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return _quoted(texts)
    return texts


def _compact(column: pa.Array) -> pa.Array:
    """Return lists whose values are theirs alone: those of a slice, or below a null, go."""
    return column.take(pa.array(np.arange(len(column))))


def _joined(column: pa.Array, values: pa.Array, begin: str, end: str) -> pa.Array:
    lists = pa.ListArray.from_arrays(column.offsets, values)
    joined = pc.binary_join_element_wise(begin, pc.binary_join(lists, ","), end, "")
    return pc.if_else(column.is_valid(), joined, pa.scalar(None, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.Array) -> pa.Array:
    found = pc.match_substring_regex(texts, _TO_ESCAPE).fill_null(False)
    which = texts.filter(found).to_pylist()
    if not which:
        return texts
    mended = pa.array([json.dumps(text, ensure_ascii=False)[1:-1] for text in which], pa.string())
    return pc.replace_with_mask(texts, found, mended)
