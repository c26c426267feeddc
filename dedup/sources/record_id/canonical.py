"""Writes a record's values as canonical text, and hashes the text to a record ID.

README.md defines the text of each type byte by byte. Every text shows where it ends. So two
different values of a column, or two different rows, never have the same text.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from dedup.errors import ConfigError

#: Version of the canonical texts. A release that changes a text must raise the version.
VERSION = 1
ID_BYTES = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def of_values(*values: Any) -> bytes | None:
    """Return the same record ID of 16 bytes for values as `from_columns` for columns.

    Producers and tests can use this function without Spark.

    Parameters
    ----------
    *values
        The values of the columns, in the order of the columns. A value is None, bool, int,
        `decimal.Decimal`, float, str, bytes, `datetime.date` or `datetime.datetime`. A list stands
        for an array, a tuple for a struct, a datetime without a zone for ``timestamp_ntz``.

    Returns
    -------
    bytes or None
        None if every value is None.

    Raises
    ------
    ConfigError
        If no value is given, or a value has another type.

    Examples
    --------
    >>> from dedup import record_id
    >>> record_id.of_values("order-7", 12, None).hex()
    '7b7a6a3f79d234b6a9cf3447daf5984e'
    """
    if not values:
        raise ConfigError("of_values() needs at least one value.")
    if all(value is None for value in values):
        return None
    return hashlib.sha256(text_of(*values).encode()).digest()[:ID_BYTES]


def text_of(*values: Any) -> str:
    return "".join(map(_text, values))


def _text(value: Any) -> str:
    if value is None:
        return "N"
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, str):
        return f"s{len(value.encode())}:{value}"
    if isinstance(value, list):
        return f"a{len(value)}:{text_of(*value)}"
    if isinstance(value, tuple):
        return f"({text_of(*value)})"
    return _ended(value) + ";"


def _ended(value: Any) -> str:
    if isinstance(value, int):
        return f"n{value}"
    if isinstance(value, Decimal) and value.is_finite():
        return f"n{_plain(value)}"
    if isinstance(value, float):
        return f"f{_hexadecimal(value)}"
    if isinstance(value, (bytes, bytearray)):
        return f"b{value.hex().upper()}"
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return f"t{(value - _EPOCH) // timedelta(microseconds=1)}"
        return f"l{_without_zeros(value.isoformat(' '))}"
    if isinstance(value, date):
        return f"d{value.isoformat()}"
    raise ConfigError(f"{value!r} is a {type(value).__name__}, which a record ID cannot include.")


def _plain(value: Decimal) -> str:
    text = _without_zeros(format(value, "f"))
    return "0" if text == "-0" else text


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _hexadecimal(value: float) -> str:
    """Return a number as Java's ``%a`` prints it, except that zero never has a sign."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    mantissa, _, exponent = (value + 0.0).hex().partition("p")
    whole, _, fraction = mantissa.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}p{int(exponent)}"
