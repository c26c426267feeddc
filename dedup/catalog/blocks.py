"""Segment blocks: about 64 record IDs with their times, packed into one value. No I/O.

Blocks make writing, merging and reading a segment work on arrays; one entry per ID would cost five
times as much. The byte layout is in ``FORMATS.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from dedup.core.keys import Keys
from dedup.core.ports import I64, U64

BLOCK_FORMAT = 1
#: Mean number of IDs in a block: half as many make lookups slower, twice as many gain little.
IDS_PER_BLOCK = 64
SAME_LENGTH = 1
WIDE_TIMES = 2

_HEAD = np.dtype([("format", "u1"), ("flags", "u1"), ("count", "<u2"), ("length", "<u4")])
_SHORT_HEAD_BYTES = 4
_MAX_IN_BLOCK = 0xFFFF


def block_count(count: int) -> int:
    """Return the number of blocks over which ``count`` IDs are spread, >= 1."""
    return max(1, -(-count // IDS_PER_BLOCK))


def block_numbers(hashes: U64, nblocks: int) -> I64:
    """Return the block of each hash, shape (n,), in [0, nblocks), rising with the hash."""
    return (((hashes >> np.uint64(32)) * np.uint64(nblocks)) >> np.uint64(32)).astype(np.int64)


def encode_blocks(
    keys: Keys, hashes: U64, offsets_ms: I64, *, wide_times: bool
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (entry key, block) for every block that holds IDs, in rising order of entry keys.

    Parameters
    ----------
    keys : Keys
        n keys, sorted by (hash, key bytes).
    hashes : ndarray of uint64, shape (n,)
        Their hashes, rising.
    offsets_ms : ndarray of int64, shape (n,)
        Time of each key after the start of the bucket, >= 0; below 2**32 unless ``wide_times``.
    wide_times : bool
        Store times in 8 bytes instead of 4.

    Raises
    ------
    ValueError
        When more than 65,535 IDs fall in one block, which no keyed hash produces.
    """
    if len(keys) == 0:
        return
    numbers = block_numbers(hashes, block_count(len(keys)))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(numbers)) + 1, [len(keys)]))
    counts = np.diff(starts)
    if int(counts.max()) > _MAX_IN_BLOCK:
        raise ValueError(f"{counts.max()} IDs fall in one block: these are not hashes of the IDs")

    lengths = keys.lengths
    shortest = np.minimum.reduceat(lengths, starts[:-1])
    same = shortest == np.maximum.reduceat(lengths, starts[:-1])
    heads = np.zeros(len(counts), _HEAD)
    heads["format"] = BLOCK_FORMAT
    heads["flags"] = same * SAME_LENGTH + (WIDE_TIMES if wide_times else 0)
    heads["count"] = counts
    heads["length"] = shortest

    width = 8 if wide_times else 4
    time_bytes = offsets_ms.astype(f"<u{width}").tobytes()
    length_bytes = b"" if same.all() else lengths.astype("<u4").tobytes()
    key_bytes = keys.data.tobytes()
    entry_keys, head_bytes = numbers[starts[:-1]].astype(">u4").tobytes(), heads.tobytes()
    ends, key_ends, uniform = starts.tolist(), keys.offsets[starts].tolist(), same.tolist()
    size = _HEAD.itemsize
    for i, is_same in enumerate(uniform):
        first, last = ends[i], ends[i + 1]
        head = head_bytes[i * size : (i + 1) * size]
        if not is_same:
            head = head[:_SHORT_HEAD_BYTES] + length_bytes[4 * first : 4 * last]
        yield (
            entry_keys[4 * i : 4 * i + 4],
            head
            + time_bytes[width * first : width * last]
            + key_bytes[key_ends[i] : key_ends[i + 1]],
        )


def ids_in_block(block: bytes) -> int:
    """Return the number of IDs that a block says it holds."""
    return int.from_bytes(block[2:4], "little")


def decode_blocks(blocks: Sequence[bytes]) -> tuple[Keys, I64]:
    """Return the keys of blocks, one block after another, and their times.

    Returns
    -------
    keys : Keys
        All n keys.
    offsets_ms : ndarray of int64, shape (n,)
        Time of each key after the start of the bucket.

    Raises
    ------
    ValueError
        When a block is not exactly what ``encode_blocks`` makes; the text says which.
    """
    times: list[bytes] = []
    lengths: list[bytes] = []
    data: list[bytes] = []
    widths: set[int] = set()
    for i, block in enumerate(blocks):
        if len(block) < _HEAD.itemsize:
            raise ValueError(f"block {i} of {len(blocks)} is cut off after {len(block)} bytes")
        form, flags, count, length = _unpack_head(block)
        if form != BLOCK_FORMAT or flags & ~(SAME_LENGTH | WIDE_TIMES) or count == 0:
            raise ValueError(
                f"block {i} of {len(blocks)} has format {form}, flags {flags}, {count} IDs: "
                "damaged, or written by a newer version"
            )
        width = 8 if flags & WIDE_TIMES else 4
        if flags & SAME_LENGTH:
            at = _HEAD.itemsize
            lengths.append(block[_SHORT_HEAD_BYTES:at] * count)
        else:
            at = _SHORT_HEAD_BYTES + 4 * count
            lengths.append(block[_SHORT_HEAD_BYTES:at])
            length = -1
        end = at + width * count
        widths.add(width)
        times.append(block[at:end])
        data.append(block[end:])
        if len(block) < end or (length >= 0 and len(block) != end + length * count):
            raise ValueError(f"block {i} of {len(blocks)} has a wrong size, {len(block)} bytes")
    if len(widths) > 1:
        raise ValueError("the blocks mix times of 4 and of 8 bytes")

    key_lengths = np.frombuffer(b"".join(lengths), "<u4")
    offsets = np.zeros(len(key_lengths) + 1, np.int64)
    np.cumsum(key_lengths, out=offsets[1:])
    key_data = np.frombuffer(b"".join(data), np.uint8)
    if offsets[-1] != len(key_data):
        raise ValueError(f"keys take {len(key_data)} bytes, their lengths say {offsets[-1]}")
    dtype = f"<u{widths.pop() if widths else 4}"
    return Keys(key_data, offsets), np.frombuffer(b"".join(times), dtype).astype(np.int64)


_unpack_head = struct.Struct("<BBHI").unpack_from
