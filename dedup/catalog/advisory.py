"""Copies of the shards' memory at the root, for the day when the checkpoint is lost.

A shard writes one after a micro-batch that changed its set of segments, once that micro-batch is
known to be committed; it is the one kind of file that is overwritten. It tells all but the newest
IDs, those in Spark state. The operator never reads it, and nothing is judged live, or deleted, by
it; `dedup catalog adopt` turns all of them into what a new checkpoint begins with.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from dedup.catalog.layout import ADOPTED_FILE, MANIFEST_FILE, shard_path
from dedup.catalog.root import ObjectMissing, Root
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.errors import CatalogError, StateError

ADVISORY_FORMAT = 2


def write_advisory(root: Root, query_id: str, shard: int, state: ShardState) -> None:
    """Overwrite a shard's advisory copy with a committed state.

    Raises
    ------
    CatalogError
        If the root cannot be written.
    """
    root.put_bytes(shard_path(query_id, shard, MANIFEST_FILE), _to_bytes(state))


def read_advisory(root: Root, query_id: str, shard: int) -> ShardState | None:
    """A shard's advisory copy, None where there is none or it is damaged: it is only advice."""
    try:
        return _from_bytes(root.read_bytes(shard_path(query_id, shard, MANIFEST_FILE)))
    except (ObjectMissing, ValueError):
        return None


def write_adopted(root: Root, query_id: str, shard: int, state: ShardState) -> None:
    """Write what a shard begins with under a new checkpoint.

    Raises
    ------
    CatalogError
        If the root cannot be written.
    """
    root.put_bytes(shard_path(query_id, shard, ADOPTED_FILE), _to_bytes(state))


def read_adopted(root: Root, query_id: str, shard: int) -> ShardState | None:
    """What a shard without Spark state begins with, None where nothing was adopted.

    Raises
    ------
    CatalogError
        If it is damaged: beginning with nothing would emit everything again.
    """
    name = shard_path(query_id, shard, ADOPTED_FILE)
    try:
        return _from_bytes(root.read_bytes(name))
    except ObjectMissing:
        return None
    except ValueError as exc:
        raise CatalogError(
            f"{root.url(name)}, which a new checkpoint begins with, cannot be used: {exc}. Run "
            "dedup catalog adopt again, into another new checkpoint"
        ) from exc


def _to_bytes(state: ShardState) -> bytes:
    known = replace(state, tail=Tail.empty(), slices={})
    fields: dict[str, Any] = {"format": ADVISORY_FORMAT, "state": known.head()}
    fields["checksum"] = _checksum(fields)
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def _from_bytes(data: bytes) -> ShardState:
    try:
        fields = json.loads(data)
        if fields.pop("checksum") != _checksum(fields):
            raise ValueError("its checksum does not match")
        if fields["format"] != ADVISORY_FORMAT:
            raise ValueError(f"format {fields['format']!r} is not {ADVISORY_FORMAT}")
        return ShardState.from_head(fields["state"])
    except (KeyError, TypeError, AttributeError, StateError) as exc:
        raise ValueError(f"it is no copy of a shard's memory ({exc})") from exc


def _checksum(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
