"""The state row of a shard of `dedup_by_id`, a BINARY value that Spark keeps.

All segments that a row names are at the catalog root, whichever attempt of a task wrote the row
(invariant 3). ``dedup/core/FORMATS.md`` describes the bytes. If the head or the tail is damaged,
the query stops, because no other copy exists. Filters are only copies of the sidecars, so a filter
that does not match the manifest is left out.
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
from dedup.core.clocks import FIRST_WINDOW_WATERMARKS_MS, NEVER_MS, Clocks
from dedup.core.filter import SplitBlockFilter
from dedup.core.manifest import Manifest
from dedup.core.tail import Tail
from dedup.errors import FilterDamaged, StateError
from dedup.values.parse import Parser, count, hash_key_id, integer, record, row, text, tuple_of

MAGIC = b"DDID"
VERSION = 1
#: Version of a row with `capped_before_ms`.
CAPPED_VERSION = 2
_CRC = struct.Struct("<I")

_HEAD: dict[str, Parser] = {
    "epoch": lambda value: integer(value, -1),
    "bucket_ms": count,
    "clocks": Clocks.from_json,
    "manifest": Manifest.from_json,
    "filters": tuple_of(text),
    "segments_lost": count,
    "stray_files": row(count, count),
    "run_began": count,
    "branches": count,
    "forgotten_before_ms": integer,
    "payloads": tuple_of(text),
    "hash_key_id": hash_key_id,
    "capped_before_ms": integer,
}
#: Field that a row has only while IDs are forgotten early.
_OPTIONAL = ("capped_before_ms",)


@dataclass(frozen=True, slots=True, eq=False)
class ShardState:
    """Everything that a shard remembers. The manifest names segments that hold the older IDs."""

    #: Micro-batch that wrote the state, or -1 before the first.
    epoch: int = -1
    #: Length of the buckets that tail entries belong to, or 0 before the first micro-batch.
    bucket_ms: int = 0
    clocks: Clocks = field(default_factory=Clocks)
    manifest: Manifest = field(default_factory=Manifest)
    tail: Tail = field(default_factory=Tail.empty)
    #: Filters by segment name, oldest bucket first, as many as `dedup.core.filter_choice` keeps.
    filters: Mapping[str, SplitBlockFilter] = field(default_factory=dict)
    #: Number of segments whose loss the user has accepted.
    segments_lost: int = 0
    #: Number of orphans and of foreign files that the last search of the catalog root found.
    stray_files: tuple[int, int] = (0, 0)
    #: First micro-batch of the run that wrote the state.
    run_began: int = 0
    #: Number of other runs that continued from a state of this shard's history, by the last search
    #: of the catalog root. While it is above 0, nothing is deleted.
    branches: int = 0
    #: IDs with times before this may be forgotten already, although the GC watermark has not passed
    #: them. An earlier policy that dropped late records allowed that.
    forgotten_before_ms: int = NEVER_MS
    #: All sets of columns that digests of payloads cover (see `dedup.core.payload`). The tail has
    #: digests if there are any.
    payloads: tuple[str, ...] = ()
    #: ID of the key of the hashes for filters and segments, or 0 before the first micro-batch.
    hash_key_id: int = 0
    #: IDs with times before this were forgotten early, because the shard had too many.
    capped_before_ms: int = NEVER_MS

    @property
    def is_capped(self) -> bool:
        return self.capped_before_ms > self.clocks.gc_watermark_ms

    def horizon_cut_ms(self, horizon_ms: int) -> int:
        """Return by how much the horizon is shorter for records of the next micro-batch.

        Their effective timestamps are not behind the late watermark.
        """
        kept_ms = self.clocks.late_watermark_ms - self.capped_before_ms
        return max(horizon_ms - kept_ms, 0) if self.is_capped else 0

    @property
    def live_buckets(self) -> int:
        """Number of buckets that hold an ID, in segments or in the tail."""
        starts = {bucket.start_ms for bucket in self.manifest.buckets}
        if len(self.tail):
            starts |= set(np.unique(self.tail.bucket_starts(self.bucket_ms)).tolist())
        return len(starts)

    def restarted(self, newest: ShardState, manifest: Manifest) -> ShardState:
        """Return the state before micro-batch 0 of a new checkpoint, without tail and filters.

        ``newest`` is the query's newest state, which gives the clocks. Micro-batches count from 0
        again, so the manifest does not keep the numbers of earlier ones.
        """
        clocks = replace(
            newest.clocks,
            run_id="",
            window_watermarks_ms=FIRST_WINDOW_WATERMARKS_MS,
            window_floor_ms=None,
        )
        return ShardState(
            bucket_ms=newest.bucket_ms,
            clocks=clocks,
            manifest=Manifest(
                manifest.buckets,
                tuple(replace(entry, epoch=-1) for entry in manifest.expired),
                tuple(replace(one, epoch=-1) for one in manifest.pending_lists),
            ),
            segments_lost=self.segments_lost,
            forgotten_before_ms=max(self.forgotten_before_ms, newest.forgotten_before_ms),
            payloads=self.payloads,
            hash_key_id=self.hash_key_id,
            capped_before_ms=max(self.capped_before_ms, newest.capped_before_ms),
        )

    def head_bytes_without_filters(self) -> int:
        """Return the size of the row without the tail, the filters and their names."""
        return state_row.HEADER_BYTES + len(replace(self, filters={})._head())

    def head(self) -> dict[str, Any]:
        """Return the head as JSON values: everything except the tail and the bytes of filters."""
        return {
            "epoch": self.epoch,
            "bucket_ms": self.bucket_ms,
            "clocks": self.clocks.to_json(),
            "manifest": self.manifest.to_json(),
            "filters": list(self.filters),
            "segments_lost": self.segments_lost,
            "stray_files": list(self.stray_files),
            "run_began": self.run_began,
            "branches": self.branches,
            "forgotten_before_ms": self.forgotten_before_ms,
            "payloads": list(self.payloads),
            "hash_key_id": f"{self.hash_key_id:016x}",
            **({"capped_before_ms": self.capped_before_ms} if self.is_capped else {}),
        }

    @staticmethod
    def from_head(head: object) -> ShardState:
        """Return the state that a head describes, with an empty tail and no filters.

        Raises ValueError if the method `head` cannot have returned the value.
        """
        fields = record(head, _HEAD, _OPTIONAL)
        del fields["filters"]
        return ShardState(**fields)

    def check_key(self, hash_key_id: int) -> None:
        if self.hash_key_id != hash_key_id:
            raise StateError(
                "The catalog does not belong to this checkpoint: the state was made with another "
                "hash key than the one in the query's certificate.json. Nothing was emitted or "
                "lost. Restore the catalog that the checkpoint last used.",
                remedy="missing-catalog",
            )

    def _head(self) -> bytes:
        return state_row.compressed(self.head())

    def to_bytes(self) -> bytes:
        tail = self.tail
        if self.payloads and tail.digests is None:
            tail = replace(tail, digests=np.zeros(len(tail), np.uint64))
        filters = [built.to_bytes() for built in self.filters.values()]
        version = CAPPED_VERSION if self.is_capped else VERSION
        parts = [state_row.written(MAGIC, version, len(filters), self._head(), tail.to_bytes())]
        for data in filters:
            parts += (_CRC.pack(len(data)), data)
        return b"".join(parts)

    @staticmethod
    def from_bytes(data: bytes, *, hash_key_id: int) -> ShardState:
        """Return the state, without filters that are damaged.

        Raises StateError if another part of the row is damaged, if its version is unknown, or if
        another operator or another hash key made it.
        """
        parsed = state_row.read(data, MAGIC, VERSION, CAPPED_VERSION, content="manifest and tail")
        try:
            head = parsed.fields()
            state = ShardState.from_head(head)
            tail = Tail.from_bytes(parsed.body, digested=bool(state.payloads))
            if len(tail) and state.bucket_ms == 0:
                raise ValueError("it holds IDs, but buckets have no length")
        except (ValueError, zlib.error) as exc:
            raise StateError.damaged(f"its manifest or tail contradicts itself: {exc}") from exc
        state.check_key(hash_key_id)
        names: list[str] = head["filters"]
        filters = _filters(parsed.rest, names[: parsed.parts], state.manifest, hash_key_id)
        return replace(state, tail=tail, filters=filters)


def _filters(
    data: memoryview, names: list[str], manifest: Manifest, hash_key_id: int
) -> dict[str, SplitBlockFilter]:
    """Return the filters that are intact and belong to their segments.

    No checksum covers the lengths of filters. If a length is damaged, the bytes of one filter could
    be read under the name of another, and that filter would wrongly answer "not seen".
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
