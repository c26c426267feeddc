"""Convert a record ID that a user writes on a command line to key bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.core.keys import Keys
from dedup.errors import ConfigError
from dedup.spark.id_encoding import encode_ids

#: Text of a null in a composite ID.
NULL = "NULL"
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return moment.replace(tzinfo=None)


#: Arrow type of each Spark type, and the function that reads its text.
_TYPES: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "tinyint": (pa.int8(), int),
    "smallint": (pa.int16(), int),
    "int": (pa.int32(), int),
    "bigint": (pa.int64(), int),
    "boolean": (pa.bool_(), {"true": True, "false": False}.__getitem__),
    "binary": (pa.binary(), bytes.fromhex),
    "date": (pa.date32(), date.fromisoformat),
    "timestamp": (pa.timestamp("us"), _utc),
    "timestamp_ntz": (pa.timestamp("us"), _utc),
}


def id_key(columns: Sequence[tuple[str, str]], texts: Sequence[str]) -> Keys:
    """Return the key of one record ID.

    `columns` holds the name and the Spark type of every ID column, from the birth certificate.
    `texts` holds a text for every column. The text of a string is the string. Write integers and
    decimals in digits, booleans as ``true`` or ``false``, dates and timestamps in ISO 8601 (by
    default in UTC), and binary values in hexadecimal. ``NULL`` is a null, except in string
    columns.

    Raises ConfigError if a text does not fit its column.
    """
    if len(texts) != len(columns):
        names = ", ".join(f"{name} {kind}" for name, kind in columns)
        raise ConfigError(
            f"Give one value for each column of the record ID ({names}), not {len(texts)}."
        )
    arrays = []
    for (name, kind), text in zip(columns, texts, strict=True):
        of, parse = _type_of(kind)
        is_null = text == NULL and of != pa.string()
        try:
            arrays.append(pa.array([None if is_null else parse(text)], of))
        except (ValueError, LookupError, ArithmeticError, pa.ArrowException) as exc:
            raise ConfigError(
                f"{text!r} is not a value of column {name}, which is {kind}."
            ) from exc
    return encode_ids(arrays).keys


def id_keys(columns: Sequence[tuple[str, str]], file: Path) -> Iterator[bytes]:
    """Yield the key of each record ID in a file, one a line.

    An ID of several columns is a JSON array of texts. Raises ConfigError, which names the line, if
    a line does not fit the columns.
    """
    try:
        lines = file.read_text("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"Cannot read {file}: {exc}.") from exc
    for number, line in enumerate(lines, 1):
        try:
            if not line:
                raise ConfigError("it is empty.")
            texts = [line] if len(columns) == 1 else json.loads(line)
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ConfigError("an ID of several columns is a JSON array of texts.")
            yield id_key(columns, texts)[0]
        except ValueError as exc:
            raise ConfigError(f"{file}, line {number}: {exc}") from exc


def _type_of(kind: str) -> tuple[pa.DataType, Callable[[str], Any]]:
    if kind == "string" or kind.startswith(("string ", "char", "varchar")):
        return pa.string(), str
    if decimal := _DECIMAL.fullmatch(kind):
        return pa.decimal128(int(decimal[1]), int(decimal[2])), Decimal
    if kind not in _TYPES:
        raise ConfigError(f"IDs of type {kind} cannot be written on a command line yet.")
    return _TYPES[kind]
