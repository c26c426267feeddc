"""The envelope of every JSON object at the catalog root: a format number and a checksum.

Canonical JSON (UTF-8, keys sorted, no spaces, non-ASCII characters escaped) of the object's fields,
``format`` and ``checksum``, which is BLAKE2b-128 of the canonical JSON of all others. The envelope
is the same in every format to come, so that another release's object is told from a damaged one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from dedup.core.parse import OtherVersion, parse_json

#: The checksum of the fields as a release before this envelope wrote it.
Checksum = Callable[[dict[str, Any]], object]


def to_document(fields: Mapping[str, Any], *, version: int) -> bytes:
    """Return the bytes of an object, the same from every writer, with a line feed behind."""
    body = {**fields, "format": version}
    return canonical({**body, "checksum": checksum(body)}) + b"\n"


def from_document(
    data: bytes, *, version: int, before: Mapping[int, Checksum] | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the format of an object, and its fields without those of the envelope.

    Parameters
    ----------
    data : bytes
    version : int
        The format that is written today.
    before : mapping of int to callable, optional
        Older formats that are read too, with the checksum that each of them has.

    Raises
    ------
    OtherVersion
        When the object is whole, and of a format that is not among them.
    ValueError
        When it is damaged, or no such object.
    """
    fields = parse_json(data)
    if not isinstance(fields, dict) or "format" not in fields:
        raise ValueError("it is no JSON object of this library")
    if canonical(fields) != data.removesuffix(b"\n"):
        raise ValueError("it is not as it was written")
    found, stored = fields["format"], fields.pop("checksum", None)
    checksums = {version: checksum, **(before or {})}
    if type(found) is not int or stored != checksums.get(found, checksum)(fields):
        raise ValueError("its checksum does not match")
    if found not in checksums:
        raise OtherVersion(found, version)
    del fields["format"]
    return found, fields


def canonical(fields: Mapping[str, Any]) -> bytes:
    """Return canonical JSON; ValueError for fields that are nested too deeply."""
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except RecursionError as error:  # Python reads a level more than it writes
        raise ValueError("it is nested too deeply") from error
    return text.encode()


def checksum(fields: dict[str, Any]) -> str:
    """Return the checksum of an object's fields, ``format`` among them."""
    return hashlib.blake2b(canonical(fields), digest_size=16).hexdigest()
