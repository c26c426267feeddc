"""The content of a segment: record IDs with their hashes and times, sorted by hash, then key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dedup import kernel
from dedup.core.keys import Keys
from dedup.core.payload import joined_digests
from dedup.kernel.arrays import I64, U64


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Distinct record IDs with their times, sorted by hash. Equal hashes are sorted by key."""

    keys: Keys
    #: Hashes of the record IDs, made with the query's secret key for filters.
    hashes: U64
    times_ms: I64
    #: Digests of the payloads (`dedup.core.payload`), if any.
    digests: U64 | None = None

    @classmethod
    def in_order(
        cls, keys: Keys, hashes: U64, times_ms: I64, digests: U64 | None = None
    ) -> Entries:
        """Return the sorted entries of these columns, whose rows may be in any order."""
        order = kernel.sort_keys(keys.data, keys.offsets, hashes)
        return cls(keys, hashes, times_ms, digests).take(order)

    @classmethod
    def joined(cls, pieces: Sequence[Entries]) -> Entries:
        return cls.in_order(
            Keys.concat([piece.keys for piece in pieces]),
            np.concatenate([piece.hashes for piece in pieces]),
            np.concatenate([piece.times_ms for piece in pieces]),
            joined_digests([(len(piece), piece.digests) for piece in pieces]),
        )

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, span: slice) -> Entries:
        offsets = self.keys.offsets[span.start : span.stop + 1]
        digests = None if self.digests is None else self.digests[span]
        keys = Keys(self.keys.data, offsets)
        return Entries(keys, self.hashes[span], self.times_ms[span], digests)

    def take(self, index: I64) -> Entries:
        digests = None if self.digests is None else self.digests[index]
        return Entries(self.keys.take(index), self.hashes[index], self.times_ms[index], digests)


def merged(pieces: Sequence[Entries], bounds: U64) -> Iterator[Entries]:
    """Merge the sorted pieces, and yield their entries in chunks.

    A new chunk starts at each hash in ``bounds``, which rise. Empty chunks are left out. Chunks
    that fit into a processor's cache merge twice as fast as whole pieces, and need almost no
    additional memory.
    """
    stops = [[*np.searchsorted(piece.hashes, bounds).tolist(), len(piece)] for piece in pieces]
    starts = [0] * len(pieces)
    for ends in zip(*stops, strict=True):
        parts = [
            piece[start:end]
            for piece, start, end in zip(pieces, starts, ends, strict=True)
            if start < end
        ]
        starts = list(ends)
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            yield Entries.joined(parts)
