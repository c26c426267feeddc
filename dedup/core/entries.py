"""Record IDs with their hashes and times in (hash, key) order: the content of segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dedup import kernel
from dedup.core.arrays import I64, U64
from dedup.core.keys import Keys
from dedup.core.payload import joined_digests


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Distinct record IDs in the order of their hashes, equal hashes in the order of the keys."""

    keys: Keys
    #: Hashes of the keys under the query's filter key.
    hashes: U64
    times_ms: I64
    #: Digests of the payloads (`dedup.core.payload`), if any.
    digests: U64 | None = None

    @classmethod
    def in_order(
        cls, keys: Keys, hashes: U64, times_ms: I64, digests: U64 | None = None
    ) -> Entries:
        """Return the entries in these columns, whose rows may be in any order."""
        order = kernel.sort_keys(keys.data, keys.offsets, hashes)
        if digests is not None:
            digests = digests[order]
        return cls(keys.take(order), hashes[order], times_ms[order], digests)

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


def merged(pieces: Sequence[Entries], bounds: U64) -> Iterator[Entries]:
    """Yield all entries of the pieces in order, with a new chunk starting at each bound.

    Bounds are rising hashes. Empty chunks are left out. Chunks that fit a processor's cache merge
    twice as fast as the whole, and take almost no memory beside the pieces.
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
