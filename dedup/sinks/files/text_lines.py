r"""Write rows as lines of JSON or CSV, in UTF-8, that readers read back without loss.

In JSON, NaN, infinity and binary values (in Base64) are texts. Nulls in lists and maps are
``null``. The dialect decides whether other nulls are written.

In CSV, null is an empty field, and an empty text is ``""``. In a file of one column null is ``""``
too, because readers skip empty lines. A text is in quotes if it contains the separator, a quote or
a line end, or begins the line with ``#``. In quotes the escape precedes each quote and each escape.

In both formats times have six digits after the second. Spark's own writer keeps only three.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import DataError
from dedup.sinks.utf8 import check_utf8

_TO_ESCAPE_IN_JSON = bytes([*range(32), *b'"\\'])
#: 0001-01-01 and 10000-01-01 in days since 1970. Years between them have at most four digits.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_DAY_US = 86_400_000_000
#: Java's spelling of NaN and infinity, keyed by Arrow's spelling.
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How lines are written. Spark's readers need no options for the default dialect.

    With `header`, a CSV file begins with the names of its columns. Texts in which the regular
    expression `also_quoted` matches are in quotes too. An empty `escape` stands for the quote. If
    `quote` is empty, CSV cannot hold texts that need quotes. With `null_fields`, a line of JSON
    also has the fields that are null.
    """

    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = "\\"
    also_quoted: str = r"\\|^\s|\s$"
    null_fields: bool = False

    @property
    def to_quote(self) -> str:
        """Regular expression that matches in texts that need quotes."""
        # With the separator "||", a text that ends in "|" would move the separator.
        marks = map(re.escape, (self.separator[0], self.quote))
        return "|".join(filter(None, (r"[\n\r]|^$", *marks, self.also_quoted)))


def csv_head(columns: pa.Schema, dialect: Dialect) -> bytes:
    if not dialect.header:
        return b""
    return _csv([(name, pa.array([name])) for name in columns.names], dialect)


def csv_lines(rows: pa.RecordBatch, dialect: Dialect) -> bytes:
    """Return a CSV line for each row.

    Raises DataError for a year before 1 or after 9999, and for a text that needs quotes if the
    dialect has none. Raises UnicodeDecodeError for a text that is not UTF-8.
    """
    check_utf8(rows)
    named = zip(rows.schema.names, rows.columns, strict=True)
    return _csv([(name, texts_of(column, name)) for name, column in named], dialect)


def json_lines(rows: pa.RecordBatch, dialect: Dialect) -> bytes:
    """Return a JSON line for each row.

    Raises DataError for a year before 1 or after 9999. Raises UnicodeDecodeError for a text that is
    not UTF-8, because readers would drop the whole line.
    """
    check_utf8(rows)
    if not rows.num_columns:
        return b"{}\n" * int(rows.num_rows)
    named = zip(rows.schema.names, rows.columns, strict=True)
    return _bytes(_object({n: _json(column, n, dialect) for n, column in named}, dialect, "}\n"))


def _csv(columns: list[tuple[str, pa.Array]], dialect: Dialect) -> bytes:
    null = "" if len(columns) > 1 else 2 * (dialect.quote or '"')
    line: list[pa.Array | str] = []
    for name, texts in columns:
        # Readers may skip a line that begins with "#", because they take it for a comment.
        pattern = dialect.to_quote if line or not dialect.quote else f"^#|{dialect.to_quote}"
        marks = f"\n\r#{dialect.separator}{dialect.quote}".encode()
        shortest = pc.min(pc.binary_length(texts)).as_py()
        if dialect.also_quoted or shortest == 0 or _has(texts, marks):
            mask = pc.match_substring_regex(texts, pattern).fill_null(False)
            texts = pc.replace_with_mask(texts, mask, _cells(texts.filter(mask), name, dialect))
        line += [texts.fill_null(null), dialect.separator]
    return _bytes(_joined(*line[:-1], "\n"))


def _cells(texts: pa.Array, name: str, dialect: Dialect) -> pa.Array:
    quote, escape = dialect.quote, dialect.escape or dialect.quote
    if quote:
        for mark in dict.fromkeys((escape, quote)):
            texts = pc.replace_substring(texts, mark, escape + mark)
        return _joined(quote, texts, quote)
    for text in texts.unique().to_pylist():
        if text:
            raise DataError(
                f"Column {name!r} has a text with a separator or a line end, which CSV without "
                f"quotes cannot hold: {text[:60]!r}. Nothing of its micro-batch was published. "
                "Write JSON or Parquet into a new output."
            )
    return pa.repeat('""', len(texts))


def _bytes(lines: pa.Array) -> bytes:
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset :][: len(lines) + 1]
    data = lines.buffers()[2]
    return b"" if data is None else bytes(memoryview(data)[offsets[0] : offsets[-1]])


def _has(texts: pa.Array, marks: bytes) -> bool:
    """Return whether texts contain one of some bytes, faster than a regular expression does."""
    data = _bytes(texts)
    return len(data.translate(None, marks)) < len(data)


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _object(fields: dict[str, pa.Array], dialect: Dialect, end: str = "}") -> pa.Array:
    named = [(json.dumps(n, ensure_ascii=False) + ":", values) for n, values in fields.items()]
    if dialect.null_fields:
        cells = [part for name, values in named for part in (f",{name}", values.fill_null("null"))]
        return _joined("{" + cells[0][1:], *cells[1:], end)
    # pyarrow returns null for rows that are null in every argument, so the first argument is "{".
    begun = pa.repeat(pa.scalar("{"), len(named[0][1]))
    inner = (_joined(name, values) for name, values in named)
    texts = pc.binary_join_element_wise(begun, *inner, ",", null_handling="skip")
    return _joined(pc.replace_substring(texts, "{,", "{", max_replacements=1), end)


def _json(column: pa.Array, name: str, dialect: Dialect) -> pa.Array:
    kind = column.type
    if pa.types.is_map(kind):
        column = _compact(column)
        keys = _quoted(_escaped(texts_of(column.keys, name)))
        values = _json(column.items, name, dialect).fill_null("null")
        return _list(column, _joined(keys, ":", values), "{", "}")
    if pa.types.is_list(kind):
        column = _compact(column)
        return _list(column, _json(column.values, name, dialect).fill_null("null"), "[", "]")
    if pa.types.is_struct(kind):
        inner = {
            field.name: _json(values, f"{name}.{field.name}", dialect)
            for field, values in zip(kind, column.flatten(), strict=True)
        }
        return pc.if_else(column.is_valid(), _object(inner, dialect), pa.scalar(None, pa.string()))
    texts = texts_of(column, name)
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


def _list(column: pa.Array, values: pa.Array, begin: str, end: str) -> pa.Array:
    lists = pa.ListArray.from_arrays(column.offsets, values)
    joined = _joined(begin, pc.binary_join(lists, ","), end)
    return pc.if_else(column.is_valid(), joined, pa.scalar(None, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    return _joined('"', texts, '"')


def _escaped(texts: pa.Array) -> pa.Array:
    if not _has(texts, _TO_ESCAPE_IN_JSON):
        return texts
    mask = pc.match_substring_regex(texts, r'["\\\x00-\x1f]').fill_null(False)
    escaped = [json.dumps(t, ensure_ascii=False)[1:-1] for t in texts.filter(mask).to_pylist()]
    return pc.replace_with_mask(texts, mask, pa.array(escaped, pa.string()))


def texts_of(column: pa.Array, name: str) -> pa.Array:
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
    texts = pc.if_else(whole, _joined(texts, ".0"), texts)
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
    return texts if column.type.tz is None else _joined(texts, "Z")


def _check_years(numbers: pa.Array, per_day: int, name: str) -> None:
    if len(numbers) == numbers.null_count:
        return
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] < _FIRST_DAY * per_day or extremes["max"] >= _END_DAY * per_day:
        at = extremes["min"] if extremes["min"] < 0 else extremes["max"]
        raise DataError(
            f"Column {name!r} has a date or time outside the years 1 to 9999 "
            f"({at // per_day:,} days from 1970-01-01), which readers of JSON and CSV do not take. "
            "Nothing of its micro-batch was published. Correct it before, or write Parquet."
        )
