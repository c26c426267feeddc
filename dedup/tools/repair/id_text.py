"""Key bytes of record IDs that a user writes on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from dedup.core.keys import Keys
from dedup.errors import ConfigError
from dedup.spark.id_encoding import encode_ids

#: Text of a null in a composite ID.
NULL = "NULL"
_INTEGERS = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


def id_key(columns: Sequence[tuple[str, str]], texts: Sequence[str]) -> Keys:
    """Return the key of one record ID.

    Parameters
    ----------
    columns : sequence of (str, str)
        Names and Spark types of the ID's columns, from the birth certificate.
    texts : sequence of str
        One per column: text unchanged, integers and decimals in digits, ``true`` or ``false``,
        dates and timestamps in ISO 8601 (by default in UTC), binary in hexadecimal. ``NULL`` is a
        null, except in text columns.

    Raises
    ------
    ConfigError
        If there are too few or too many texts, or one does not fit its column's type.
    """
    if len(texts) != len(columns):
        names = ", ".join(f"{name} {kind}" for name, kind in columns)
        raise ConfigError(
            f"Give one value for each column of the record ID ({names}), not {len(texts)}."
        )
    arrays = []
    for (name, kind), text in zip(columns, texts, strict=True):
        try:
            arrays.append(_array(kind, text))
        except ConfigError:
            raise
        except (ValueError, ArithmeticError, pa.ArrowException) as exc:
            raise ConfigError(
                f"{text!r} is not a value of column {name}, which is {kind}."
            ) from exc
    return encode_ids(arrays).keys


def _array(kind: str, text: str) -> pa.Array:
    if kind == "string" or kind.startswith(("string ", "char", "varchar")):
        return pa.array([text], pa.string())
    null = text == NULL
    if kind in _INTEGERS:
        return pa.array([None if null else int(text)], _INTEGERS[kind])
    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        of = pa.decimal128(int(decimal[1]), int(decimal[2]))
        return pa.array([None if null else Decimal(text)], of)
    if kind == "boolean":
        if not null and text not in ("true", "false"):
            raise ValueError(text)
        return pa.array([None if null else text == "true"], pa.bool_())
    if kind == "binary":
        return pa.array([None if null else bytes.fromhex(text)], pa.binary())
    if kind == "date":
        return pa.array([None if null else date.fromisoformat(text)], pa.date32())
    if kind in ("timestamp", "timestamp_ntz"):
        return pa.array([None if null else _utc(text)], pa.timestamp("us"))
    raise ConfigError(f"IDs of type {kind} cannot be written on a command line yet.")


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return moment.replace(tzinfo=None)
