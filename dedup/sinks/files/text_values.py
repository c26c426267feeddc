"""Values as Spark's readers of text take them back, column by column."""

from __future__ import annotations

import base64

import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import DataError

#: 0001-01-01 and 10000-01-01, in days since 1970: years of four digits.
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_DAY_US = 86_400_000_000
#: How Java writes what is no number, by how Arrow does.
_NO_NUMBER = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def value_texts(column: pa.Array, name: str) -> pa.Array:
    """Return a column that is not nested as texts; null stays null.

    Parameters
    ----------
    column : pyarrow.Array
    name : str
        For the error.

    Raises
    ------
    DataError
        For a date or time that only a year of other than four digits could tell.
    """
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


def no_numbers(texts: pa.Array) -> pa.Array:
    """Return which of the texts of floating-point numbers are no number."""
    return pc.is_in(texts, value_set=pa.array(_NO_NUMBER.values()))


def _numbers(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.string())
    # A column of whole ones is still to be read as one of floating-point numbers.
    whole = pc.match_substring_regex(texts, r"^-?\d+$")
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return texts
    for text, in_java in _NO_NUMBER.items():
        texts = pc.if_else(pc.equal(texts, text), in_java, texts)
    return texts


def _times(column: pa.Array, name: str) -> pa.Array:
    """Return times with all six digits; such as have a zone, by UTC."""
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
            "Nothing of its micro-batch was published. Mend it in the query, or write Parquet."
        )
