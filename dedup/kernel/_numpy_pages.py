"""Checksums of pages, and page-by-page probing of filters, in numpy."""

from __future__ import annotations

import numpy as np

from dedup.kernel import _checks
from dedup.kernel._numpy_hash import block_index, lane_masks
from dedup.kernel.arrays import I64, U8, U32, U64

_WORD_BYTES = 8


def _multipliers(count: int) -> U64:
    """Return SplitMix64's numbers for the first digits of pi, all but the first made odd."""
    step = np.arange(1, count + 1, dtype=np.uint64)
    z = np.uint64(0x243F6A8885A308D3) + step * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    z[1:] |= np.uint64(1)
    return z


_M = _multipliers(_checks.MAX_PAGE_BYTES // _WORD_BYTES + 1)


def page_sums(data: U8, page_bytes: int) -> U64:
    _checks.array(data, np.uint8, "data")
    _checks.integer(page_bytes, 8, _checks.MAX_PAGE_BYTES, "page_bytes")
    if page_bytes % _WORD_BYTES:
        raise ValueError("page_bytes must be a multiple of 8")
    count = -(-len(data) // page_bytes)
    padded = np.zeros(count * page_bytes, np.uint8)
    padded[: len(data)] = data
    words = padded.view("<u8").astype(np.uint64, copy=False)
    in_page = page_bytes // _WORD_BYTES
    folded = (words ^ (words >> np.uint64(32))).reshape(count, in_page)
    sums: U64 = folded @ _M[1 : in_page + 1] + _M[0]
    return sums


def _sizes(blocks: int, page_blocks: int) -> None:
    _checks.integer(blocks, 1, _checks.MAX_BLOCKS, "blocks")
    _checks.integer(page_blocks, 1, _checks.MAX_BLOCKS, "page_blocks")


def filter_pages(hashes: U64, blocks: int, page_blocks: int) -> tuple[I64, I64]:
    _checks.array(hashes, np.uint64, "hashes")
    _sizes(blocks, page_blocks)
    if bool((hashes[1:] < hashes[:-1]).any()):
        raise ValueError("hashes must never fall")
    page = block_index(hashes, blocks) // page_blocks
    first = np.flatnonzero(np.diff(page, prepend=-1))
    return page[first], np.r_[first, len(hashes)].astype(np.int64, copy=False)


def filter_probe_pages(
    bits: U32, pages: I64, starts: I64, hashes: U64, blocks: int, page_blocks: int
) -> U8:
    _checks.array(pages, np.int64, "pages")
    _checks.array(starts, np.int64, "starts")
    _sizes(blocks, page_blocks)
    k, last = len(pages), (blocks - 1) // page_blocks
    if len(starts) != k + 1:
        raise ValueError(f"starts must have {k + 1} items, not {len(starts)}")
    if starts[0] < 0 or bool((starts[1:] < starts[:-1]).any()):
        raise ValueError("starts must never fall and not be negative")
    if k and (pages[0] < 0 or pages[-1] > last or bool((pages[1:] <= pages[:-1]).any())):
        raise ValueError(f"pages must rise, from 0 or more to {last} or less")
    # Only the last page of the filter can be short.
    held = k * page_blocks - (max(0, (int(pages[-1]) + 1) * page_blocks - blocks) if k else 0)
    _checks.sized(bits, np.uint32, 8 * held, "bits")
    _checks.sized(hashes, np.uint64, int(starts[-1]) - int(starts[0]), "hashes")
    place = np.repeat(np.arange(k), np.diff(starts))
    block = block_index(hashes, blocks) - pages[place] * page_blocks
    outside = (block < 0) | (block >= page_blocks)
    if bool(outside.any()):
        raise ValueError(f"hashes[{int(np.argmax(outside))}] does not lie in its page")
    masks = lane_masks(hashes)
    found = bits.reshape(-1, 8)[place * page_blocks + block]
    hit: U8 = ((found & masks) == masks).all(axis=1).astype(np.uint8)
    return hit
