"""Segment blocks straight from RocksDB's tables. In C only: numpy would be slower than RocksDB."""

from __future__ import annotations

import numpy as np

from dedup import kernel
from dedup.kernel._types import I64, U8, U32

#: Whether the functions of this module can be called in this process.
AVAILABLE = kernel.PATH != "numpy"
#: An entry of a table takes at least so many bytes.
_MIN_ENTRY_BYTES = 11

if AVAILABLE:
    from dedup import _native


def table_block_ok(data: U8) -> bool:
    """Return whether these bytes are a table block as it was written, with its trailer.

    That is one without compression, whose checksum is the lower half of its XXH64.
    """
    return _native.table_block_ok(data)


def table_find(
    fd: int, lasts: U32, starts: I64, numbers: I64, q_data: U8, q_offsets: I64
) -> tuple[I64, int]:
    """Look keys up in the segment blocks of an open file.

    What has to come from a disk is asked for at once, and read last.

    Parameters
    ----------
    fd
        The file's descriptor, 1 or more.
    lasts, starts
        uint32 (t) and int64 (t + 1): the last block number that each table block may hold, and
        where each starts; the end of the last.
    numbers
        int64, shape (q,), never falling: the block that could hold each key.
    q_data, q_offsets
        uint8 and int64 (q + 1): the keys to look for.

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
    return out, _native.table_find(fd, lasts, starts, numbers, q_data, q_offsets, out)


def table_unpack(data: U8, starts: I64) -> tuple[U8, I64]:
    """Return the segment blocks in table blocks, one behind another, and where each starts.

    Parameters
    ----------
    data, starts
        uint8 and int64 (t + 1): table blocks with their trailers, and where each starts.

    Returns
    -------
    data, starts
        uint8 and int64 (b + 1): as `dedup.kernel.blocks_decode` takes them.

    Raises
    ------
    ValueError
        When a table block is not as it was written, or holds anything else.
    """
    out = np.empty(len(data), np.uint8)
    out_starts = np.empty(len(data) // _MIN_ENTRY_BYTES + 1, np.int64)
    n = _native.table_unpack(data, starts, out, out_starts)
    return out[: int(out_starts[n])], out_starts[: n + 1]
