"""Tombstones: a user's word that the loss of one damaged segment is accepted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

from dedup.catalog.layout import TOMBSTONE_SUFFIX, shard_path
from dedup.catalog.root import ObjectMissing, Root
from dedup.core.parse import mapping, name, parse_json, whole
from dedup.core.ports import SegmentRef
from dedup.errors import CatalogError

TOMBSTONE_FORMAT = 1
_FIELDS = frozenset(("format", "segment", "start_ms", "end_ms", "checksum"))


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Which segment may be lost. The bucket is None where the segment could not tell it."""

    segment: str
    start_ms: int | None
    end_ms: int | None

    def to_bytes(self) -> bytes:
        """Return canonical JSON."""
        fields: dict[str, Any] = {"format": TOMBSTONE_FORMAT, **asdict(self)}
        fields["checksum"] = crc32(_canonical(fields))
        return _canonical(fields) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Tombstone:
        """Return the tombstone of these bytes; ValueError where damaged or of another format."""
        fields = mapping(parse_json(data), needed=_FIELDS, known=_FIELDS)
        if fields["format"] != TOMBSTONE_FORMAT:
            raise ValueError("it is of another format")
        bucket = fields["start_ms"], fields["end_ms"]
        if bucket != (None, None):
            bucket = whole(bucket[0]), whole(bucket[1])
        found = cls(name(fields["segment"]), *bucket)
        if found.to_bytes() != data:
            raise ValueError("its checksum does not match")
        return found


def tombstone_path(query_id: str, shard: int, segment: str) -> str:
    """Return the name of a segment's tombstone."""
    return shard_path(query_id, shard, segment + TOMBSTONE_SUFFIX)


def read_tombstone(root: Root, query_id: str, shard: int, seg: SegmentRef) -> Tombstone | None:
    """Return the tombstone of a segment, None where there is none.

    Raises
    ------
    CatalogError
        When it is damaged, of a newer version, or for another segment or bucket.
    """
    path = tombstone_path(query_id, shard, seg.name)
    try:
        found = root.read(path, Tombstone.from_bytes)
        buckets = ((seg.start_ms, seg.end_ms), (None, None))
        if found.segment != seg.name or (found.start_ms, found.end_ms) not in buckets:
            raise ValueError(f"it speaks of {found}")
    except ObjectMissing:
        return None
    except ValueError as exc:
        raise CatalogError(
            f"the tombstone {root.url(path)} cannot be used for segment {seg.name}: {exc}. If the "
            "loss of this bucket is still accepted, write it again: "
            f"dedup catalog forget {root.url()} --segment {seg.name}",
            remedy="damaged-segment",
        ) from exc
    return found


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
