"""Check decoded JSON, and raise ValueError for every unexpected value.

A correct checksum does not make data valid. Another release, or a defect, may have written
unexpected values with a correct checksum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

#: Function that converts a JSON value to the engine's form, or raises ValueError.
Parser: TypeAlias = Callable[[Any], Any]
#: Bound of the numbers that we write. Their sums and differences fit in an int64.
_LIMIT = 1 << 62
#: Pattern of the name of a query, a run or a segment. No matching name is a path, so a file of that
#: name cannot leave its folder.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class OtherVersion(ValueError):
    """The data is intact, but this release does not know its format.

    `found` is the format of the data. `newest` is the newest format that this release reads.
    """

    def __init__(self, found: int, newest: int) -> None:
        self.found, self.newest = found, newest
        super().__init__(
            f"it has format {found}, and this release of rolling-dedup reads format {newest}; "
            "install the release that wrote it, or a newer one"
        )


def parse_json(data: bytes) -> Any:
    """Return the value of JSON text, or raise ValueError for any other bytes."""
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def mapping(value: object, *, needed: frozenset[str], allowed: frozenset[str]) -> dict[str, Any]:
    """Return ``value`` if it is a JSON object with all needed and only allowed fields."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is not an object")
    if missing := sorted(needed - value.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}")
    if unknown := sorted(value.keys() - allowed):
        raise ValueError(f"it has the unknown field {unknown[0]!r:.80}")
    return value


def record(
    value: object, parsers: Mapping[str, Parser], optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return the parsed fields of a JSON object, which must have no field without a parser."""
    fields = mapping(
        value, needed=frozenset(parsers).difference(optional), allowed=frozenset(parsers)
    )
    return {name: parse(fields[name]) for name, parse in parsers.items() if name in fields}


def tuple_of(parse: Parser) -> Parser:
    """Return the parser of an array of any length, whose items ``parse`` reads."""
    return lambda value: tuple(map(parse, array(value)))


def row(*parsers: Parser) -> Parser:
    """Return the parser of an array that has one item for each of these parsers, in order."""

    def parse(value: object) -> tuple[Any, ...]:
        values = array(value, len(parsers))
        return tuple(parser(each) for parser, each in zip(parsers, values, strict=True))

    return parse


def array(value: object, length: int | None = None) -> list[Any]:
    """Return ``value`` if it is a JSON array, with ``length`` items unless ``length`` is None."""
    if not isinstance(value, list) or length not in (None, len(value)):
        wanted = "a list" if length is None else f"a list of {length}"
        raise ValueError(f"{value!r:.80} is not {wanted}")
    return value


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is not text")
    return value


def name(value: object) -> str:
    """Return ``value`` if it is a name of a file or folder that matches `NAME`."""
    if not NAME.fullmatch(text(value)):
        raise ValueError(f"{value!r:.80} is not a name that a file can have")
    return text(value)


def path_below(value: object) -> str:
    """Return ``value`` if it is a relative path that cannot leave the folder it is joined to."""
    if {"", ".", ".."} & set(text(value).split("/")) or "\0" in text(value):
        raise ValueError(f"{value!r:.80} is not a path below a folder")
    return text(value)


def integer(value: object, low: int = -_LIMIT) -> int:
    """Return ``value`` if it is an integer from ``low`` to 2**62."""
    if type(value) is not int or not low <= value <= _LIMIT:
        raise ValueError(f"{value!r:.80} is not an integer in range")
    return value


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.80} is neither true nor false")
    return value


def count(value: object) -> int:
    """Return ``value`` if it is an integer from 0 to 2**62."""
    return integer(value, 0)


def hash_key_id(value: object) -> int:
    """Return the 64-bit number whose 16 hexadecimal digits ``value`` has."""
    number = int(text(value), 16)
    if value != f"{number:016x}":
        raise ValueError(f"{value!r:.80} is not the ID of a hash key")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _no_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number that we write")
