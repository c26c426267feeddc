"""Pending lists: names of expired segments, kept at the root so that the state row stays small.

While expired segments wait for their deletion their names would fill the state row; past a few
hundred they are written as one immutable object, and the manifest holds that object's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dedup.catalog.layout import PENDING_LIST_SUFFIX, shard_path
from dedup.catalog.root import ObjectMissing, Root
from dedup.core.parse import array, mapping, name, parse_json

PENDING_LIST_FORMAT = 2

_FIELDS = frozenset(("format", "place", "segments", "checksum"))


def write_pending_list(
    root: Root, query_id: str, shard: int, pending_list: str, names: Sequence[str]
) -> None:
    """Write the object, durable on return; CatalogError where the root fails."""
    place = shard_path(query_id, shard, pending_list + PENDING_LIST_SUFFIX)
    body = {
        "format": PENDING_LIST_FORMAT,
        "place": place,
        "segments": list(names),
        "checksum": _checksum([place, *names]),
    }
    root.create_bytes(
        place, json.dumps(body, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    )


def read_pending_list(root: Root, query_id: str, shard: int, pending_list: str) -> list[str]:
    """Names of the segments; none where the object is missing or damaged.

    Nothing is lost by that: the files become orphans, which only a sweep may delete.
    """
    with suppress(ObjectMissing, ValueError):
        return check_pending_list(root, query_id, shard, pending_list)
    return []


def check_pending_list(root: Root, query_id: str, shard: int, pending_list: str) -> list[str]:
    """Names of the segments.

    Raises
    ------
    ObjectMissing
        Where there is no such object.
    ValueError
        Where it is damaged, or another pending list's: what it names may still be needed.
    """
    place = shard_path(query_id, shard, pending_list + PENDING_LIST_SUFFIX)
    return root.read(place, lambda data: _names(data, place))


def _names(data: bytes, place: str) -> list[str]:
    body: dict[str, Any] = mapping(parse_json(data), needed=_FIELDS, known=_FIELDS)
    names = [name(segment) for segment in array(body["segments"])]
    if (version := body["format"]) != PENDING_LIST_FORMAT:
        raise ValueError(f"format {version!r} is not {PENDING_LIST_FORMAT}")
    if body["checksum"] != _checksum([str(body["place"]), *names]):
        raise ValueError("its checksum does not match")
    if body["place"] != place:
        raise ValueError(f"it was written as {body['place']}")
    return names


def _checksum(names: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()
