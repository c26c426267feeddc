"""SipHash-1-3, the split-block Bloom filter and checksums of its pages in numpy."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from dedup.kernel.arrays import I64, U8, U32, U64

#: Bytes that SipHash absorbs at a time.
WORD_BYTES = 8
#: For fewer keys than this, a Python loop over words is faster than calls of numpy.
FEW = 3

_MASK = 2**64 - 1

#: Odd constants of the Parquet split-block Bloom filter, one per 32-bit lane.
SALTS = np.array(
    [
        0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D,
        0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
    ],
    np.uint32,
)  # fmt: skip


def words_of(data: U8) -> U64:
    """Return the little-endian 64-bit word that starts at each byte. Zeros follow the last byte."""
    padded = np.zeros(len(data) + WORD_BYTES, np.uint8)
    padded[: len(data)] = data
    return np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))


# ---- hashing ----


def _rotate(x: U64, bits: int) -> U64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _sip_round(v0: U64, v1: U64, v2: U64, v3: U64) -> tuple[U64, U64, U64, U64]:
    v0 = v0 + v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = v2 + v3
    v3 = _rotate(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotate(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _sip_words(v: list[int], words: Sequence[int]) -> list[int]:
    """Absorb the words of one key into a SipHash state in plain Python, with one round per word."""
    v0, v1, v2, v3 = v
    for m in words:
        v3 ^= m
        v0 = (v0 + v1) & _MASK
        v1 = ((v1 << 13) & _MASK | v1 >> 51) ^ v0
        v0 = (v0 << 32) & _MASK | v0 >> 32
        v2 = (v2 + v3) & _MASK
        v3 = ((v3 << 16) & _MASK | v3 >> 48) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = ((v3 << 21) & _MASK | v3 >> 43) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = ((v1 << 17) & _MASK | v1 >> 47) ^ v2
        v2 = (v2 << 32) & _MASK | v2 >> 32
        v0 ^= m
    return [v0, v1, v2, v3]


def hash64(data: U8, offsets: I64, key: bytes) -> U64:
    n = len(offsets) - 1
    k0, k1 = struct.unpack("<QQ", key)
    starts, lengths = offsets[:-1], np.diff(offsets)
    words = words_of(data)
    # Sort the longest keys first, so that the keys with words left are always a prefix.
    full = lengths // WORD_BYTES
    order = np.argsort(-full, kind="stable")
    counts, at = full[order], starts[order]
    state = np.empty((4, n), np.uint64)
    initial = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    for lane, (constant, half) in enumerate(zip(initial, (k0, k1, k0, k1), strict=True)):
        state[lane] = constant ^ half
    position = 0
    while (active := int(np.searchsorted(-counts, -position, side="left"))) > FEW:
        m = words[at[:active] + WORD_BYTES * position]
        v0, v1, v2, v3 = (state[lane, :active] for lane in range(4))
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3 ^ m)
        state[0, :active] = v0 ^ m
        state[1, :active], state[2, :active], state[3, :active] = v1, v2, v3
        position += 1
    for i in range(active):
        low, high = int(at[i]) + WORD_BYTES * position, int(at[i]) + WORD_BYTES * int(counts[i])
        rest = np.frombuffer(data[low:high].tobytes(), "<u8").tolist()
        state[:, i] = _sip_words(state[:, i].tolist(), rest)
    tail_bytes = (lengths[order] % WORD_BYTES).astype(np.uint64)
    tail = words[at + WORD_BYTES * counts] & (
        (np.uint64(1) << (tail_bytes * np.uint64(8))) - np.uint64(1)
    )
    m = tail | (lengths[order].astype(np.uint64) << np.uint64(56))
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3 ^ m)
    v0, v2 = v0 ^ m, v2 ^ np.uint64(0xFF)
    for _ in range(3):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    out = np.empty(n, np.uint64)
    out[order] = v0 ^ v1 ^ v2 ^ v3
    return out


# ---- split-block Bloom filter ----


def block_index(hashes: U64, blocks: int) -> I64:
    """Return the block of each hash in a filter of ``blocks`` blocks."""
    return (((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)).astype(np.int64)


def lane_masks(hashes: U64) -> U32:
    """Return the bits that each hash sets in its block, shape (n, 8)."""
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return np.uint32(1) << ((low[:, None] * SALTS) >> np.uint32(27))


def filter_add(bits: U32, hashes: U64) -> None:
    if not bits.flags.writeable:  # `ufunc.at` writes to it
        raise ValueError("bits must be writable")
    words = block_index(hashes, len(bits) // 8)[:, None] * 8 + np.arange(8)
    np.bitwise_or.at(bits, words.ravel(), lane_masks(hashes).ravel())


def filter_probe(filters: Sequence[U32], hashes: U64) -> U64:
    out = np.zeros(len(hashes), np.uint64)
    masks = lane_masks(hashes)
    for i, bits in enumerate(filters):
        lanes = bits.reshape(-1, 8)[block_index(hashes, len(bits) // 8)]
        hit = ((lanes & masks) == masks).all(axis=1)
        out |= hit.astype(np.uint64) << np.uint64(i)
    return out


# ---- pages of a filter ----


def _multipliers(count: int) -> U64:
    """Return numbers that SplitMix64 makes from a seed of digits of pi, odd except the first."""
    step = np.arange(1, count + 1, dtype=np.uint64)
    z = np.uint64(0x243F6A8885A308D3) + step * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    z[1:] |= np.uint64(1)
    return z


#: The multipliers M of `Kernel.page_sums`, enough for the largest page of 64 KiB.
_M = _multipliers(65536 // WORD_BYTES + 1)


def page_sums(data: U8, page_bytes: int) -> U64:
    count = -(-len(data) // page_bytes)
    padded = np.zeros(count * page_bytes, np.uint8)
    padded[: len(data)] = data
    words = padded.view("<u8").astype(np.uint64, copy=False)
    in_page = page_bytes // WORD_BYTES
    folded = (words ^ (words >> np.uint64(32))).reshape(count, in_page)
    sums: U64 = folded @ _M[1 : in_page + 1] + _M[0]
    return sums


def filter_pages(hashes: U64, blocks: int, page_blocks: int) -> tuple[I64, I64]:
    page = block_index(hashes, blocks) // page_blocks
    first = np.flatnonzero(np.diff(page, prepend=-1))
    return page[first], np.r_[first, len(hashes)].astype(np.int64, copy=False)


def filter_probe_pages(
    bits: U32, pages: I64, starts: I64, hashes: U64, blocks: int, page_blocks: int
) -> U8:
    place = np.repeat(np.arange(len(pages)), np.diff(starts))
    block = block_index(hashes, blocks) - pages[place] * page_blocks
    masks = lane_masks(hashes)
    lanes = bits.reshape(-1, 8)[place * page_blocks + block]
    hit: U8 = ((lanes & masks) == masks).all(axis=1).astype(np.uint8)
    return hit
