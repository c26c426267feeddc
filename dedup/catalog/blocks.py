"""Segment blocks: about 64 record IDs with their times, packed into one value. No I/O.

With blocks, the code that writes, merges and reads segments works on arrays, which costs a fifth of
one RocksDB entry per ID. ``dedup/catalog/FORMATS.md`` describes the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from dedup import kernel
from dedup.core.hash_ranges import range_indexes
from dedup.core.keys import Keys
from dedup.kernel.arrays import I64, U8, U64, offsets_of

#: Mean number of IDs in a block. Half as many make lookups slower, twice as many gain little.
IDS_PER_BLOCK = 64

_MAX_IN_BLOCK = 0xFFFF


def block_count(count: int) -> int:
    """Return the number of blocks of a segment with ``count`` IDs, at least 1."""
    return max(1, -(-count // IDS_PER_BLOCK))


def block_numbers(hashes: U64, nblocks: int) -> I64:
    """Return each hash's block, from 0 to ``nblocks`` - 1. Higher hashes have higher blocks."""
    return range_indexes(hashes, nblocks)


def block_bounds(nblocks: int, step: int) -> U64:
    """Return the lowest hash of every ``step``-th block, except block 0."""
    numbers = np.arange(step, nblocks, step, dtype=np.uint64)
    # Invert `block_numbers`, rounding up.
    highs = ((numbers << np.uint64(32)) + np.uint64(nblocks - 1)) // np.uint64(nblocks)
    return highs << np.uint64(32)


def encode_blocks(
    keys: Keys,
    hashes: U64,
    offsets_ms: I64,
    nblocks: int,
    *,
    wide_times: bool,
    digests: U64 | None = None,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (entry key, block) for every block that holds IDs, in rising order of entry keys.

    Keys are sorted by (hash, key bytes), and hashes are spread over all 64 bits. ``offsets_ms`` are
    milliseconds from the bucket's start, below 2**32 unless ``wide_times``. ``nblocks`` is the
    number of blocks of the whole segment. A call must have all IDs of every block that it makes.

    Raises ValueError if more than 65,535 IDs fall into one block. With a secret hash key this
    cannot happen in practice.
    """
    if len(keys) == 0:
        return
    # `filter_pages` spreads hashes over the pages of a filter in the same way.
    numbers, starts = kernel.filter_pages(hashes, nblocks, 1)
    counts = np.diff(starts)
    if int(counts.max()) > _MAX_IN_BLOCK:
        raise ValueError(f"{counts.max()} IDs fall in one block: these are not hashes of the IDs")

    data, ends = kernel.blocks_encode(
        keys.data, keys.offsets, offsets_ms, starts, wide_times, digests
    )
    view, bounds = data.data, ends.tolist()
    entry_keys = numbers.astype(">u4").tobytes()
    for i in range(len(counts)):
        yield entry_keys[4 * i : 4 * i + 4], bytes(view[bounds[i] : bounds[i + 1]])


def ids_in_block(block: bytes) -> int:
    return int.from_bytes(block[2:4], "little")


def joined(blocks: Collection[bytes]) -> tuple[U8, I64]:
    """Return the bytes of b blocks, one after another, and b + 1 offsets at which blocks start."""
    lengths = np.fromiter(map(len, blocks), np.int64, len(blocks))
    return np.frombuffer(b"".join(blocks), np.uint8), offsets_of(lengths)
