"""Encode, decode and search segment blocks in numpy. Every step is for all blocks at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dedup.kernel._numpy_keys import Bools, Column, chunks, equal, spread
from dedup.kernel.arrays import I64, U8, U64, offsets_of

_INT64_MAX = np.iinfo(np.int64).max

# The header of a block: format, flags, number of keys.
_FORMAT, _ONE_LENGTH, _WIDE_TIMES, _DIGESTS = 1, 1, 2, 4
_DIGEST_BYTES = 8


def _gather(data: U8, dtype: str, at: I64) -> npt.NDArray[np.generic]:
    width = np.dtype(dtype).itemsize
    if len(data) < width or len(at) == 0:
        return np.empty(0, dtype)
    return np.ndarray((len(data) - width + 1,), dtype, data, strides=(1,))[at]


class _Blocks:
    """All entries of all blocks, as flat arrays. Raises ValueError for the first damaged block."""

    def __init__(self, data: U8, offsets: I64) -> None:
        starts, sizes = offsets[:-1], np.diff(offsets)
        self.bad = np.zeros(len(sizes), bool)
        self._need(sizes >= 8)
        at = np.where(self.bad, 0, starts)
        n, flags = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
        first = np.zeros(len(sizes), np.int64)
        ok = np.flatnonzero(~self.bad)
        n[ok] = _gather(data, "<u2", at[ok] + 2)
        flags[ok] = data[at[ok] + 1]
        first[ok] = _gather(data, "<u4", at[ok] + 4)
        self._need((self.bad) | ((data[at] if len(data) else 0) == 1))
        self._need((flags & ~7 == 0) & (n > 0))
        fixed = (flags & 1) == 1
        width = np.where(flags & 2, 8, 4)
        head = np.where(fixed, 8, 4 + 4 * n)
        digested = (flags & _DIGESTS) != 0
        before_keys = head + n * (width + np.where(digested, _DIGEST_BYTES, 0))
        self._need(before_keys <= sizes)
        n[self.bad] = before_keys[self.bad] = 0
        self.counts = n
        self.keys_at = starts + before_keys
        self.ends = offsets[1:]
        block, k = spread(n)
        length_at = starts[block] + 4 + 4 * np.where(fixed[block], 0, k)
        self.lengths = _gather(data, "<u4", length_at).astype(np.int64)
        ends = np.cumsum(self.lengths)
        self.first = np.cumsum(n) - n
        before = np.r_[0, ends][self.first]
        total = np.r_[0, ends][self.first + n] - before
        self._need(before_keys + total == sizes)
        self.starts = (starts + before_keys - before)[block] + ends - self.lengths
        wide = width[block] == 8
        time_at = starts[block] + head[block] + width[block] * k
        self.times = np.zeros(len(block), np.uint64)
        self.times[~wide] = _gather(data, "<u4", time_at[~wide])
        self.times[wide] = _gather(data, "<u8", time_at[wide])
        beside = digested[block]
        digest_at = (starts + head + n * width)[block] + _DIGEST_BYTES * k
        self.digests = np.zeros(len(block), np.uint64)
        self.digests[beside] = _gather(data, "<u8", digest_at[beside])
        self.bad[block[self.times > _INT64_MAX]] = True
        if self.bad.any():
            raise ValueError(f"block {np.argmax(self.bad)} is damaged")

    def _need(self, good: Bools) -> None:
        self.bad |= ~good


def blocks_find(
    data: U8,
    block_offsets: I64,
    query_block: I64,
    q_data: U8,
    q_offsets: I64,
    digests: U64 | None = None,
) -> I64:
    if digests is not None:
        digests[:] = 0
    blocks = _Blocks(data, block_offsets)
    out = np.full(len(query_block), -1, np.int64)
    entries, queries = Column(data, block_offsets), Column(q_data, q_offsets)
    entries.starts, entries.lengths = blocks.starts, blocks.lengths
    counts = blocks.counts[query_block]
    for rows in chunks(counts):
        row, position = spread(counts[rows])
        qi = row + rows.start
        ei = blocks.first[query_block[qi]] + position
        hit = np.flatnonzero(equal(queries, qi, entries, ei))
        # Assign backwards, so that the first of several equal entries remains.
        out[qi[hit[::-1]]] = blocks.times[ei[hit[::-1]]].astype(np.int64)
        if digests is not None:
            digests[qi[hit[::-1]]] = blocks.digests[ei[hit[::-1]]]
    return out


def _scatter(out: U8, at: I64, values: npt.NDArray[np.generic]) -> None:
    width = values.dtype.itemsize
    out[at[:, None] + np.arange(width)] = np.frombuffer(values.tobytes(), np.uint8).reshape(
        -1, width
    )


def _copy(out: U8, out_at: I64, data: U8, at: I64, sizes: I64) -> None:
    row, position = spread(sizes)
    out[out_at[row] + position] = data[at[row] + position]


def blocks_encode(
    data: U8, offsets: I64, times_ms: I64, starts: I64, wide_times: bool, digests: U64 | None = None
) -> tuple[U8, I64]:
    counts, lengths = np.diff(starts), np.diff(offsets)
    width = 8 if wide_times else 4
    digest_bytes = 0 if digests is None else _DIGEST_BYTES
    block, k = spread(counts)
    uneven = np.bincount(block, lengths != lengths[starts[:-1]][block], len(counts))
    same = uneven == 0
    key_bytes = np.diff(offsets[starts])
    head = 4 + np.where(same, 4, 4 * counts)
    before_keys = head + (width + digest_bytes) * counts
    out_offsets = offsets_of(before_keys + key_bytes)
    at = out_offsets[:-1]
    out = np.empty(int(out_offsets[-1]), np.uint8)
    flags = same * _ONE_LENGTH + (_WIDE_TIMES if wide_times else 0)
    flags += 0 if digests is None else _DIGESTS
    _scatter(out, at, (_FORMAT | flags << 8 | counts << 16).astype("<u4"))
    written = ~same[block] | (k == 0)
    _scatter(out, (at[block] + 4 + 4 * k)[written], lengths[written].astype("<u4"))
    _scatter(out, (at + head)[block] + width * k, times_ms.astype(f"<u{width}"))
    if digests is not None:
        digest_at = (at + head + width * counts)[block] + _DIGEST_BYTES * k
        _scatter(out, digest_at, digests.astype("<u8"))
    _copy(out, at + before_keys, data, offsets[starts[:-1]], key_bytes)
    return out, out_offsets


def blocks_decode(data: U8, block_offsets: I64) -> tuple[U8, I64, I64]:
    blocks = _Blocks(data, block_offsets)
    offsets = offsets_of(blocks.lengths)
    out = np.empty(int(offsets[-1]), np.uint8)
    sizes = blocks.ends - blocks.keys_at
    _copy(out, np.cumsum(sizes) - sizes, data, blocks.keys_at, sizes)
    return out, offsets, blocks.times.astype(np.int64)


def blocks_digests(data: U8, block_offsets: I64) -> U64:
    return _Blocks(data, block_offsets).digests
