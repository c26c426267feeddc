"""The envelope of every JSON object at the catalog root: a format number and a checksum.

An object is canonical JSON (UTF-8, keys sorted, no spaces, non-ASCII characters escaped) of its
fields, ``format`` and ``checksum``. The checksum is BLAKE2b-128 of the canonical JSON of all other
fields. Every future format keeps the envelope, so that a reader can distinguish another release's
object from a damaged one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from dedup.core.parse import OtherVersion, parse_json

#: Function that computes an object's checksum as releases before this envelope did.
Checksum = Callable[[dict[str, Any]], object]


def to_document(fields: Mapping[str, Any], *, version: int) -> bytes:
    """Return the bytes of an object, with a line feed at the end. Equal fields make equal bytes."""
    body = {**fields, "format": version}
    return canonical({**body, "checksum": checksum(body)}) + b"\n"


def from_document(
    data: bytes, *, version: int, before: Mapping[int, Checksum] | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the format of an object, and its fields without ``format`` and ``checksum``.

    ``version`` is the format that this release writes. ``before`` maps the older formats that this
    release reads to their checksum functions.

    Raises OtherVersion if the object is intact, but of another format. Raises ValueError if it is
    damaged, or of another kind.
    """
    fields = parse_json(data)
    if not isinstance(fields, dict) or "format" not in fields:
        raise ValueError("it is not a JSON object of this library")
    if canonical(fields) != data.removesuffix(b"\n"):
        raise ValueError("it is not canonical JSON")
    found, stored = fields["format"], fields.pop("checksum", None)
    checksums = {version: checksum, **(before or {})}
    if type(found) is not int or stored != checksums.get(found, checksum)(fields):
        raise ValueError("its checksum does not match")
    if found not in checksums:
        raise OtherVersion(found, version)
    del fields["format"]
    return found, fields


def canonical(fields: Mapping[str, Any]) -> bytes:
    """Return canonical JSON, or raise ValueError for fields that are nested too deeply."""
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except RecursionError as error:  # Python reads one level deeper than it writes
        raise ValueError("it is nested too deeply") from error
    return text.encode()


def checksum(fields: dict[str, Any]) -> str:
    """Return the checksum of an object's fields, including ``format``."""
    return hashlib.blake2b(canonical(fields), digest_size=16).hexdigest()
