r"""Rows as lines of CSV, in the dialect of Spark's writer.

Null is nothing, an empty text is ``""``; what has a comma, a quote, a backslash, a line's end, or
a blank at either end is in quotes, in which ``\`` comes before a quote and before itself. In a file
of one column null is ``""`` too, because readers pass over empty lines.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dedup.sinks.files.text_values import value_texts

_TO_QUOTE = r'[",\n\r\\]|^\s|\s$|^$'


def csv_head(columns: pa.Schema) -> bytes:
    """Return the line of the columns' names."""
    return _lines([pa.array([name]) for name in columns.names])


def csv_lines(rows: pa.RecordBatch) -> bytes:
    """Return a line for each row.

    Raises
    ------
    DataError
        As `dedup.sinks.files.text_values.value_texts`.
    """
    named = zip(rows.schema.names, rows.columns, strict=True)
    return _lines([value_texts(column, name) for name, column in named])


def _lines(columns: list[pa.Array]) -> bytes:
    nothing = "" if len(columns) > 1 else '""'
    cells = [_quoted(column).fill_null(nothing) for column in columns]
    lines = pc.binary_join_element_wise(*cells, ",")
    return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


def _quoted(texts: pa.Array) -> pa.Array:
    found = pc.match_substring_regex(texts, _TO_QUOTE).fill_null(False)
    if not pc.any(found, min_count=0).as_py():
        return texts
    inner = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.if_else(found, pc.binary_join_element_wise('"', inner, '"', ""), texts)
