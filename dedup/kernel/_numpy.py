"""The kernel in numpy and Python: the reference for the C extension, and its substitute.

Hashes, filters and checksums work on whole arrays. Python loops run over words of the longest key,
over keys and over blocks. Only the C path checks its arguments, because a wrong argument would make
C access other memory.
"""

from __future__ import annotations

import re
import struct
from binascii import hexlify, unhexlify
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np

from dedup.kernel.arrays import I64, U8, U32, U64, offsets_of

name = "numpy"
simd = False

# ---- hashing ----

#: Bytes that SipHash absorbs at a time.
_WORD_BYTES = 8
#: For fewer keys than this, a Python loop over words is faster than calls of numpy.
_FEW = 3
_MASK = 2**64 - 1


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
    # The little-endian word that starts at each byte. Zeros follow the last byte.
    padded = np.append(data, np.zeros(_WORD_BYTES, np.uint8))
    words: U64 = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    # Sort the longest keys first, so that the keys with words left are always a prefix.
    full = lengths // _WORD_BYTES
    order = np.argsort(-full, kind="stable")
    counts, at = full[order], starts[order]
    state = np.empty((4, n), np.uint64)
    initial = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    for lane, (constant, half) in enumerate(zip(initial, (k0, k1, k0, k1), strict=True)):
        state[lane] = constant ^ half
    position = 0
    while (active := int(np.searchsorted(-counts, -position, side="left"))) > _FEW:
        m = words[at[:active] + _WORD_BYTES * position]
        v0, v1, v2, v3 = state[:, :active]
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3 ^ m)
        state[:, :active] = v0 ^ m, v1, v2, v3
        position += 1
    for i in range(active):
        low, high = int(at[i]) + _WORD_BYTES * position, int(at[i]) + _WORD_BYTES * int(counts[i])
        rest = np.frombuffer(data[low:high].tobytes(), "<u8").tolist()
        state[:, i] = _sip_words(state[:, i].tolist(), rest)
    tail_bytes = (lengths[order] % _WORD_BYTES).astype(np.uint64)
    tail = words[at + _WORD_BYTES * counts] & (
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


# ---- keys ----


def _keys(data: U8, offsets: I64) -> list[bytes]:
    raw = data.tobytes()
    return [raw[start:end] for start, end in pairwise(offsets.tolist())]


def _column(keys: Sequence[bytes]) -> tuple[U8, I64]:
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    return np.frombuffer(bytearray().join(keys), np.uint8), offsets_of(lengths)


def first_occurrence(data: U8, offsets: I64, hashes: U64) -> I64:
    seen: dict[bytes, int] = {}
    firsts = [seen.setdefault(key, i) for i, key in enumerate(_keys(data, offsets))]
    return np.array(firsts, np.int64)


def match(
    b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64
) -> tuple[I64, I64]:
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for i, key in enumerate(_keys(b_data, b_offsets)):
        places[key].append(i)
    found = [places.get(key, ()) for key in _keys(p_data, p_offsets)]
    probe = np.repeat(np.arange(len(found)), [len(build) for build in found])
    return probe, np.fromiter(chain.from_iterable(found), np.int64, len(probe))


def sort_keys(data: U8, offsets: I64, hashes: U64) -> I64:
    order = np.argsort(hashes, kind="stable").astype(np.int64, copy=False)
    sorted_hashes = hashes[order]
    bounds = np.flatnonzero(np.r_[True, sorted_hashes[1:] != sorted_hashes[:-1], True])
    runs = np.flatnonzero(np.diff(bounds) > 1).tolist()
    keys = _keys(data, offsets) if runs else []
    for r in runs:
        part = slice(int(bounds[r]), int(bounds[r + 1]))
        order[part] = sorted(order[part].tolist(), key=keys.__getitem__)
    return order


def take_keys(data: U8, offsets: I64, index: I64) -> tuple[U8, I64]:
    starts, ends = offsets[index].tolist(), offsets[index + 1].tolist()
    return _column([data[a:b].tobytes() for a, b in zip(starts, ends, strict=True)])


# ---- UUID text ----

_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def encode_uuid(data: U8, offsets: I64) -> tuple[U8, I64]:
    return _column([_encoded(value) for value in _keys(data, offsets)])


def _encoded(value: bytes) -> bytes:
    if _UUID.fullmatch(value):
        return b"\1" + unhexlify(value.replace(b"-", b""))
    return b"\0" + value


def decode_uuid(data: U8, offsets: I64) -> tuple[U8, I64]:
    return _column([_decoded(key, number) for number, key in enumerate(_keys(data, offsets))])


def _decoded(key: bytes, number: int) -> bytes:
    tag, value = key[:1], key[1:]
    if tag == b"\1" and len(value) == 16:
        digits = hexlify(value)
        groups = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
        return b"-".join(groups)
    if tag not in (b"", b"\0"):
        raise ValueError(f"key {number} is none that encode_uuid makes")
    return value


# ---- verdicts ----


def scan_verdicts(group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int) -> U8:
    verdicts = []
    taken: tuple[int, int] | None = None
    columns = (column.tolist() for column in (group, time_ms, known, droppable))
    for number, at_ms, is_known, is_droppable in zip(*columns, strict=True):
        near = taken is not None and taken[0] == number and at_ms - taken[1] <= horizon_ms
        if is_known or near:
            verdicts.append(1)
        elif is_droppable:
            verdicts.append(2)
        else:
            verdicts.append(0)
            taken = number, at_ms
    return np.array(verdicts, np.uint8)


# ---- split-block Bloom filter ----

#: Odd constants of the Parquet split-block Bloom filter, one per 32-bit lane.
_SALTS = np.array(
    [
        0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D,
        0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
    ],
    np.uint32,
)  # fmt: skip


def _block_index(hashes: U64, blocks: int) -> I64:
    """Return the block of each hash in a filter of ``blocks`` blocks."""
    return (((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)).astype(np.int64)


def _lane_masks(hashes: U64) -> U32:
    """Return the bits that each hash sets in its block, shape (n, 8)."""
    low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return np.uint32(1) << ((low[:, None] * _SALTS) >> np.uint32(27))


def filter_add(bits: U32, hashes: U64) -> None:
    if not bits.flags.writeable:  # `ufunc.at` writes to it
        raise ValueError("bits must be writable")
    words = _block_index(hashes, len(bits) // 8)[:, None] * 8 + np.arange(8)
    np.bitwise_or.at(bits, words.ravel(), _lane_masks(hashes).ravel())


def filter_probe(filters: Sequence[U32], hashes: U64) -> U64:
    out = np.zeros(len(hashes), np.uint64)
    masks = _lane_masks(hashes)
    for i, bits in enumerate(filters):
        lanes = bits.reshape(-1, 8)[_block_index(hashes, len(bits) // 8)]
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
_M = _multipliers(65536 // _WORD_BYTES + 1)


def page_sums(data: U8, page_bytes: int) -> U64:
    count = -(-len(data) // page_bytes)
    padded = np.zeros(count * page_bytes, np.uint8)
    padded[: len(data)] = data
    words = padded.view("<u8").astype(np.uint64, copy=False)
    in_page = page_bytes // _WORD_BYTES
    folded = (words ^ (words >> np.uint64(32))).reshape(count, in_page)
    sums: U64 = folded @ _M[1 : in_page + 1] + _M[0]
    return sums


def filter_pages(hashes: U64, blocks: int, page_blocks: int) -> tuple[I64, I64]:
    page = _block_index(hashes, blocks) // page_blocks
    first = np.flatnonzero(np.diff(page, prepend=-1))
    return page[first], np.r_[first, len(hashes)].astype(np.int64, copy=False)


def filter_probe_pages(
    bits: U32, pages: I64, starts: I64, hashes: U64, blocks: int, page_blocks: int
) -> U8:
    place = np.repeat(np.arange(len(pages)), np.diff(starts))
    block = _block_index(hashes, blocks) - pages[place] * page_blocks
    masks = _lane_masks(hashes)
    lanes = bits.reshape(-1, 8)[place * page_blocks + block]
    hit: U8 = ((lanes & masks) == masks).all(axis=1).astype(np.uint8)
    return hit


# ---- segment blocks ----

_HEADER = struct.Struct("<BBH")
_FORMAT, _ONE_LENGTH, _WIDE_TIMES, _DIGESTS = 1, 1, 2, 4


class _Block(NamedTuple):
    """The entries of a segment block."""

    keys: list[bytes]
    times_ms: tuple[int, ...]
    digests: tuple[int, ...]


def _blocks(data: U8, offsets: I64) -> Iterator[_Block]:
    for number, block in enumerate(_keys(data, offsets)):
        try:
            yield _block(block)
        except (ValueError, struct.error):
            raise ValueError(f"block {number} is damaged") from None


def _block(data: bytes) -> _Block:
    """Return the entries of a block. Raises ValueError or struct.error if it is damaged."""
    version, flags, count = _HEADER.unpack_from(data)
    lengths = 1 if flags & _ONE_LENGTH else count
    kinds = f"{lengths}I{count}{'Q' if flags & _WIDE_TIMES else 'I'}"
    columns = struct.Struct(f"<{kinds}{count if flags & _DIGESTS else 0}Q")
    numbers = columns.unpack_from(data, _HEADER.size)
    times_ms = numbers[lengths : lengths + count]
    key_lengths = numbers[:lengths] * (count if flags & _ONE_LENGTH else 1)
    ends = list(accumulate(key_lengths, initial=_HEADER.size + columns.size))
    is_known = version == _FORMAT and not flags & ~(_ONE_LENGTH | _WIDE_TIMES | _DIGESTS)
    if not is_known or not count or ends[-1] != len(data) or max(times_ms) >= 1 << 63:
        raise ValueError
    keys = [data[start:end] for start, end in pairwise(ends)]
    return _Block(keys, times_ms, numbers[lengths + count :] or (0,) * count)


def blocks_find(
    data: U8,
    block_offsets: I64,
    query_block: I64,
    q_data: U8,
    q_offsets: I64,
    digests: U64 | None = None,
) -> I64:
    times_ms = np.full(len(query_block), -1, np.int64)
    if digests is not None:
        digests[:] = 0
    asked: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for query, key in enumerate(_keys(q_data, q_offsets)):
        asked[int(query_block[query])].append((query, key))
    for number, block in enumerate(_blocks(data, block_offsets)):
        places: dict[bytes, int] = {}
        for place, key in enumerate(block.keys):
            places.setdefault(key, place)
        for query, key in asked[number]:
            if key in places:
                times_ms[query] = block.times_ms[places[key]]
                if digests is not None:
                    digests[query] = block.digests[places[key]]
    return times_ms


def blocks_encode(
    data: U8, offsets: I64, times_ms: I64, starts: I64, wide_times: bool, digests: U64 | None = None
) -> tuple[U8, I64]:
    lengths = np.diff(offsets).astype("<u4")
    times = times_ms.astype("<u8" if wide_times else "<u4")
    beside = np.empty(0, "<u8") if digests is None else digests.astype("<u8")
    flags = (_WIDE_TIMES if wide_times else 0) | (0 if digests is None else _DIGESTS)
    blocks = []
    for start, end in pairwise(starts.tolist()):
        span = slice(start, end)
        one_length = bool((lengths[span] == lengths[start]).all())
        parts = (
            _HEADER.pack(_FORMAT, flags | one_length * _ONE_LENGTH, end - start),
            (lengths[start : start + 1] if one_length else lengths[span]).tobytes(),
            times[span].tobytes(),
            beside[span].tobytes(),
            data[offsets[start] : offsets[end]].tobytes(),
        )
        blocks.append(b"".join(parts))
    return _column(blocks)


def blocks_decode(data: U8, block_offsets: I64) -> tuple[U8, I64, I64]:
    blocks = list(_blocks(data, block_offsets))
    times_ms = np.array([time for block in blocks for time in block.times_ms], np.int64)
    return *_column([key for block in blocks for key in block.keys]), times_ms


def blocks_digests(data: U8, block_offsets: I64) -> U64:
    blocks = _blocks(data, block_offsets)
    return np.array([digest for block in blocks for digest in block.digests], np.uint64)
