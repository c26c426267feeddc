"""Graves: names of expired segments, kept at the root so that the state row stays small.

While expired segments wait for their deletion their names would fill the state row; past a few
hundred they are written as one immutable object, and the manifest holds that object's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from dedup.catalog.layout import GRAVE_SUFFIX, shard_path
from dedup.catalog.root import ObjectMissing, Root

GRAVE_FORMAT = 1


def write_grave(root: Root, query_id: str, shard: int, grave: str, names: Sequence[str]) -> None:
    """Write the object, durable on return; CatalogError where the root fails."""
    body = {"format": GRAVE_FORMAT, "segments": list(names), "checksum": _checksum(names)}
    data = json.dumps(body, separators=(",", ":"), sort_keys=True).encode() + b"\n"
    root.create_bytes(shard_path(query_id, shard, grave + GRAVE_SUFFIX), data)


def read_grave(root: Root, query_id: str, shard: int, grave: str) -> list[str]:
    """Names of the segments; none where the object is missing or damaged.

    Nothing is lost by that: the files become orphans, which only a sweep may delete.
    """
    try:
        body = json.loads(root.read_bytes(shard_path(query_id, shard, grave + GRAVE_SUFFIX)))
        names = [str(name) for name in body["segments"]]
        if body["format"] != GRAVE_FORMAT or body["checksum"] != _checksum(names):
            return []
        return names
    except (ObjectMissing, ValueError, KeyError, TypeError):
        return []


def _checksum(names: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()
