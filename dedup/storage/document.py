"""The envelope of every JSON object at the catalog root: a format number and a checksum.

An object is canonical JSON (UTF-8, keys sorted, no spaces, non-ASCII characters escaped) of its
fields, ``format`` and ``checksum``. The checksum is BLAKE2b-128 of the canonical JSON of all other
fields. Every future format keeps the envelope, so that a reader can distinguish another release's
object from a damaged one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dedup.values.parse import OtherVersion, parse_json


def to_document(fields: Mapping[str, Any], *, version: int) -> bytes:
    """Return the bytes of an object, with a line feed at the end. Equal fields make equal bytes."""
    body = {**fields, "format": version}
    return canonical({**body, "checksum": _checksum(body)}) + b"\n"


def from_document(data: bytes, *, version: int, least: int | None = None) -> dict[str, Any]:
    """Return the fields of an object of this format, without ``format`` and ``checksum``.

    With ``least``, formats since that one are read as well.

    Raises OtherVersion if the object is intact, but of another format. Raises ValueError if it is
    damaged, or of another kind.
    """
    fields = parse_json(data)
    if not isinstance(fields, dict) or "format" not in fields:
        raise ValueError("it is not a JSON object of this library")
    if canonical(fields) != data.removesuffix(b"\n"):
        raise ValueError("it is not canonical JSON")
    stored = fields.pop("checksum", None)
    if type(fields["format"]) is not int or stored != _checksum(fields):
        raise ValueError("its checksum does not match")
    if not (least or version) <= (stored_version := fields.pop("format")) <= version:
        raise OtherVersion(stored_version, version)
    return fields


def canonical(fields: Mapping[str, Any]) -> bytes:
    """Return canonical JSON, or raise ValueError for fields that are nested too deeply."""
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except RecursionError as error:  # Python reads one level deeper than it writes
        raise ValueError("it is nested too deeply") from error
    return text.encode()


def _checksum(fields: dict[str, Any]) -> str:
    """Return the checksum of an object's fields, including ``format``."""
    return hashlib.blake2b(canonical(fields), digest_size=16).hexdigest()
