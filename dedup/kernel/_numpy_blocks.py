"""Look-ups in segment blocks in numpy: all entries of all blocks at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dedup.kernel import _checks
from dedup.kernel._numpy_keys import Bools, Column, chunks, equal, spread
from dedup.kernel._types import I64, U8

_INT64_MAX = np.iinfo(np.int64).max


def _damaged(block: int) -> ValueError:
    return ValueError(f"block {block} is damaged")


def _gather(data: U8, dtype: str, at: I64) -> npt.NDArray[np.generic]:
    """Return the unaligned little-endian numbers that start at these bytes."""
    width = np.dtype(dtype).itemsize
    if len(data) < width or len(at) == 0:
        return np.empty(0, dtype)
    return np.ndarray((len(data) - width + 1,), dtype, data, strides=(1,))[at]


class _Blocks:
    """Every entry of every block, flat. Raises ValueError on the first damaged block."""

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
        self._need((flags & ~3 == 0) & (n > 0))
        fixed = (flags & 1) == 1
        width = np.where(flags & 2, 8, 4)
        head = np.where(fixed, 8, 4 + 4 * n)
        self._need(head + n * width <= sizes)
        n[self.bad] = 0
        self.counts = n
        block, k = spread(n)
        length_at = starts[block] + 4 + 4 * np.where(fixed[block], 0, k)
        self.lengths = _gather(data, "<u4", length_at).astype(np.int64)
        ends = np.cumsum(self.lengths)
        self.first = np.cumsum(n) - n
        before = np.r_[0, ends][self.first]
        total = np.r_[0, ends][self.first + n] - before
        self._need(head + n * width + total == sizes)
        self.starts = (starts + head + n * width - before)[block] + ends - self.lengths
        wide = width[block] == 8
        time_at = starts[block] + head[block] + width[block] * k
        self.times = np.zeros(len(block), np.uint64)
        self.times[~wide] = _gather(data, "<u4", time_at[~wide])
        self.times[wide] = _gather(data, "<u8", time_at[wide])
        self.bad[block[self.times > _INT64_MAX]] = True
        if self.bad.any():
            raise _damaged(int(np.argmax(self.bad)))

    def _need(self, good: Bools) -> None:
        self.bad |= ~good


def blocks_find(data: U8, block_offsets: I64, query_block: I64, q_data: U8, q_offsets: I64) -> I64:
    b = _checks.keys(data, block_offsets, "block_")
    q = _checks.keys(q_data, q_offsets, "q_")
    _checks.sized(query_block, np.int64, q, "query_block")
    if q and (query_block.min() < 0 or query_block.max() >= b):
        raise ValueError(f"query_block must be 0 to {b - 1}")
    blocks = _Blocks(data, block_offsets)
    out = np.full(q, -1, np.int64)
    entries, queries = Column(data, block_offsets), Column(q_data, q_offsets)
    entries.starts, entries.lengths = blocks.starts, blocks.lengths
    counts = blocks.counts[query_block]
    for rows in chunks(counts):
        row, position = spread(counts[rows])
        qi = row + rows.start
        ei = blocks.first[query_block[qi]] + position
        hit = np.flatnonzero(equal(queries, qi, entries, ei))
        # Backwards, so that the first of several equal entries stays.
        out[qi[hit[::-1]]] = blocks.times[ei[hit[::-1]]].astype(np.int64)
    return out
