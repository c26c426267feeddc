"""Chooses the types in which pyarrow reads the fields of JSON, and converts what it read.

pyarrow may read a column in another type than the wanted one: texts of times and Base64 as text,
DECIMAL as DOUBLE. It also reads fields that no column has, because it does not look into fields
that it skips.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.kernel.arrays import I64
from dedup.sources.files import text_columns
from dedup.sources.files.text_values import Number, Spelling, from_json

#: Any number of at most 15 digits, without an exponent, comes back unchanged from a DOUBLE.
DIGITS = 15
#: Number of digits behind the point that are enough for most numbers.
_SCALE = 6
_NO_ROWS: I64 = np.zeros(0, np.int64)
_PLAIN_NAME = re.compile(r"[\w .:-]+", re.ASCII)
#: Matches names that JSON can spell without escapes.
_UNESCAPED = re.compile(r'[^"\\\x00-\x1f]*')
#: Largest number of levels of a type in which pyarrow reads.
_MAX_LEVELS = 50


def read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which pyarrow reads values of type `kind`.

    Raises TypeError if pyarrow reads them in no type.
    """
    is_ = pa.types
    if is_.is_date(kind) or is_.is_timestamp(kind) or is_.is_binary(kind):
        return pa.string()
    if is_.is_decimal(kind) and kind.scale >= 0:
        return pa.float64()
    if is_.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    if is_.is_struct(kind):
        return pa.struct([(field.name, read_type(field.type)) for field in kind])
    if is_.is_string(kind) or is_.is_integer(kind) or is_.is_floating(kind) or is_.is_boolean(kind):
        return kind
    raise TypeError(f"pyarrow reads no {kind}")


def widened(
    known: pa.DataType, value: Any, kind: pa.DataType | None, levels: int = _MAX_LEVELS
) -> pa.DataType:
    """Return the type `known` with the fields that a value has too.

    `kind` is the wanted type, or None for fields that no column has.
    """
    if levels == 0:
        return known
    if type(value) is dict and (kind is None or pa.types.is_struct(kind)):
        fields = _fields(known)
        wanted = {} if kind is None else _fields(kind)
        for name, one in value.items():
            inner = fields.get(name, pa.null())
            fields[name] = widened(inner, one, wanted.get(name), levels - 1)
        return pa.struct(list(fields.items()))
    if type(value) is list and (kind is None or pa.types.is_list(kind)):
        inner = known.value_type if pa.types.is_list(known) else pa.null()
        for one in value:
            inner = widened(inner, one, kind and kind.value_type, levels - 1)
        return pa.list_(inner)
    if kind is not None or value is None:
        return known
    return {str: pa.string(), Number: pa.float64(), bool: pa.bool_()}[type(value)]


def width(kind: pa.DataType) -> int:
    """Return the number of fields of a type, at all levels."""
    if pa.types.is_list(kind):
        return width(kind.value_type)
    return sum(1 + width(inner) for inner in _fields(kind).values())


def named(kind: pa.DataType, test: Callable[[pa.DataType], bool], name: str = "") -> Iterator[str]:
    """Yield the names of the fields whose type, or whose elements' type, passes a test."""
    if pa.types.is_list(kind):
        yield from named(kind.value_type, test, name)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from named(field.type, test, field.name)
    elif test(kind):
        yield name


def converted(column: pa.Array, kind: pa.DataType, spelling: Spelling) -> tuple[pa.Array, I64]:
    """Return a column that pyarrow read as type `kind`, and the rows that may have other values."""
    is_ = pa.types
    if is_.is_struct(kind):
        return _struct(column, kind, spelling)
    if is_.is_list(kind):
        return _list(column, kind, spelling)
    if is_.is_floating(kind):
        return column, np.flatnonzero(~np.isfinite(column.fill_null(0).to_numpy()))
    if is_.is_decimal(kind):
        return _decimals(column, kind)
    if is_.is_date(kind) or is_.is_timestamp(kind):
        exact = from_json(kind, spelling)
        values, rows = text_columns.converted(column, kind, exact, spelling)
        return values, np.array(rows, np.int64)
    if is_.is_binary(kind):
        return text_columns.one_by_one(column, kind, from_json(kind, spelling))
    return column, _NO_ROWS


def _struct(
    column: pa.StructArray, kind: pa.StructType, spelling: Spelling
) -> tuple[pa.Array, I64]:
    fields, by_name, odd = {field.name: field for field in kind}, {}, [_NO_ROWS]
    for read in column.type:
        field = fields.get(read.name, read)
        inner, rows = converted(column.field(read.name), field.type, spelling)
        odd.append(rows)
        if not field.nullable and inner.null_count:
            absent = pc.and_(inner.is_null(), column.is_valid())
            odd.append(np.flatnonzero(absent.to_numpy(zero_copy_only=False)))
        by_name[read.name] = inner
    array = pa.StructArray.from_arrays(
        [by_name[field.name] for field in kind],
        fields=list(kind),
        mask=column.is_null() if column.null_count else None,
    )
    return array, np.unique(np.concatenate(odd))


def _list(column: pa.ListArray, kind: pa.ListType, spelling: Spelling) -> tuple[pa.Array, I64]:
    inner, elements = converted(column.values, kind.value_type, spelling)
    if not kind.value_field.nullable:
        nulls = np.flatnonzero(inner.is_null().to_numpy(zero_copy_only=False))
        elements = np.concatenate([elements, nulls])
    rows = np.searchsorted(column.offsets.to_numpy(), elements, side="right") - 1
    array = pa.Array.from_buffers(kind, len(column), column.buffers()[:2], children=[inner])
    return array, np.unique(rows)


def _decimals(column: pa.DoubleArray, kind: pa.Decimal128Type) -> tuple[pa.Array, I64]:
    """Convert numbers of at most `DIGITS` digits and without an exponent."""
    numbers = column.fill_null(0).to_numpy()
    whole_digits = kind.precision - kind.scale
    scale = min(kind.scale, max(_SCALE, DIGITS - whole_digits))
    units = np.rint(np.where(np.isfinite(numbers), numbers, 0) * 10.0**scale)
    # Dividend and divisor are exact, so the quotient is the DOUBLE that is nearest to the decimal.
    is_good = units / 10.0**scale == numbers
    is_good &= np.abs(units) < 10.0 ** min(DIGITS, whole_digits + scale)
    words = np.zeros((len(numbers), 2), np.int64)
    words[:, 0] = np.where(is_good, units, 0)
    words[:, 1] = words[:, 0] >> 63
    short = pa.decimal128(DIGITS, scale)
    decimals = pa.Array.from_buffers(short, len(numbers), [None, pa.py_buffer(words)]).cast(kind)
    if column.null_count:
        decimals = pc.if_else(column.is_valid(), decimals, pa.scalar(None, kind))
    return decimals, np.flatnonzero(~is_good)


def long_numbers(names: set[str]) -> list[str]:
    """Return patterns of all records in which these fields have an exponent, or too many digits."""
    if not names:
        return []
    # A key may be spelled with escapes.
    escape = r"\\u00[2-7]" if all(map(_PLAIN_NAME.fullmatch, names)) else r"\\"
    return [rf"{_numbers(names)}(?:[eE]|[0-9.]{{{DIGITS + 1}}})", escape]


def odd_integers(kind: pa.DataType) -> list[str]:
    """Return patterns of most records in which a whole number has a point or an exponent."""
    names = set(named(kind, pa.types.is_integer))
    return [rf"{_numbers(names)}[.eE]"] if names else []


def key_pattern(names: Iterable[str]) -> str:
    """Return a pattern of a key that is spelled without escapes."""
    plain = (re.escape(name) for name in sorted(names) if _UNESCAPED.fullmatch(name))
    return rf'"(?:{"|".join(plain)})"\s*:\s*'


def _numbers(names: Iterable[str]) -> str:
    """Return a pattern of a key and the begin of its value, a number or numbers in an array."""
    return rf"{key_pattern(names)}[][\s,0-9.+eEnul-]*"


def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
