"""Equal ranges of hashes, a power of two of them, by which a run is split into segments."""

from __future__ import annotations

import numpy as np

from dedup.core.arrays import U64

#: Ranges of hashes that the IDs of a bucket are split into at most: 16 bits of the hash.
MAX_PARTS = 1 << 16


def hash_range(hashes: U64, parts: int, part: int) -> slice:
    """Return which of the hashes, which never fall, lie in range ``part`` of ``parts`` equal ones.

    Parameters
    ----------
    hashes : ndarray of uint64, shape (n,)
    parts : int
        A power of two.
    part : int
        0 to ``parts``, which is behind the last.
    """
    if parts == 1:
        return slice(0, len(hashes) if part == 0 else 0)
    bits = 64 - (parts.bit_length() - 1)
    low = int(np.searchsorted(hashes, np.uint64(part << bits))) if part < parts else len(hashes)
    if part + 1 >= parts:
        return slice(low, len(hashes))
    return slice(low, int(np.searchsorted(hashes, np.uint64((part + 1) << bits))))


def spread_hashes(hashes: U64, parts: int) -> U64:
    """Return hashes of one of ``parts`` equal ranges, a power of two, spread over all 64 bits."""
    return hashes if parts == 1 else hashes << np.uint64(parts.bit_length() - 1)
