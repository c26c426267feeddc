"""Probe a filter where it is stored, reading and checking only the pages that are needed.

Hashes in rising order touch the pages of a filter in order. So a buffer of 1 MiB probes a filter of
any size, from the page cache at the speed of memory, and keeps nothing in memory. Every page is
checked each time that it is read, because bytes on a disk can change after any check.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dedup import kernel
from dedup.core.arrays import BOOL, I64, U8, U64
from dedup.core.filter import BLOCK_BYTES, PAGE_BLOCKS, PAGE_BYTES, FilterHead

#: Pages read and probed at a time.
WINDOW_PAGES = 256

#: Fills a buffer with the bytes of the bitset from an offset on, or raises.
ReadInto = Callable[[int, memoryview], None]


def may_hold(head: FilterHead, read_into: ReadInto, hashes: U64) -> BOOL:
    """Return False only if a hash was certainly never added, shape (n,).

    Raises FilterDamaged if a page is damaged.

    Parameters
    ----------
    read_into
        Reads the filter's bitset.
    hashes
        Shape (n,), never falling.
    """
    pages, starts = kernel.filter_pages(hashes, head.blocks, PAGE_BLOCKS)
    answer = np.empty(len(hashes), np.uint8)
    buffer = np.empty(min(len(pages), WINDOW_PAGES) * PAGE_BYTES, np.uint8)
    for first in range(0, len(pages), WINDOW_PAGES):
        window = pages[first : first + WINDOW_PAGES]
        last = first + len(window)
        filled = buffer[: _read(head, read_into, window, buffer.data)]
        head.check(filled, window)
        span = slice(int(starts[first]), int(starts[last]))
        answer[span] = kernel.filter_probe_pages(
            _words(filled), window, starts[first : last + 1], hashes[span], head.blocks, PAGE_BLOCKS
        )
    return answer.view(np.bool_)


def _read(head: FilterHead, read_into: ReadInto, pages: I64, buffer: memoryview) -> int:
    """Fill the buffer with the pages, adjacent ones in one read; return the number of bytes."""
    ends = np.append(np.flatnonzero(np.diff(pages) != 1) + 1, len(pages)).tolist()
    size_bytes = head.blocks * BLOCK_BYTES
    start = filled = 0
    for end in ends:
        offset = int(pages[start]) * PAGE_BYTES
        length = min((end - start) * PAGE_BYTES, size_bytes - offset)
        read_into(offset, buffer[filled : filled + length])
        filled += length
        start = end
    return filled


def _words(filled: U8) -> npt.NDArray[np.uint32]:
    return filled.view("<u4").astype(np.uint32, copy=False)
