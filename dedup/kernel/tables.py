"""Read segment blocks directly from the tables of RocksDB.

A table is a file of *table blocks*, each of which holds some segment blocks. These functions exist
only in C, because numpy would be slower than RocksDB itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dedup import kernel
from dedup.kernel import _kernel
from dedup.kernel.arrays import I64, U8, U32, U64

#: Smallest size of a table entry.
_MIN_ENTRY_BYTES = 11

_native: Any = _kernel._native
#: Whether the functions of this module can be called. An older extension may lack them.
AVAILABLE = kernel.PATH != "numpy" and hasattr(_native, "table_checksum")


@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """The places of the t table blocks in a table."""

    #: Number that every checksum in this file includes, in [1, 2**32). Few files share a number.
    context: int
    #: Number of the last segment block that each table block may hold.
    lasts: U32
    #: Offsets in the file at which the table blocks start, and the offset at which the last ends.
    starts: I64


def table_checksum(data: U8, context: int, offset: int) -> int:
    """Return the checksum of bytes at an offset of a file. It covers the offset too."""
    checksum: int = _native.table_checksum(data, context, offset)
    return checksum


def table_find(
    fd: int,
    directory: Directory,
    numbers: I64,
    q_data: U8,
    q_offsets: I64,
    digests: U64 | None = None,
) -> tuple[I64, int]:
    """Look q keys up in segment blocks of an open file.

    ``numbers``, which is sorted, has the number of the segment block for each key. Returns times
    and fills digests as `dedup.kernel.blocks_find` does. Also returns the number of segment blocks
    searched. First requests all data that must come from a disk, and reads that data last.

    Raises ValueError if the file cannot be read, a checksum does not match, or a block is missing.
    """
    out = np.empty(max(len(q_offsets) - 1, 0), np.int64)
    where = directory.context, directory.lasts, directory.starts
    return out, _native.table_find(fd, *where, numbers, q_data, q_offsets, out, digests)


def table_unpack(directory: Directory, first: int, end: int, data: U8) -> tuple[U8, I64]:
    """Return the segment blocks in table blocks ``first`` to ``end`` - 1, in the form of a column.

    ``data`` are the bytes of these table blocks. The result is for `dedup.kernel.blocks_decode`.
    Raises ValueError if a table block is damaged, or holds anything but segment blocks.
    """
    lasts, starts = directory.lasts[:end], directory.starts[: end + 1]
    out = np.empty(len(data), np.uint8)
    out_starts = np.empty(len(data) // _MIN_ENTRY_BYTES + 1, np.int64)
    n = _native.table_unpack(directory.context, lasts, starts, first, data, out, out_starts)
    return out[: int(out_starts[n])], out_starts[: n + 1]
