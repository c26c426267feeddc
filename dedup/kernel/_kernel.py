"""The functions that every path of the kernel has, and the path in C.

Only `Kernel` documents the signatures. The bodies of its methods are the path in C: they allocate
the arrays that ``dedup.kernel._native`` fills, and C checks the arguments. The module ``_numpy``
has functions of the same names and signatures, and mypy compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from dedup.kernel.arrays import I64, U8, U32, U64

try:
    _native: Any = import_module("dedup.kernel._native")
except ImportError:
    _native = None  # installed without a C compiler: use numpy


class Kernel(Protocol):
    """One path of the kernel.

    Parameters
    ----------
    name
        Value of ``dedup.kernel.PATH`` when this path is in use.
    simd
        Whether AVX2 is used.
    """

    name: str
    simd: bool

    def hash64(self, data: U8, offsets: I64, key: bytes) -> U64:
        """Return the SipHash-1-3 of n keys under a hash key of 16 bytes, shape (n,).

        J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012, with one
        compression round and three finalisation rounds, as CPython and Rust use it.
        """
        out = np.empty(max(len(offsets) - 1, 0), np.uint64)
        _native.hash64(data, offsets, key, out, self.simd)
        return out

    def filter_add(self, bits: U32, hashes: U64) -> None:
        """Add n hashes to a split-block Bloom filter, in place.

        ``bits``, shape (8 * z,), has z >= 1 blocks in the layout of Apache Parquet
        (``BloomFilter.md`` of apache/parquet-format). Hash h sets the bit
        ``(low32(h) * SALT[i]) >> 27`` of lane i in block ``(high32(h) * z) >> 32``.
        """
        _native.filter_add(bits, hashes, self.simd)

    def filter_probe(self, filters: Sequence[U32], hashes: U64) -> U64:
        """Return which filters may hold each of n hashes, as one bit per filter, shape (n,).

        Bit i is clear only if filter i certainly does not hold the hash. ``filters`` is a list of
        at most 64 filters, laid out as in `filter_add`. Their sizes may differ.
        """
        out = np.empty(len(hashes), np.uint64)
        _native.filter_probe(filters, hashes, out, self.simd)
        return out

    def filter_pages(self, hashes: U64, blocks: int, page_blocks: int) -> tuple[I64, I64]:
        """Return the pages of a filter that n hashes fall into, and the hashes of each page.

        The hashes are sorted. The filter has ``blocks`` blocks, 1 to 2**32 - 1, laid out as in
        `filter_add`. Block b is in page ``b // page_blocks``.

        Returns
        -------
        pages : shape (k,), rising
            The pages that hold the block of at least one hash.
        starts : shape (k + 1,)
            ``hashes[starts[j]:starts[j + 1]]`` fall into page ``pages[j]``.
        """
        # Allocate the most that there can be: memory that stays untouched costs nothing.
        pages, starts = np.empty(len(hashes), np.int64), np.empty(len(hashes) + 1, np.int64)
        used = _native.filter_pages(hashes, blocks, page_blocks, pages, starts)
        pages.resize(used, refcheck=False)
        starts.resize(used + 1, refcheck=False)
        return pages, starts

    def filter_probe_pages(
        self, bits: U32, pages: I64, starts: I64, hashes: U64, blocks: int, page_blocks: int
    ) -> U8:
        """Return 0 only if a filter certainly does not hold a hash, else 1, shape (n,).

        Reads only the pages that the hashes fall into: ``pages``, ``starts`` and ``hashes`` are a
        result of `filter_pages` or a slice of it, so that hash i is in page j if ``starts[j] <=
        starts[0] + i < starts[j + 1]``.

        ``bits`` has the words of exactly those pages, one page after another, ``8 * page_blocks``
        words each. Only the last page of the filter may be shorter.
        """
        out = np.empty(len(hashes), np.uint8)
        _native.filter_probe_pages(bits, pages, starts, hashes, blocks, page_blocks, out, self.simd)
        return out

    def page_sums(self, data: U8, page_bytes: int) -> U64:
        """Return a checksum of every page of ``data``, shape (ceil(n / page_bytes),).

        It is ``M[0] + sum(M[i + 1] * (w[i] ^ w[i] >> 32))`` modulo 2**64 over the little-endian
        64-bit words ``w`` of the page. It detects any change within one word, and all but 2**-64
        of arbitrary changes. It protects against damage, not against forgery. A short last page
        counts as if zeros filled it up. ``page_bytes`` is a multiple of 8, from 8 to 65,536.

        D. Lemire and O. Kaser, "Strongly universal string hashing is fast", 2014. ``M`` is from
        SplitMix64 with a fixed seed, and odd from ``M[1]`` on.
        """
        return np.frombuffer(_native.page_sums(data, page_bytes), np.uint64)

    def first_occurrence(self, data: U8, offsets: I64, hashes: U64) -> I64:
        """Return for each of n keys the position of the first key with the same bytes, shape (n,).

        Equal keys must have equal hashes. Different keys may share a hash, at a cost that grows
        with their number.
        """
        out = np.empty(max(len(offsets) - 1, 0), np.int64)
        _native.first_occurrence(data, offsets, hashes, out)
        return out

    def match(
        self, b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64
    ) -> tuple[I64, I64]:
        """Return all pairs of a probe key (``p_``) and a build key (``b_``) with the same bytes.

        As in `first_occurrence`, equal keys must have equal hashes. A key may occur several times
        on either side. The pairs are ordered by probe position, then build position.
        """
        probe, build = _native.match(b_data, b_offsets, b_hashes, p_data, p_offsets, p_hashes)
        return np.frombuffer(probe, np.int64), np.frombuffer(build, np.int64)

    def sort_keys(self, data: U8, offsets: I64, hashes: U64) -> I64:
        """Return the positions of n keys ordered by hash, then key bytes, then position.

        Bytes compare unsigned, and a prefix comes before the longer key. The shape is (n,).
        """
        out = np.empty(max(len(offsets) - 1, 0), np.int64)
        _native.sort_keys(data, offsets, hashes, out)
        return out

    def take_keys(self, data: U8, offsets: I64, index: I64) -> tuple[U8, I64]:
        """Return data and offsets of the keys at the positions ``index``, in that order.

        Positions are 0 to n - 1, in any order, and may repeat.
        """
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
        """Look q keys up in segment blocks, each in the block ``query_block`` that could hold it.

        Returns the milliseconds from the bucket's start to the key's time, or -1 if the block does
        not hold the key, shape (q,). Fills ``digests`` with the digests stored beside the keys, or
        0 if there is none. ``dedup/catalog/FORMATS.md`` describes the blocks' bytes.

        Raises ValueError if a block is damaged, even one that no key needs. The error names the
        first such block.
        """
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
        """Pack n keys and their times into b segment blocks, and return their bytes and starts.

        Parameters
        ----------
        data, offsets
            The keys, in the order of the segment.
        times_ms
            Milliseconds from the bucket's start to each key's time, not negative. They must be
            below 2**32 unless ``wide_times`` stores them in 8 bytes instead of 4.
        starts
            Shape (b + 1,), from 0 to n. Block i holds keys ``starts[i]:starts[i + 1]``, 1 to 65,535
            keys.
        digests
            Digests to store beside the keys.
        """
        out_offsets = np.empty(len(starts), np.int64)
        columns = data, offsets, times_ms
        out = _native.blocks_encode(*columns, starts, wide_times, out_offsets, digests)
        return np.frombuffer(out, np.uint8), out_offsets

    def blocks_decode(self, data: U8, block_offsets: I64) -> tuple[U8, I64, I64]:
        """Return all keys of segment blocks, and their times after the bucket's start.

        Blocks with times of 4 and of 8 bytes may be mixed. Raises ValueError if a block is damaged.
        The error names the first such block.
        """
        key_data, offsets, times = _native.blocks_decode(data, block_offsets)
        return (
            np.frombuffer(key_data, np.uint8),
            np.frombuffer(offsets, np.int64),
            np.frombuffer(times, np.int64),
        )

    def blocks_digests(self, data: U8, block_offsets: I64) -> U64:
        """Return the digests of all keys of segment blocks, in the order of `blocks_decode`.

        They are 0 in blocks without digests. Raises ValueError if a block is damaged.
        """
        return np.frombuffer(_native.blocks_digests(data, block_offsets), np.uint64)

    def scan_verdicts(
        self, group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int
    ) -> U8:
        """Judge n records of a micro-batch one by one, in arrival order per record ID.

        Returns for each record 0 (taken), 1 (duplicate) or 2 (late: dropped and not remembered). A
        record is a duplicate if it is known, or at most the horizon away from the last record taken
        in its group.

        Parameters
        ----------
        group
            Number of the record's ID, sorted.
        time_ms
            Effective times, sorted within a group.
        known
            Not 0 if an earlier micro-batch took the ID within the horizon.
        droppable
            Not 0 if the record is dropped as late unless it is a duplicate.
        """
        out = np.empty(len(group), np.uint8)
        _native.scan_verdicts(group, time_ms, known, droppable, horizon_ms, out)
        return out

    def encode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]:
        r"""Shorten UUID text to its 16 bytes, which `decode_uuid` expands again.

        A value that is a UUID in canonical text (8-4-4-4-12 lower-case hexadecimal digits) becomes
        ``b"\x01"`` + 16 bytes, and any other value ``b"\x00"`` + the value.
        """
        n = max(len(offsets) - 1, 0)
        out_offsets = np.empty(n + 1, np.int64)
        # Allocate the most that the output can take: pages that stay untouched cost nothing.
        out = np.empty(len(data) + n, np.uint8)
        used = _native.encode_uuid(data, offsets, out, out_offsets)
        out.resize(used, refcheck=False)
        return out, out_offsets

    def decode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]:
        """Return the values that `encode_uuid` shortened, and empty values for empty keys.

        Raises ValueError if `encode_uuid` cannot have made a key. The error names the first one.
        """
        out_offsets = np.empty(max(len(offsets), 1), np.int64)
        # Allocate as much as UUIDs take.
        out = np.empty(len(data) // 17 * 36 + 36, np.uint8)
        _native.decode_uuid(data, offsets, out, out_offsets)
        out.resize(int(out_offsets[-1]), refcheck=False)
        return out, out_offsets


class Compiled(Kernel):
    """The path in C; `simd` allows AVX2 if the processor has it."""

    def __init__(self, *, simd: bool) -> None:
        self.simd = simd and _native.HAVE_AVX2
        self.name = "native-avx2" if self.simd else "native-scalar"
