"""Taking decoded JSON apart: what is not as it was written is a ValueError, whatever it is.

A checksum vouches for bytes, not for who wrote them: another release, or a bug, may have put
something else behind a good one.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: Every number that we write fits in an int64, and what is computed from it must too.
_LIMIT = 1 << 62
#: What names a query, a run or a segment: a file of that name stays in its folder.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class OtherVersion(ValueError):
    """What was read is whole, and of a format that this release does not know.

    Parameters
    ----------
    found, newest : int
        Its format, and the newest that this release reads.
    """

    def __init__(self, found: int, newest: int) -> None:
        self.found, self.newest = found, newest
        super().__init__(
            f"it has format {found}, and this release of rolling-dedup reads format {newest}: "
            "install the release that wrote it, or a newer one"
        )


def parse_json(data: bytes) -> Any:
    """Return the value of JSON text; ValueError for any other bytes."""
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_object)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def mapping(value: object, *, needed: frozenset[str], allowed: frozenset[str]) -> dict[str, Any]:
    """Return a JSON object that has all needed fields, and no unknown one."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} stands where an object belongs")
    if missing := sorted(needed - value.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}")
    if unknown := sorted(value.keys() - allowed):
        raise ValueError(f"it has the unknown field {unknown[0]!r:.80}")
    return value


def array(value: object, length: int | None = None) -> list[Any]:
    """Return a JSON array, of a length if one is given."""
    if not isinstance(value, list) or length not in (None, len(value)):
        wanted = "a list" if length is None else f"a list of {length}"
        raise ValueError(f"{value!r:.80} stands where {wanted} belongs")
    return value


def text(value: object) -> str:
    """Return a JSON string."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} stands where text belongs")
    return value


def name(value: object) -> str:
    """Return a JSON string that may name a file or a folder, and is no path."""
    if not NAME.fullmatch(text(value)):
        raise ValueError(f"{value!r:.80} stands where a name belongs, and cannot name a file")
    return text(value)


def path_below(value: object) -> str:
    """Return a JSON string that is a relative path, and stays below the folder it is joined to."""
    if {"", ".", ".."} & set(text(value).split("/")) or "\0" in text(value):
        raise ValueError(f"{value!r:.80} stands where a path below a folder belongs")
    return text(value)


def integer(value: object, low: int = -_LIMIT) -> int:
    """Return a JSON integer that is not below ``low``."""
    if type(value) is not int or not low <= value <= _LIMIT:
        raise ValueError(f"{value!r:.80} stands where a whole number belongs")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _no_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no number that we write")
