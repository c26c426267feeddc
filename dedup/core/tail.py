"""The tail: a shard's newest IDs with their timestamps, kept exactly in Spark state.

When the tail is full, some of its IDs are sealed into segments at the catalog root. So the tail is
like the memtable of a database, and Spark state is its write-ahead log.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from dedup import kernel
from dedup.core.keys import Keys
from dedup.core.payload import joined_digests
from dedup.core.state_row import columns_from
from dedup.kernel.arrays import BOOL, I64, U64, offsets_of

_HEADER = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """Entries in order of arrival. An ID may occur again if it is more than a horizon later."""

    keys: Keys
    #: Emitted timestamps.
    times_ms: I64
    #: Whether another time replaced the timestamp, because that was late, null or in the future.
    clamped: BOOL
    #: Digests of the payloads, or None if no entry has a digest.
    digests: U64 | None = None

    @staticmethod
    def empty() -> Tail:
        return Tail(Keys.empty(), np.zeros(0, np.int64), np.zeros(0, np.bool_))

    def __len__(self) -> int:
        return len(self.times_ms)

    @property
    def nbytes(self) -> int:
        entry_bytes = 4 + 8 + 1 + (0 if self.digests is None else 8)
        return _HEADER.size + len(self) * entry_bytes + len(self.keys.data)

    def take(self, index: I64) -> Tail:
        digests = None if self.digests is None else self.digests[index]
        return Tail(self.keys.take(index), self.times_ms[index], self.clamped[index], digests)

    def where(self, mask: BOOL) -> Tail:
        return self if bool(mask.all()) else self.take(np.flatnonzero(mask))

    def append(self, other: Tail) -> Tail:
        if not len(self):
            return other
        if not len(other):
            return self
        return Tail(
            Keys.concat([self.keys, other.keys]),
            np.concatenate([self.times_ms, other.times_ms]),
            np.concatenate([self.clamped, other.clamped]),
            joined_digests([(len(self), self.digests), (len(other), other.digests)]),
        )

    def bucket_starts(self, bucket_ms: int) -> I64:
        starts: I64 = (self.times_ms // bucket_ms) * bucket_ms
        return starts

    def hashes(self, hash_key: bytes) -> U64:
        return kernel.hash64(self.keys.data, self.keys.offsets, hash_key)

    def to_bytes(self) -> bytes:
        lengths = np.diff(self.keys.offsets).astype("<u4")
        return b"".join(
            (
                _HEADER.pack(len(self), len(self.keys.data)),
                lengths.tobytes(),
                self.times_ms.astype("<i8").tobytes(),
                self.clamped.astype(np.uint8).tobytes(),
                b"" if self.digests is None else self.digests.astype("<u8").tobytes(),
                self.keys.data.tobytes(),
            )
        )

    @staticmethod
    def from_bytes(data: memoryview, *, digested: bool = False) -> Tail:
        """Return the tail of these bytes, or raise ValueError if they are inconsistent."""
        if len(data) < _HEADER.size:
            raise ValueError("tail is shorter than its header")
        count, key_bytes = _HEADER.unpack_from(data)
        layout = (
            ("<u4", count), ("<i8", count), ("u1", count), ("<u8", count if digested else 0),
            ("u1", key_bytes),
        )  # fmt: skip
        lengths, times_ms, clamped, digests, keys = columns_from(data, _HEADER.size, layout)
        if clamped.max(initial=0) > 1:
            raise ValueError("tail flags are neither 0 nor 1")
        offsets = offsets_of(lengths)
        if int(offsets[-1]) != key_bytes:
            raise ValueError("tail key lengths do not add up")
        return Tail(
            Keys(keys, offsets),
            times_ms.astype(np.int64),
            clamped.astype(np.bool_),
            digests.astype(np.uint64) if digested else None,
        )
