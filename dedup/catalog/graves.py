"""Graves: names of expired segments, kept at the root so that the state row stays small.

While expired segments wait for their deletion their names would fill the state row; past a few
hundred they are written as one immutable object, and the manifest holds that object's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dedup.catalog.layout import GRAVE_SUFFIX, shard_path
from dedup.catalog.root import ObjectMissing, Root
from dedup.core.parse import array, mapping, name, parse_json

GRAVE_FORMAT = 2

_FIELDS = frozenset(("format", "place", "segments", "checksum"))


def write_grave(root: Root, query_id: str, shard: int, grave: str, names: Sequence[str]) -> None:
    """Write the object, durable on return; CatalogError where the root fails."""
    place = shard_path(query_id, shard, grave + GRAVE_SUFFIX)
    body = {
        "format": GRAVE_FORMAT,
        "place": place,
        "segments": list(names),
        "checksum": _checksum([place, *names]),
    }
    root.create_bytes(
        place, json.dumps(body, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    )


def read_grave(root: Root, query_id: str, shard: int, grave: str) -> list[str]:
    """Names of the segments; none where the object is missing or damaged.

    Nothing is lost by that: the files become orphans, which only a sweep may delete.
    """
    with suppress(ObjectMissing, ValueError):
        return check_grave(root, query_id, shard, grave)
    return []


def check_grave(root: Root, query_id: str, shard: int, grave: str) -> list[str]:
    """Names of the segments.

    Raises
    ------
    ObjectMissing
        Where there is no such object.
    ValueError
        Where it is damaged, or another grave's: what it names may still be needed.
    """
    place = shard_path(query_id, shard, grave + GRAVE_SUFFIX)
    return root.read(place, lambda data: _names(data, place))


def _names(data: bytes, place: str) -> list[str]:
    body: dict[str, Any] = mapping(parse_json(data), needed=_FIELDS, known=_FIELDS)
    names = [name(segment) for segment in array(body["segments"])]
    if (version := body["format"]) != GRAVE_FORMAT:
        raise ValueError(f"format {version!r} is not {GRAVE_FORMAT}")
    if body["checksum"] != _checksum([str(body["place"]), *names]):
        raise ValueError("its checksum does not match")
    if body["place"] != place:
        raise ValueError(f"it was written as {body['place']}")
    return names


def _checksum(names: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()
