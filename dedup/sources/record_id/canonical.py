"""The canonical text of a record's values, and the ID that is its hash.

README.md defines the text of each type byte by byte. Every text shows where it ends. So different
values of a column, and different rows of the same columns, have different texts.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from dedup.errors import ConfigError

#: Version of the texts. A release that changes a text must raise the version.
VERSION = 1
ID_BYTES = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def of_values(*values: Any) -> bytes | None:
    """Return the record ID of values, 16 bytes, as `from_columns` derives it from columns.

    For producers and tests: it does not need Spark.

    Parameters
    ----------
    *values
        One for each column, in the same order: None, bool, int, `decimal.Decimal`, float, str,
        bytes, `datetime.date`, `datetime.datetime` (without a zone: Spark's ``timestamp_ntz``), a
        list for an array, a tuple for a struct.

    Returns
    -------
    bytes or None
        None if every value is None.

    Raises
    ------
    ConfigError
        If no value is given, or one has another type.

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
    """Return the concatenated canonical texts of values."""
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
    """Return a number in the spelling of Java's ``%a``, but zero without a sign."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    mantissa, _, exponent = (value + 0.0).hex().partition("p")
    whole, _, fraction = mantissa.partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}p{int(exponent)}"
