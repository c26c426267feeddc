"""Segment blocks straight from RocksDB's tables. In C only: numpy would be slower than RocksDB."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dedup import kernel
from dedup.kernel._types import I64, U8, U32, U64

#: An entry of a table takes at least so many bytes.
_MIN_ENTRY_BYTES = 11


def _available() -> bool:
    if kernel.PATH == "numpy":
        return False
    from dedup.kernel import _native

    # An extension that was built before them serves for all else.
    return hasattr(_native, "table_checksum")


#: Whether the functions of this module can be called in this process.
AVAILABLE = _available()

if AVAILABLE:
    from dedup.kernel import _native


@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """Where the t table blocks of a table are.

    Parameters
    ----------
    context : int
        What goes into the checksums of this file and of few others, in [1, 2**32).
    lasts : uint32 array, shape (t,)
        The last block number that each table block may hold.
    starts : int64 array, shape (t + 1,)
        Where each starts in the file; the last one's end.
    """

    context: int
    lasts: U32
    starts: I64


def table_checksum(data: U8, context: int, offset: int) -> int:
    """Return the checksum of bytes at an offset of a file: it vouches for content and place."""
    return _native.table_checksum(data, context, offset)


def table_find(
    fd: int,
    directory: Directory,
    numbers: I64,
    q_data: U8,
    q_offsets: I64,
    digests: U64 | None = None,
) -> tuple[I64, int]:
    """Look keys up in the segment blocks of an open file.

    What has to come from a disk is asked for at once, and read last.

    Parameters
    ----------
    fd, directory
        The file's descriptor, and where its table blocks are.
    numbers
        int64, shape (q,), never falling: the block that could hold each key.
    q_data, q_offsets
        uint8 and int64 (q + 1): the keys to look for.
    digests
        uint64, shape (q,), to be filled as by `dedup.kernel.blocks_find`.

    Returns
    -------
    times_ms : ndarray of int64, shape (q,)
        Milliseconds from the bucket's start to the key's time; -1 where its block does not hold it.
    blocks_read : int
        Segment blocks looked into.

    Raises
    ------
    ValueError
        When the file cannot be read or holds anything else than was expected, be it a checksum
        that does not match or a block that is not there.
    """
    out = np.empty(max(len(q_offsets) - 1, 0), np.int64)
    where = directory.context, directory.lasts, directory.starts
    return out, _native.table_find(fd, *where, numbers, q_data, q_offsets, out, digests)


def table_unpack(directory: Directory, first: int, end: int, data: U8) -> tuple[U8, I64]:
    """Return the segment blocks in table blocks, one behind another, and where each starts.

    Parameters
    ----------
    directory, first, end
        Which table blocks of the file these are.
    data
        uint8: their bytes.

    Returns
    -------
    data, starts
        uint8 and int64 (b + 1): as `dedup.kernel.blocks_decode` takes them.

    Raises
    ------
    ValueError
        When a table block is not as it was written, or holds anything else.
    """
    lasts, starts = directory.lasts[:end], directory.starts[: end + 1]
    out = np.empty(len(data), np.uint8)
    out_starts = np.empty(len(data) // _MIN_ENTRY_BYTES + 1, np.int64)
    n = _native.table_unpack(directory.context, lasts, starts, first, data, out, out_starts)
    return out[: int(out_starts[n])], out_starts[: n + 1]
