"""The state row of one shard: the one BINARY value that Spark keeps for it.

Whichever attempt's row survives, everything that it names is at the catalog root (invariant 3).
``dedup/core/FORMATS.md`` describes the bytes. Damage to the head or the tail stops the query,
because they are the truth. Filters are only a cache of the sidecars: a filter that does not match
the manifest byte for byte is left out.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dedup.core import state_row
from dedup.core.clocks import NEVER_MS, Clocks
from dedup.core.filter import SplitBlockFilter
from dedup.core.manifest import Manifest
from dedup.core.parse import Parser, count, hash_key_id, integer, record, row, text, tuple_of
from dedup.core.tail import Tail
from dedup.errors import FilterDamaged, StateError

MAGIC = b"DDST"
#: Format with digests of payloads and their sets of columns, written if there are any.
WITH_PAYLOADS = 4
VERSION = 3
#: The same two formats with the ID of the hash key, written if the query has a secret.
WITH_KEY, WITH_KEY_AND_PAYLOADS = 5, 6
#: Older format without the fields `run_began` and `branches`.
_BEFORE = 2
_VERSIONS = (_BEFORE, VERSION, WITH_PAYLOADS, WITH_KEY, WITH_KEY_AND_PAYLOADS)
_CRC = struct.Struct("<I")

_HEAD: dict[str, Parser] = {
    "epoch": lambda value: integer(value, -1),
    "bucket_ms": count,
    "clocks": Clocks.from_json,
    "manifest": Manifest.from_json,
    "slices": tuple_of(text),
    "forgotten": count,
    "stray_files": row(count, count),
    "run_began": count,
    "branches": count,
    "forgotten_before_ms": integer,
    "payloads": tuple_of(text),
    "hash_key_id": hash_key_id,
}
#: The oldest format lacks the first two fields. A head has each of the others if it is needed.
_OPTIONAL = ("run_began", "branches", "payloads", "hash_key_id")


@dataclass(frozen=True, slots=True, eq=False)
class ShardState:
    """Everything that a shard remembers, or the names of the segments that hold it."""

    #: Micro-batch that wrote the state, -1 at birth.
    epoch: int = -1
    #: Length of the buckets that tail entries belong to, or 0 at birth.
    bucket_ms: int = 0
    clocks: Clocks = field(default_factory=Clocks)
    manifest: Manifest = field(default_factory=Manifest)
    tail: Tail = field(default_factory=Tail.empty)
    #: Filters of the newest segments by segment name, oldest first, as far as the budget allows.
    filters: Mapping[str, SplitBlockFilter] = field(default_factory=dict)
    #: Number of segments whose loss the user has accepted.
    segments_lost: int = 0
    #: Numbers of orphans and of foreign files when the shard last looked.
    stray_files: tuple[int, int] = (0, 0)
    #: First micro-batch of the run that wrote the state.
    run_began: int = 0
    #: Number of other runs that continued from a state of this shard's history, when the shard last
    #: looked. Above 0, nothing is deleted.
    branches: int = 0
    #: IDs of earlier times may be forgotten although the GC watermark has not passed them, because
    #: late copies were dropped anyway.
    forgotten_before_ms: int = NEVER_MS
    #: All sets of columns that digests of payloads cover; see `dedup.core.payload`.
    payloads: tuple[str, ...] = ()
    #: ID of the key of the hashes that spread and filter the shard's IDs. None if the key derives
    #: from the query ID alone.
    hash_key_id: int | None = None

    @property
    def live_buckets(self) -> int:
        """Number of buckets that hold an ID, in segments or in the tail."""
        starts = {bucket.start_ms for bucket in self.manifest.buckets}
        if len(self.tail):
            starts |= set(np.unique(self.tail.bucket_starts(self.bucket_ms)).tolist())
        return len(starts)

    def head_bytes_without_filters(self) -> int:
        """Return the size of the row without the tail, the filters and their names."""
        return state_row.HEADER_BYTES + len(replace(self, filters={})._head())

    def head(self) -> dict[str, Any]:
        """Return everything but the tail and the filters' bytes, as JSON values."""
        head = {
            "epoch": self.epoch,
            "bucket_ms": self.bucket_ms,
            "clocks": self.clocks.to_json(),
            "manifest": self.manifest.to_json(),
            "slices": list(self.filters),
            "forgotten": self.segments_lost,
            "stray_files": list(self.stray_files),
            "run_began": self.run_began,
            "branches": self.branches,
            "forgotten_before_ms": self.forgotten_before_ms,
        }
        if self.payloads:
            head["payloads"] = list(self.payloads)
        if self.hash_key_id is not None:
            head["hash_key_id"] = f"{self.hash_key_id:016x}"
        return head

    @staticmethod
    def from_head(head: object) -> ShardState:
        """Return the state that a head describes, with an empty tail and no filters.

        Raises ValueError if `head` cannot have returned it.
        """
        fields = record(head, _HEAD, _OPTIONAL)
        del fields["slices"]
        return ShardState(segments_lost=fields.pop("forgotten"), **fields)

    def check_key(self, hash_key_id: int) -> None:
        """Raise StateError if the state was made with another hash key."""
        if self.hash_key_id not in (None, hash_key_id):
            raise StateError.of_another_catalog()

    def _head(self) -> bytes:
        return state_row.compressed(self.head())

    def to_bytes(self) -> bytes:
        version = WITH_PAYLOADS if self.payloads else VERSION
        if self.hash_key_id is not None:
            version += WITH_KEY - VERSION
        head, tail = self._head(), self._digested_tail().to_bytes()
        filters = [built.to_bytes() for built in self.filters.values()]
        parts = [state_row.written(MAGIC, version, len(filters), head, tail)]
        for data in filters:
            parts += (_CRC.pack(len(data)), data)
        return b"".join(parts)

    def _digested_tail(self) -> Tail:
        if not self.payloads or self.tail.digests is not None:
            return self.tail
        return replace(self.tail, digests=np.zeros(len(self.tail), np.uint64))

    @staticmethod
    def from_bytes(data: bytes, *, hash_key_id: int) -> ShardState:
        """Return the state without damaged filters, which their sidecars replace.

        Raises StateError if the row is damaged, of an unknown version, another operator's, or made
        with another hash key.
        """
        found = state_row.read(data, MAGIC, _VERSIONS, content="manifest and tail")
        with_payloads = found.version in (WITH_PAYLOADS, WITH_KEY_AND_PAYLOADS)
        try:
            head = found.fields()
            state = ShardState.from_head(head)
            tail = Tail.from_bytes(found.body, digested=with_payloads)
            if bool(state.payloads) != with_payloads:
                raise ValueError("its version does not match its sets of columns")
            if (state.hash_key_id is not None) != (found.version >= WITH_KEY):
                raise ValueError("its version does not match the ID of its hash key")
            if len(tail) and state.bucket_ms == 0:
                raise ValueError("it holds IDs, but buckets have no length")
        except (ValueError, zlib.error) as exc:
            raise StateError.damaged(f"its manifest or tail contradicts itself: {exc}") from exc
        state.check_key(hash_key_id)
        names: list[str] = head["slices"]
        filters = _filters(found.rest, names[: found.parts], state.manifest, hash_key_id)
        return replace(state, tail=tail, filters=filters)


def _filters(
    data: memoryview, names: list[str], manifest: Manifest, hash_key_id: int
) -> dict[str, SplitBlockFilter]:
    """Return the filters that are intact and belong to their segments.

    No checksum covers the lengths. If a length is damaged, one filter could be read under the name
    of another, and would wrongly answer "not seen".
    """
    checksums = {segment.name: segment.filter_crc32 for segment in manifest.segments()}
    filters: dict[str, SplitBlockFilter] = {}
    position = 0
    for name in names:
        if position + _CRC.size > len(data):
            break
        (length,) = _CRC.unpack_from(data, position)
        position += _CRC.size
        content = data[position : position + length]
        if name in checksums:
            with suppress(FilterDamaged):
                filters[name] = SplitBlockFilter.from_bytes(
                    content, hash_key_id=hash_key_id, head_crc32=checksums[name]
                )
        position += length
    return filters
