"""The functions that every path of the kernel has, and the path in C.

Only `Kernel` documents the signatures. The bodies of its methods are the path in C. They allocate
the arrays that the C module ``dedup.kernel._native`` fills, and the C module checks the arguments.
The Python module ``_numpy`` has functions of the same names and signatures, and mypy compares them.
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
    """One path of the kernel: a complete set of its functions.

    Parameters
    ----------
    name
        Value of ``dedup.kernel.PATH`` when this path is in use.
    simd
        Whether the functions use AVX2 instructions.
    """

    name: str
    simd: bool

    def hash64(self, data: U8, offsets: I64, key: bytes) -> U64:
        """Return the SipHash-1-3 of each of n keys, under a secret ``key`` of 16 bytes.

        SipHash is by J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012.
        This variant has one compression and three finalisation rounds, as in CPython and Rust.
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
        """Return for each of n hashes which filters may hold it, as one bit per filter.

        Bit i is 0 only if filter i certainly does not hold the hash. ``filters`` is a list of at
        most 64 filters with the layout of `filter_add`. Their sizes may differ.
        """
        out = np.empty(len(hashes), np.uint64)
        _native.filter_probe(filters, hashes, out, self.simd)
        return out

    def filter_pages(self, hashes: U64, blocks: int, page_blocks: int) -> tuple[I64, I64]:
        """Return the pages of a filter that n sorted hashes fall into, and the hashes of each page.

        The filter has the layout of `filter_add`, with ``blocks`` blocks, 1 to 2**32 - 1. Block b
        is in page ``b // page_blocks``.

        Returns
        -------
        pages : shape (k,), rising
            The pages that hold the block of at least one hash.
        starts : shape (k + 1,)
            ``hashes[starts[j]:starts[j + 1]]`` fall into page ``pages[j]``.
        """
        # Allocate the largest possible result, because memory that stays untouched costs nothing.
        pages, starts = np.empty(len(hashes), np.int64), np.empty(len(hashes) + 1, np.int64)
        used = _native.filter_pages(hashes, blocks, page_blocks, pages, starts)
        pages.resize(used, refcheck=False)
        starts.resize(used + 1, refcheck=False)
        return pages, starts

    def filter_probe_pages(
        self, bits: U32, pages: I64, starts: I64, hashes: U64, blocks: int, page_blocks: int
    ) -> U8:
        """Return for each of n hashes 0 if a filter certainly does not hold it, else 1.

        Reads only the pages of the filter that the hashes fall into. First call `filter_pages`, and
        then this function for all or some of the pages: with ``pages[a:b]``, ``starts[a:b + 1]``
        and ``hashes[starts[a]:starts[b]]``.

        ``bits`` has the words of exactly these pages, one page after another. A page has
        ``8 * page_blocks`` words, or fewer if it is the last page of the filter.
        """
        out = np.empty(len(hashes), np.uint8)
        _native.filter_probe_pages(bits, pages, starts, hashes, blocks, page_blocks, out, self.simd)
        return out

    def page_sums(self, data: U8, page_bytes: int) -> U64:
        """Return a checksum of every page of ``data``, shape (ceil(n / page_bytes),).

        The checksum is ``M[0] + sum(M[i + 1] * (w[i] ^ w[i] >> 32))`` modulo 2**64, where ``w`` are
        the little-endian 64-bit words of the page. It detects any change within one word, and all
        but 2**-64 of arbitrary changes. It protects against damage, not against forgery. Zeros fill
        up a short last page. ``page_bytes`` is a multiple of 8, from 8 to 65,536.

        The method is from D. Lemire and O. Kaser, "Strongly universal string hashing is fast",
        2014. The multipliers ``M`` are from SplitMix64 with a fixed seed, and odd from ``M[1]`` on.
        """
        return np.frombuffer(_native.page_sums(data, page_bytes), np.uint64)

    def first_occurrence(self, data: U8, offsets: I64, hashes: U64) -> I64:
        """Return for each of n keys the position of the first key with the same bytes.

        Equal keys must have equal hashes. Different keys may share a hash, but the more keys share
        a hash, the slower the function is.
        """
        out = np.empty(max(len(offsets) - 1, 0), np.int64)
        _native.first_occurrence(data, offsets, hashes, out)
        return out

    def match(
        self, b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64
    ) -> tuple[I64, I64]:
        """Return the positions of all pairs of a probe key and a build key with the same bytes.

        Probe keys have the prefix ``p_``, build keys ``b_``. As in `first_occurrence`, equal keys
        must have equal hashes. A key may occur several times on either side. The pairs are ordered
        by the position of the probe key, then of the build key.
        """
        probe, build = _native.match(b_data, b_offsets, b_hashes, p_data, p_offsets, p_hashes)
        return np.frombuffer(probe, np.int64), np.frombuffer(build, np.int64)

    def sort_keys(self, data: U8, offsets: I64, hashes: U64) -> I64:
        """Return the positions of n keys ordered by hash, then key bytes, then position.

        Bytes compare as unsigned numbers. A key that is a prefix of another key comes first.
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
        """Look q keys up in segment blocks.

        ``query_block`` is the number of the block that could hold each key. Returns for each key
        the milliseconds from the bucket's start to its time, or -1 if the block does not hold the
        key. If ``digests`` is given, fills it with the keys' digests, and with 0 for a key without
        a digest. ``dedup/catalog/FORMATS.md`` describes the bytes of blocks.

        Raises ValueError if a block is damaged, even a block that no key needs. The error names the
        first damaged block.
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
        """Pack n keys and their times into b segment blocks, and return their bytes and offsets.

        Parameters
        ----------
        data, offsets
            The keys, in the order of the segment.
        times_ms
            Milliseconds from the bucket's start to each key's time, at least 0.
        starts
            Shape (b + 1,), from 0 to n. Block i holds keys ``starts[i]:starts[i + 1]``, 1 to 65,535
            keys.
        wide_times
            Whether to store times in 8 bytes. If not, times have 4 bytes and are below 2**32.
        digests
            Digests to store beside the keys, or None for blocks without digests.
        """
        out_offsets = np.empty(len(starts), np.int64)
        columns = data, offsets, times_ms
        out = _native.blocks_encode(*columns, starts, wide_times, out_offsets, digests)
        return np.frombuffer(out, np.uint8), out_offsets

    def blocks_decode(self, data: U8, block_offsets: I64) -> tuple[U8, I64, I64]:
        """Return all keys of segment blocks, and their times in ms after the bucket's start.

        Blocks with times of 4 and of 8 bytes may be mixed. Raises ValueError if a block is damaged.
        The error names the first damaged block.
        """
        key_data, offsets, times = _native.blocks_decode(data, block_offsets)
        return (
            np.frombuffer(key_data, np.uint8),
            np.frombuffer(offsets, np.int64),
            np.frombuffer(times, np.int64),
        )

    def blocks_digests(self, data: U8, block_offsets: I64) -> U64:
        """Return the digests of all keys of segment blocks, in the order of `blocks_decode`.

        Returns 0 for keys in blocks without digests. Raises ValueError if a block is damaged.
        """
        return np.frombuffer(_native.blocks_digests(data, block_offsets), np.uint64)

    def scan_verdicts(
        self, group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int
    ) -> U8:
        """Judge n records of a micro-batch one by one, in arrival order per record ID.

        Returns for each record 0 if it is taken (emitted and remembered), 1 if it is a duplicate,
        or 2 if it is dropped as late. A record is a duplicate if it is known, or if its time is at
        most the horizon away from that of the last record taken with the same ID.

        Parameters
        ----------
        group
            Number of the record's ID. The records are sorted by this number.
        time_ms
            Effective times, sorted within a group.
        known
            Not 0 if an earlier micro-batch took a record with this ID within the horizon.
        droppable
            Not 0 if the record must be dropped as late unless it is a duplicate.
        """
        out = np.empty(len(group), np.uint8)
        _native.scan_verdicts(group, time_ms, known, droppable, horizon_ms, out)
        return out

    def encode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]:
        r"""Shorten values that are UUIDs in text, so that `decode_uuid` can restore them.

        A UUID in canonical text (8-4-4-4-12 lower-case hexadecimal digits) becomes ``b"\x01"`` and
        its 16 bytes. Any other value becomes ``b"\x00"`` and the value.
        """
        n = max(len(offsets) - 1, 0)
        out_offsets = np.empty(n + 1, np.int64)
        # Allocate the largest possible result, because memory that stays untouched costs nothing.
        out = np.empty(len(data) + n, np.uint8)
        used = _native.encode_uuid(data, offsets, out, out_offsets)
        out.resize(used, refcheck=False)
        return out, out_offsets

    def decode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]:
        """Return the values from which `encode_uuid` made these keys.

        An empty key becomes an empty value. Raises ValueError if `encode_uuid` cannot have made a
        key. The error names the first such key.
        """
        out_offsets = np.empty(max(len(offsets), 1), np.int64)
        # Begin with as much memory as the values need if all of them are UUIDs.
        out = np.empty(len(data) // 17 * 36 + 36, np.uint8)
        _native.decode_uuid(data, offsets, out, out_offsets)
        out.resize(int(out_offsets[-1]), refcheck=False)
        return out, out_offsets


class Compiled(Kernel):
    """The path in C, which uses AVX2 if `simd` is set and the processor has AVX2."""

    def __init__(self, *, simd: bool) -> None:
        self.simd = simd and _native.HAVE_AVX2
        self.name = "native-avx2" if self.simd else "native-scalar"
