"""The kernel in C: allocates what ``dedup.kernel._native`` fills. All checks are in C."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dedup.kernel import _native
from dedup.kernel._types import I64, U8, U32, U64


class Compiled:
    """The C extension, with or without AVX2.

    Parameters
    ----------
    simd
        Whether AVX2 may be used where the processor has it.
    """

    def __init__(self, *, simd: bool) -> None:
        self._simd = simd and _native.HAVE_AVX2
        self.name = "native-avx2" if self._simd else "native-scalar"

    def hash64(self, data: U8, offsets: I64, key: bytes) -> U64:
        out = np.empty(max(len(offsets) - 1, 0), np.uint64)
        _native.hash64(data, offsets, key, out, self._simd)
        return out

    def filter_add(self, bits: U32, hashes: U64) -> None:
        _native.filter_add(bits, hashes, self._simd)

    def filter_probe(self, filters: Sequence[U32], hashes: U64) -> U64:
        out = np.empty(len(hashes), np.uint64)
        _native.filter_probe(filters, hashes, out, self._simd)
        return out

    def filter_pages(self, hashes: U64, blocks: int, page_blocks: int) -> tuple[I64, I64]:
        # As many as there can be; memory that stays untouched costs nothing.
        pages, starts = np.empty(len(hashes), np.int64), np.empty(len(hashes) + 1, np.int64)
        used = _native.filter_pages(hashes, blocks, page_blocks, pages, starts)
        pages.resize(used, refcheck=False)
        starts.resize(used + 1, refcheck=False)
        return pages, starts

    def filter_probe_pages(
        self, bits: U32, pages: I64, starts: I64, hashes: U64, blocks: int, page_blocks: int
    ) -> U8:
        out = np.empty(len(hashes), np.uint8)
        _native.filter_probe_pages(
            bits, pages, starts, hashes, blocks, page_blocks, out, self._simd
        )
        return out

    def page_sums(self, data: U8, page_bytes: int) -> U64:
        return np.frombuffer(_native.page_sums(data, page_bytes), np.uint64)

    def first_occurrence(self, data: U8, offsets: I64, hashes: U64) -> I64:
        out = np.empty(max(len(offsets) - 1, 0), np.int64)
        _native.first_occurrence(data, offsets, hashes, out)
        return out

    def match(
        self, b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64
    ) -> tuple[I64, I64]:
        probe, build = _native.match(b_data, b_offsets, b_hashes, p_data, p_offsets, p_hashes)
        return np.frombuffer(probe, np.int64), np.frombuffer(build, np.int64)

    def sort_keys(self, data: U8, offsets: I64, hashes: U64) -> I64:
        out = np.empty(max(len(offsets) - 1, 0), np.int64)
        _native.sort_keys(data, offsets, hashes, out)
        return out

    def take_keys(self, data: U8, offsets: I64, index: I64) -> tuple[U8, I64]:
        out_offsets = np.empty(len(index) + 1, np.int64)
        out = _native.take_keys(data, offsets, index, out_offsets)
        return np.frombuffer(out, np.uint8), out_offsets

    def blocks_find(
        self,
        data: U8,
        block_offsets: I64,
        query_block: I64,
        q_data: U8,
        q_offsets: I64,
        digests: U64 | None = None,
    ) -> I64:
        out = np.empty(max(len(q_offsets) - 1, 0), np.int64)
        _native.blocks_find(data, block_offsets, query_block, q_data, q_offsets, out, digests)
        return out

    def blocks_encode(
        self,
        data: U8,
        offsets: I64,
        times_ms: I64,
        starts: I64,
        wide_times: bool,
        digests: U64 | None = None,
    ) -> tuple[U8, I64]:
        out_offsets = np.empty(len(starts), np.int64)
        columns = data, offsets, times_ms
        out = _native.blocks_encode(*columns, starts, wide_times, out_offsets, digests)
        return np.frombuffer(out, np.uint8), out_offsets

    def blocks_decode(self, data: U8, block_offsets: I64) -> tuple[U8, I64, I64]:
        key_data, offsets, times = _native.blocks_decode(data, block_offsets)
        return (
            np.frombuffer(key_data, np.uint8),
            np.frombuffer(offsets, np.int64),
            np.frombuffer(times, np.int64),
        )

    def blocks_digests(self, data: U8, block_offsets: I64) -> U64:
        return np.frombuffer(_native.blocks_digests(data, block_offsets), np.uint64)

    def scan_verdicts(
        self, group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int
    ) -> U8:
        out = np.empty(len(group), np.uint8)
        _native.scan_verdicts(group, time_ms, known, droppable, horizon_ms, out)
        return out

    def encode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]:
        n = max(len(offsets) - 1, 0)
        out_offsets = np.empty(n + 1, np.int64)
        # As much as it can take; pages that stay untouched cost nothing.
        out = np.empty(len(data) + n, np.uint8)
        used = _native.encode_uuid(data, offsets, out, out_offsets)
        out.resize(used, refcheck=False)
        return out, out_offsets

    def decode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]:
        out_offsets = np.empty(max(len(offsets), 1), np.int64)
        # As much as UUIDs take.
        out = np.empty(len(data) // 17 * 36 + 36, np.uint8)
        _native.decode_uuid(data, offsets, out, out_offsets)
        out.resize(int(out_offsets[-1]), refcheck=False)
        return out, out_offsets
