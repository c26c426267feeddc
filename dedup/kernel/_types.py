"""Array types of the kernel, and what every path of it can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]
BOOL: TypeAlias = npt.NDArray[np.bool_]


class Kernel(Protocol):
    """The functions of ``dedup.kernel``, as each path of it implements them."""

    @property
    def name(self) -> str:
        """Value of ``dedup.kernel.PATH`` when this one is in use."""

    def hash64(self, data: U8, offsets: I64, key: bytes) -> U64:
        """Return the SipHash-1-3 of every key.

        Parameters
        ----------
        data, offsets
            uint8 and int64 (n + 1): the column of keys.
        key
            The 16 bytes of the hash key.

        Returns
        -------
        ndarray of uint64, shape (n,)

        Notes
        -----
        J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012, with one
        compression and three finalisation rounds, as CPython and Rust use it.
        """

    def filter_add(self, bits: U32, hashes: U64) -> None:
        """Add hashes to a split-block Bloom filter, in place.

        Parameters
        ----------
        bits
            uint32, writable, shape (8 * z,): z >= 1 blocks in the layout of Apache Parquet. Hash h
            sets bit ``(low32(h) * SALT[i]) >> 27`` of lane i in block ``(high32(h) * z) >> 32``.
        hashes
            uint64, shape (n,).

        Notes
        -----
        ``BloomFilter.md`` of apache/parquet-format.
        """

    def filter_probe(self, filters: Sequence[U32], hashes: U64) -> U64:
        """Return for every hash which filters may hold it.

        Parameters
        ----------
        filters
            List of at most 64 filters, laid out as in `filter_add`; sizes may differ.
        hashes
            uint64, shape (n,).

        Returns
        -------
        ndarray of uint64, shape (n,)
            Bit i is clear only if filter i certainly does not hold the hash.
        """

    def filter_pages(self, hashes: U64, blocks: int, page_blocks: int) -> tuple[I64, I64]:
        """Return which pages of a filter hashes lie in, and which hashes lie in each.

        Parameters
        ----------
        hashes
            uint64, shape (n,), never falling.
        blocks
            1 to 2**32 - 1: blocks of the filter, laid out as in `filter_add`.
        page_blocks
            1 to 2**32 - 1: blocks of a page; block b lies in page ``b // page_blocks``.

        Returns
        -------
        pages : ndarray of int64, shape (k,)
            The pages that hold the block of a hash, rising.
        starts : ndarray of int64, shape (k + 1,)
            ``hashes[starts[j]:starts[j + 1]]`` lie in page ``pages[j]``.
        """

    def filter_probe_pages(
        self, bits: U32, pages: I64, starts: I64, hashes: U64, blocks: int, page_blocks: int
    ) -> U8:
        """Return which hashes a filter may hold, from the pages that they lie in alone.

        Parameters
        ----------
        bits
            uint32: the words of just those pages, one page behind another, each of
            ``8 * page_blocks`` words; only the last page of the filter ends where the filter does.
        pages
            int64, shape (k,), rising: which pages these are.
        starts
            int64, shape (k + 1,), never falling nor negative: hash i lies in page j where
            ``starts[j] <= starts[0] + i < starts[j + 1]``, so a stretch of what `filter_pages` gave
            will do.
        hashes
            uint64, shape (n,), n being ``starts[k] - starts[0]``.
        blocks, page_blocks
            1 to 2**32 - 1: blocks of the whole filter and of a page.

        Returns
        -------
        ndarray of uint8, shape (n,)
            0 only if the filter certainly does not hold the hash, else 1.

        Raises
        ------
        ValueError
            When a hash does not lie in its page; the text names the first.
        """

    def page_sums(self, data: U8, page_bytes: int) -> U64:
        """Return a checksum of every page of some bytes.

        Parameters
        ----------
        data
            uint8, shape (n,): pages one behind another; the last may be short, and counts as if
            filled up with zeros.
        page_bytes
            A multiple of 8, from 8 to 65,536.

        Returns
        -------
        ndarray of uint64, shape (ceil(n / page_bytes),)
            ``M[0] + sum(M[i + 1] * (w[i] ^ w[i] >> 32))`` modulo 2**64 over the little-endian
            64-bit words ``w`` of the page. Sees any change within one word, and all but 2**-64 of
            arbitrary changes.

        Notes
        -----
        D. Lemire and O. Kaser, "Strongly universal string hashing is fast", 2014; ``M`` is from
        SplitMix64 with a fixed seed, and odd from ``M[1]`` on. Against damage, not against forgery.
        """

    def first_occurrence(self, data: U8, offsets: I64, hashes: U64) -> I64:
        """Return for every key the position of the first key with the same bytes.

        Parameters
        ----------
        data, offsets, hashes
            uint8, int64 (n + 1) and uint64 (n): the column of keys and their hashes. Equal keys
            must have equal hashes; different keys may share one, at a cost that grows with their
            number.

        Returns
        -------
        ndarray of int64, shape (n,)
            Its own position where a key is the first.
        """

    def match(
        self, b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64
    ) -> tuple[I64, I64]:
        """Return all pairs of a probe key and a build key with the same bytes.

        Parameters
        ----------
        b_data, b_offsets, b_hashes
            The build side, as in `first_occurrence`; a key may be there several times.
        p_data, p_offsets, p_hashes
            The probe side, likewise.

        Returns
        -------
        probe_idx, build_idx : ndarray of int64, shape (m,)
            Ordered by probe position, then build position.
        """

    def sort_keys(self, data: U8, offsets: I64, hashes: U64) -> I64:
        """Return the positions of the keys ordered by hash, then key bytes, then position.

        Parameters
        ----------
        data, offsets, hashes
            As in `first_occurrence`. Bytes compare unsigned; a prefix comes before what it starts.

        Returns
        -------
        ndarray of int64, shape (n,)
        """

    def take_keys(self, data: U8, offsets: I64, index: I64) -> tuple[U8, I64]:
        """Return the keys at some positions, in that order.

        Parameters
        ----------
        data, offsets
            uint8 and int64 (n + 1): the column of keys.
        index
            int64, shape (m,), 0 to n - 1: positions, in any order, also several times.

        Returns
        -------
        data, offsets
            uint8 and int64 (m + 1): the column of those keys.
        """

    def blocks_find(
        self,
        data: U8,
        block_offsets: I64,
        query_block: I64,
        q_data: U8,
        q_offsets: I64,
        digests: U64 | None = None,
    ) -> I64:
        """Look keys up in segment blocks, each in the one block that could hold it.

        Parameters
        ----------
        data, block_offsets
            uint8 and int64 (b + 1): the blocks' bytes, as in ``dedup/catalog/FORMATS.md``.
        query_block
            int64, shape (q,), 0 to b - 1: the block to look in.
        q_data, q_offsets
            uint8 and int64 (q + 1): the keys to look for.
        digests
            uint64, shape (q,), to be filled with the digests beside the keys, 0 where there is
            none.

        Returns
        -------
        ndarray of int64, shape (q,)
            Milliseconds from the bucket's start to the key's time; -1 where the block does not hold
            it.

        Raises
        ------
        ValueError
            When any of the blocks is damaged, looked into or not; the text names the first.
        """

    def blocks_encode(
        self,
        data: U8,
        offsets: I64,
        times_ms: I64,
        starts: I64,
        wide_times: bool,
        digests: U64 | None = None,
    ) -> tuple[U8, I64]:
        """Pack keys and their times into segment blocks.

        Parameters
        ----------
        data, offsets
            uint8 and int64 (n + 1): the column of keys, in the order of the segment.
        times_ms
            int64, shape (n,), not negative: milliseconds from the bucket's start to each key's
            time; below 2**32 unless ``wide_times``.
        starts
            int64, shape (b + 1,), from 0 to n: block i holds keys ``starts[i]:starts[i + 1]``, at
            least one and at most 65,535.
        wide_times
            bool: times take 8 bytes instead of 4.
        digests
            uint64, shape (n,): kept beside each key.

        Returns
        -------
        data : ndarray of uint8
            The blocks' bytes, in the format of ``dedup/catalog/FORMATS.md``.
        block_offsets : ndarray of int64, shape (b + 1,)
            Where each block starts.
        """

    def blocks_decode(self, data: U8, block_offsets: I64) -> tuple[U8, I64, I64]:
        """Return all keys of segment blocks, block by block, and their times.

        Blocks with times of 4 and of 8 bytes may be mixed.

        Returns
        -------
        data, offsets
            uint8 and int64 (n + 1): the column of keys.
        times_ms : ndarray of int64, shape (n,)
            Milliseconds from the bucket's start to each key's time.

        Raises
        ------
        ValueError
            When any of the blocks is damaged; the text names the first.
        """

    def blocks_digests(self, data: U8, block_offsets: I64) -> U64:
        """Return the digests beside all keys of segment blocks, in the order of `blocks_decode`.

        Returns
        -------
        ndarray of uint64, shape (n,)
            0 in blocks that have none.

        Raises
        ------
        ValueError
            When any of the blocks is damaged; the text names the first.
        """

    def scan_verdicts(
        self, group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int
    ) -> U8:
        """Judge the records of a micro-batch one by one, in arrival order per record ID.

        Parameters
        ----------
        group
            int64, shape (n,), never falling: equal where record IDs are equal.
        time_ms
            int64, shape (n,), never falling within a group: effective times.
        known
            uint8, shape (n,): not 0 where the ID was taken in an earlier micro-batch, within the
            horizon.
        droppable
            uint8, shape (n,): not 0 where the record is dropped as late unless it is a duplicate.
        horizon_ms
            0 to 2**63 - 1; an age of exactly this is still a duplicate.

        Returns
        -------
        ndarray of uint8, shape (n,)
            0 taken, 1 duplicate (known, or within the horizon of the last one taken in its group),
            2 late: dropped, and not remembered.
        """

    def encode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]:
        r"""Shorten UUID text to its 16 bytes; the encoding can be undone.

        Returns
        -------
        data, offsets
            The column of ``b"\x01"`` + 16 bytes for each value that is a UUID in canonical text
            (8-4-4-4-12 lower-case hexadecimal digits), and ``b"\x00"`` + the value for any other.
        """

    def decode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]:
        """Return the column that `encode_uuid` was given; empty keys become empty values.

        Raises
        ------
        ValueError
            When a key is none that `encode_uuid` makes; the text names the first.
        """
