"""Finds the types that hold all values of JSON, at two speeds.

The *shape* of some values is None if all are null, a dict with the shapes of the fields of objects,
a list with the shape of the elements of arrays, or a set with the names of all types that hold each
of the values exactly. Values that no such type holds are text, with an empty set.

pyarrow reads lines in the types that are known so far, and rejects lines with another field or kind
of value. From some of these lines, which are read one by one, the types become wider, and pyarrow
tries again.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from dedup.kernel.arrays import BOOL, I64
from dedup.sources.files import json_columns
from dedup.sources.files.json_input import JsonFormat, JsonReader, read_lines
from dedup.sources.files.json_lines import Lines
from dedup.sources.files.json_records import JsonRecords
from dedup.sources.files.text_values import Number, Spelling, Unfit, from_json

Shape: TypeAlias = "frozenset[str] | dict[str, Shape] | list[Shape] | None"

TEXT = frozenset[str]()
#: The types of single values, the preferred first.
KINDS = {
    "int": pa.int32(), "bigint": pa.int64(), "decimal(38,0)": pa.decimal128(38, 0),
    "double": pa.float64(), "decimal(38,18)": pa.decimal128(38, 18), "boolean": pa.bool_(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
#: Shapes of numbers of at most `json_columns.DIGITS` digits, and the functions for longer ones.
_FRACTION = frozenset({"double", "decimal(38,18)"})
_WHOLE = _FRACTION | {"bigint", "decimal(38,0)"}
_BOOLEAN = frozenset({"boolean"})
_EXACT = {name: from_json(KINDS[name], Spelling()) for name in _WHOLE - {"double"}}
#: Every text of so many characters with a point is a DECIMAL(38,18).
_MAX_CHARS = 20
#: Every whole number up to this one is a DOUBLE.
_MAX_EXACT = 1 << 53
#: Values with more levels are text, and so are objects with more fields, which may be data.
_MAX_LEVELS, _MAX_FIELDS = 50, 10_000
#: Largest number of fields whose long numbers are searched in each line.
_MAX_SEARCHED = 16
#: Number of lines to read one by one if pyarrow rejects one of them.
_FEW = 16
#: Largest number of values, with nulls, that pyarrow reads at once.
_MAX_VALUES = 1 << 22


def merged(one: Shape, other: Shape) -> Shape:
    """Return the shape of the values of two shapes, of which the first may change."""
    if type(one) is dict and type(other) is dict:
        for name, shape in other.items():
            one[name] = merged(one.get(name), shape)
        return one if len(one) <= _MAX_FIELDS else TEXT
    if type(one) is list and type(other) is list:
        return [merged(one[0], other[0])]
    if type(one) is frozenset and type(other) is frozenset:
        return one & other
    return other if one is None else one if other is None else TEXT


def column_type(shape: Shape, *, is_id: bool = False) -> T.DataType:
    """Return the preferred type of a shape. Nulls, and objects without fields, are text.

    No fraction is an ID, because programs may spell it in several ways.
    """
    if isinstance(shape, dict) and 0 < len(shape) <= _MAX_FIELDS:
        return T.StructType([T.StructField(n, column_type(shape[n])) for n in sorted(shape)])
    if isinstance(shape, list):
        return T.ArrayType(column_type(shape[0]))
    # The spelling of times is behind the names of their types.
    names = {name.partition(" ")[0] for name in shape or ()} - (_FRACTION if is_id else TEXT)
    kind = next((kind for name, kind in KINDS.items() if name in names), pa.string())
    return from_arrow_type(kind)


class _Records(JsonRecords):
    """Reads records for their shape, and makes no rows."""

    shape: Shape = None

    def _row(self, record: Any) -> dict[str, Any]:
        row = super()._row(record)
        self.shape = _with(self.shape, record)
        return row


class JsonTypes(JsonReader):
    """Reads one file for the shape of its good records. Implements `text_input.TextFormat` too."""

    def __init__(self, form: JsonFormat) -> None:
        super().__init__(
            form.columns, form.spelling, line_end=form.line_end, is_whole=form.is_whole
        )
        self.encoding, self.is_divisible = form.encoding, form.is_divisible
        self.spelling = form.spelling
        self._records = self.records = _Records(form.columns, form.spelling)

    def reader(self, begin: bytes, *, is_last: bool) -> tuple[JsonReader, int]:
        return self, 0

    def _by_pyarrow(self, lines: Lines) -> tuple[list[Any], I64]:
        is_regular = lines.are_objects() & lines.are_utf8()
        slow, waiting = [np.flatnonzero(~is_regular)], [np.flatnonzero(is_regular)]
        odd = dict[str, BOOL]()
        while waiting:
            own, kind = waiting.pop(), _read_type(self.records.shape or {})
            most = max(_FEW, _MAX_VALUES // max(1, json_columns.width(kind)))
            doubles = set(json_columns.named(kind, pa.types.is_floating))
            pattern = "|".join(json_columns.long_numbers(doubles)) or "^$"
            if pattern not in odd:
                odd[pattern] = lines.matches(pattern)
                odd[pattern][_exact_doubles(lines, np.flatnonzero(odd[pattern]), doubles)] = False
            is_odd = odd[pattern][own]
            if len(own) <= _FEW:
                slow.append(self._bad(lines, own))
            elif len(own) > most:
                waiting += [own[most:], own[:most]]
            elif is_odd.any():
                slow.append(self._bad(lines, own[is_odd]))
                waiting.append(own[~is_odd])
            else:
                try:
                    seen = _seen(read_lines(lines, own, kind).to_struct_array())
                    self.records.shape = merged(self.records.shape, seen)
                except (pa.ArrowException, ValueError):
                    slow.append(self._bad(lines, own[:_FEW]))
                    rest = own[_FEW:]
                    is_new = _read_type(self.records.shape or {}) != kind
                    middle = 0 if is_new else len(rest) // 2
                    waiting += [rest[middle:], rest[:middle]]
        return [], np.unique(np.concatenate(slow))

    def _bad(self, lines: Lines, own: I64) -> I64:
        """Read lines one by one, and return which of them are bad."""
        *_, bad = self.records.read(lines.texts(own))
        return np.searchsorted(lines.starts, [record.offset for record in bad])


def _exact_doubles(lines: Lines, own: I64, names: set[str]) -> I64:
    """Return the lines in `own` in which all long numbers of these fields have shape `_FRACTION`.

    The result omits lines with an escape, and lines with twice the key of a long number.
    """
    if not 0 < len(names) <= _MAX_SEARCHED:
        return own[:0]
    texts = lines.array().take(pa.array(own))
    *_, escape = json_columns.long_numbers(names)
    exact: BOOL = ~np.asarray(pc.match_substring_regex(texts, escape))
    for name in names:
        long, _ = json_columns.long_numbers({name})
        key = json_columns.key_pattern({name})
        match = pc.extract_regex(texts, rf"{key}(?P<number>-?[0-9]{{1,18}}\.[0-9]{{1,18}})[\s,}}]")
        number = match.flatten()[0].cast(pa.string())
        is_exact = pc.and_(
            pc.equal(number.cast(pa.float64()).cast(pa.string()), number),
            pc.less_equal(pc.binary_length(number), _MAX_CHARS),
        )
        once = pc.and_(is_exact, pc.equal(pc.count_substring_regex(texts, key), 1))
        is_short = pc.invert(pc.match_substring_regex(texts, long))
        exact &= np.asarray(pc.or_(is_short, pc.fill_null(once, False)))
    return own[exact]


def _with(shape: Shape, value: Any, levels: int = _MAX_LEVELS) -> Shape:
    """Return the shape of one more value of JSON. It is faster than `merged`."""
    kind = type(value)
    if kind is dict and levels and (shape is None or type(shape) is dict):
        fields: dict[str, Shape] = {} if shape is None else shape
        for name, one in value.items():
            fields[name] = _with(fields.get(name), one, levels - 1)
        return fields if len(fields) <= _MAX_FIELDS else TEXT
    if kind is list and levels and (shape is None or type(shape) is list):
        inner = None if shape is None else shape[0]
        for one in value:
            inner = _with(inner, one, levels - 1)
        return [inner]
    if value is None:
        return shape
    more = _number(value) if kind is Number else _BOOLEAN if kind is bool else TEXT
    return more if shape is None else shape & more if type(shape) is frozenset else TEXT


def _number(text: str) -> frozenset[str]:
    is_plain = "e" not in text and "E" not in text
    is_whole = is_plain and "." not in text
    if is_plain and len(text) <= json_columns.DIGITS:
        return _WHOLE if is_whole else _FRACTION
    spelled = repr(float(text))  # infinity differs from every number
    if is_plain and len(text) <= _MAX_CHARS and spelled == text:
        return _FRACTION
    names = set()
    for name in _EXACT if is_whole else _EXACT.keys() & _FRACTION:
        with suppress(Unfit):
            _EXACT[name](text)
            names.add(name)
    with suppress(ArithmeticError):  # an exponent of very many digits
        number = Decimal(text)
        if Decimal(spelled) == number and (not is_whole or abs(number) <= _MAX_EXACT):
            names.add("double")
    return frozenset(names)


def _read_type(shape: Shape) -> pa.DataType:
    """Return the type in which pyarrow reads values of a shape."""
    if isinstance(shape, dict):
        return pa.struct([(name, _read_type(inner)) for name, inner in shape.items()])
    if isinstance(shape, list):
        return pa.list_(_read_type(shape[0]))
    if not shape:
        return pa.null() if shape is None else pa.string()
    if "boolean" in shape:
        return pa.bool_()
    return pa.int64() if "decimal(38,0)" in shape else pa.float64()


def _seen(column: pa.Array) -> Shape:
    """Return what the values that pyarrow read add to their shape. Raises ValueError for NaN."""
    is_ = pa.types
    if is_.is_struct(column.type):
        return {inner.name: _seen(column.field(at)) for at, inner in enumerate(column.type)}
    if is_.is_list(column.type):
        return [_seen(column.values)]
    if is_.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is False:
        raise ValueError("JSON has no NaN and no infinity")
    ends = pc.min_max(column).as_py().values() if is_.is_integer(column.type) else ()
    is_exact = all(end is None or abs(end) <= _MAX_EXACT for end in ends)
    return None if is_exact else _WHOLE - {"double"}
