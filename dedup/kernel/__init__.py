"""The inner loops: hashing, filters, joins and sorts over columns of keys.

Every function is there twice, in C (``dedup._native``) and in numpy, with the same answers bit
for bit. ``PATH`` says which runs: ``"native-avx2"``, ``"native-scalar"`` or ``"numpy"``. The
environment variable ``DEDUP_KERNEL`` forces one: ``native``, ``scalar`` or ``numpy``.

Arrays are one-dimensional, C-contiguous numpy arrays of exactly the dtype given; alignment does
not matter. ``data`` and ``offsets`` are a column of n keys: key ``i`` is
``data[offsets[i]:offsets[i + 1]]``. Arguments of another type raise TypeError, of wrong size or
content ValueError; arguments are not written to unless the text says so, and must not be written
to by others during a call. The C functions release the GIL.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

from dedup.errors import ConfigError, DedupWarning
from dedup.kernel import _numpy
from dedup.kernel._types import I64, U8, U32, U64, Kernel

__all__ = [
    "PATH",
    "blocks_find",
    "encode_uuid",
    "filter_add",
    "filter_probe",
    "first_occurrence",
    "hash64",
    "implementation",
    "match",
    "scan_verdicts",
    "sort_keys",
]


def implementation(name: str) -> Kernel:
    """Return one path of the kernel: ``"native"``, ``"scalar"`` or ``"numpy"``.

    ``"native"`` uses AVX2 where the processor has it.

    Raises
    ------
    ConfigError
        When there is no path of that name.
    ImportError
        When the C extension is not installed.
    """
    if name == "numpy":
        return _numpy
    if name not in ("native", "scalar"):
        raise ConfigError(
            f"there is no kernel path {name!r}: "
            "set DEDUP_KERNEL to native, scalar or numpy, or leave it unset"
        )
    from dedup.kernel._compiled import Compiled

    return Compiled(simd=name == "native")


def _choose() -> Kernel:
    forced = os.environ.get("DEDUP_KERNEL")
    if forced:
        return implementation(forced)
    try:
        return implementation("native")
    except ImportError as error:
        # Once per process: this runs when the module is first imported.
        warnings.warn(
            f"the C extension is not installed ({error}), so the slower numpy path is used; "
            "answers are the same. Install a C compiler and reinstall rolling-dedup",
            DedupWarning,
            stacklevel=2,
        )
        return _numpy


_path = _choose()

#: Which path runs in this process.
PATH: str = _path.name


def hash64(data: U8, offsets: I64, key: bytes) -> U64:
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
    return _path.hash64(data, offsets, key)


def filter_add(bits: U32, hashes: U64) -> None:
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
    _path.filter_add(bits, hashes)


def filter_probe(filters: Sequence[U32], hashes: U64) -> U64:
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
    return _path.filter_probe(filters, hashes)


def first_occurrence(data: U8, offsets: I64, hashes: U64) -> I64:
    """Return for every key the position of the first key with the same bytes.

    Parameters
    ----------
    data, offsets, hashes
        uint8, int64 (n + 1) and uint64 (n): the column of keys and their hashes. Equal keys must
        have equal hashes; different keys may share one, at a cost that grows with their number.

    Returns
    -------
    ndarray of int64, shape (n,)
        Its own position where a key is the first.
    """
    return _path.first_occurrence(data, offsets, hashes)


def match(
    b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64
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
    return _path.match(b_data, b_offsets, b_hashes, p_data, p_offsets, p_hashes)


def sort_keys(data: U8, offsets: I64, hashes: U64) -> I64:
    """Return the positions of the keys ordered by hash, then key bytes, then position.

    Parameters
    ----------
    data, offsets, hashes
        As in `first_occurrence`. Bytes compare unsigned; a prefix comes before what it starts.

    Returns
    -------
    ndarray of int64, shape (n,)
    """
    return _path.sort_keys(data, offsets, hashes)


def blocks_find(data: U8, block_offsets: I64, query_block: I64, q_data: U8, q_offsets: I64) -> I64:
    """Look keys up in segment blocks, each in the one block that could hold it.

    Parameters
    ----------
    data, block_offsets
        uint8 and int64 (b + 1): the blocks' bytes, in the format of ``FORMATS.md``.
    query_block
        int64, shape (q,), 0 to b - 1: the block to look in.
    q_data, q_offsets
        uint8 and int64 (q + 1): the keys to look for.

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
    return _path.blocks_find(data, block_offsets, query_block, q_data, q_offsets)


def scan_verdicts(group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int) -> U8:
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
    return _path.scan_verdicts(group, time_ms, known, droppable, horizon_ms)


def encode_uuid(data: U8, offsets: I64) -> tuple[U8, I64]:
    r"""Shorten UUID text to its 16 bytes; the encoding can be undone.

    Parameters
    ----------
    data, offsets
        uint8 and int64 (n + 1): the column of values.

    Returns
    -------
    data, offsets
        The column of ``b"\x01"`` + 16 bytes for each value that is a UUID in canonical text
        (8-4-4-4-12 lower-case hexadecimal digits), and ``b"\x00"`` + the value for any other.
    """
    return _path.encode_uuid(data, offsets)
