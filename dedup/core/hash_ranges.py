"""Equal ranges of 64-bit hashes. They divide IDs among segments, blocks and shards."""

from __future__ import annotations

import numpy as np

from dedup.kernel.arrays import I64, U64

#: Largest number of hash ranges of a bucket, given by the upper 16 bits of a hash.
MAX_HASH_RANGES = 1 << 16


def check_hash_ranges(hash_ranges: int, index: int) -> None:
    """Raise ValueError unless ``hash_ranges`` is a power of two and ``index`` is below it."""
    power = 1 <= hash_ranges <= MAX_HASH_RANGES and hash_ranges & (hash_ranges - 1) == 0
    if not power or not 0 <= index < hash_ranges:
        raise ValueError(f"there is no range {index} of {hash_ranges}")


def range_indexes(hashes: U64, hash_ranges: int) -> I64:
    """Return for each hash the index of its range among ``hash_ranges`` equal ranges.

    Higher hashes have higher indexes. ``hash_ranges`` is at most 2**32.
    """
    # Multiply the upper half by the number of ranges: no division, and the product fits 64 bits.
    return (((hashes >> np.uint64(32)) * np.uint64(hash_ranges)) >> np.uint64(32)).astype(np.int64)


def hash_range(hashes: U64, hash_ranges: int, index: int) -> slice:
    """Return the slice of the sorted ``hashes`` that range number ``index`` contains.

    ``hash_ranges`` is the number of ranges, a power of two. If ``index`` equals ``hash_ranges``,
    the slice is empty and begins at the end.
    """

    def start(index: int) -> int:
        if index >= hash_ranges:
            return len(hashes)
        return int(np.searchsorted(hashes, np.uint64((index << 64) // hash_ranges)))

    return slice(start(index), start(index + 1))


def spread_hashes(hashes: U64, hash_ranges: int) -> U64:
    """Stretch hashes that all fall into one of ``hash_ranges`` ranges over all 64 bits.

    ``hash_ranges`` is a power of two.
    """
    return hashes if hash_ranges == 1 else hashes << np.uint64(hash_ranges.bit_length() - 1)
