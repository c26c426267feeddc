"""Advisory copies of the manifests, for looking at a catalog without its checkpoint.

A shard writes one whenever its set of segments changes; it is the one kind of file that is
overwritten, and the operator never reads it. It may be one attempt ahead of Spark state or behind
it, so nothing is ever judged live, or deleted, by it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from dedup.catalog.layout import MANIFEST_FILE, shard_path
from dedup.catalog.root import ObjectMissing, Root
from dedup.core.manifest import Manifest
from dedup.errors import StateError

ADVISORY_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Advisory:
    """A shard's manifest as of a micro-batch; what its tail held is unknown."""

    epoch: int
    manifest: Manifest


def write_advisory(root: Root, query_id: str, shard: int, advisory: Advisory) -> None:
    """Overwrite a shard's advisory copy.

    Raises
    ------
    CatalogError
        If the root cannot be written.
    """
    fields: dict[str, Any] = {
        "format": ADVISORY_FORMAT,
        "epoch": advisory.epoch,
        "manifest": advisory.manifest.to_json(),
    }
    fields["checksum"] = _checksum(fields)
    data = json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()
    root.put_bytes(shard_path(query_id, shard, MANIFEST_FILE), data)


def read_advisory(root: Root, query_id: str, shard: int) -> Advisory | None:
    """A shard's advisory copy, None where there is none or it is damaged: it is only advice."""
    try:
        fields = json.loads(root.read_bytes(shard_path(query_id, shard, MANIFEST_FILE)))
        if fields.pop("checksum") != _checksum(fields) or fields["format"] != ADVISORY_FORMAT:
            return None
        return Advisory(fields["epoch"], Manifest.from_json(fields["manifest"]))
    except ObjectMissing:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, StateError):
        return None


def _checksum(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
