"""Read segment blocks from a segment file directly, without RocksDB, which is several times slower.

A segment file is a RocksDB table of *table blocks*, each of which holds some segment blocks. A
lookup reads and checks each table block that it needs once. This module never concludes that a
segment block is absent. If the file deviates from what this release writes, the module raises
ValueError or OSError. The caller then asks RocksDB, whose answer counts (invariant 7).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dedup.core.keys import Keys
from dedup.kernel import tables
from dedup.kernel.arrays import I64, U8, U64

#: Footer of RocksDB's block-based table, version 6: checksum type, extended magic, checksum,
#: context, bytes of the metaindex, zeros, version, magic.
_FOOTER = struct.Struct("<BIIII24sIQ")
_XXH64, _EXTENDED_MAGIC, _FORMAT_VERSION, _MAGIC = 3, 0x007A003E, 6, 0x88E241B785F4CFF7
_TRAILER_BYTES = 5
_INDEX_KEY = b"rocksdb.index"
#: A merge reads about this many bytes of table blocks at a time.
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """An open segment file, and the places of its table blocks."""

    file: FileIO
    directory: tables.Directory

    @classmethod
    def open(cls, path: Path) -> Table:
        """Return the table in a file, or raise ValueError or OSError if it is not as expected."""
        if not tables.AVAILABLE:
            raise ValueError("tables are read in C only")
        file = FileIO(os.fspath(path))
        try:
            return cls(file, _directory(file))
        except BaseException:
            file.close()
            raise

    def find(self, numbers: I64, keys: Keys, digests: U64 | None = None) -> tuple[I64, int]:
        """Return the time of each of n keys, or -1 if absent, and the number of blocks read.

        ``numbers``, which is sorted, has the number of the block that could hold each key. If
        ``digests`` is given, the method fills it with the digests of the n keys, and with 0 for a
        key without a digest.
        """
        return tables.table_find(
            self.file.fileno(), self.directory, numbers, keys.data, keys.offsets, digests
        )

    def blocks(self, first: int, last: int) -> Iterator[tuple[U8, I64]]:
        """Yield blocks ``first`` to ``last`` and some adjacent blocks, as bytes and offsets."""
        lasts, starts = self.directory.lasts, self.directory.starts
        at = int(np.searchsorted(lasts, first))
        end = min(int(np.searchsorted(lasts, last)) + 1, len(lasts))
        while at < end:
            start = int(starts[at])
            limit = int(np.searchsorted(starts, start + _READ_BYTES, "right")) - 1
            stop = max(at + 1, min(end, limit))
            data = np.frombuffer(_read(self.file, start, int(starts[stop]) - start), np.uint8)
            yield tables.table_unpack(self.directory, at, stop, data)
            at = stop


def _read(file: FileIO, offset: int, length: int) -> bytes:
    data = os.pread(file.fileno(), length, offset) if offset >= 0 else b""
    if len(data) != length:
        raise OSError("it ends too early")
    return data


def _directory(file: FileIO) -> tables.Directory:
    """Return the places of the table blocks, which the index in the file lists."""
    at = os.fstat(file.fileno()).st_size - _FOOTER.size
    footer = _read(file, at, _FOOTER.size)
    _, _, checksum, context, length, *_ = _FOOTER.unpack(footer)
    unsigned = _FOOTER.pack(
        _XXH64, _EXTENDED_MAGIC, 0, context, length, bytes(24), _FORMAT_VERSION, _MAGIC
    )
    # If the context were 0, the checksums would not cover the place of a table block.
    if not context or footer != unsigned[:5] + checksum.to_bytes(4, "little") + unsigned[9:]:
        raise ValueError("its footer has another checksum, version or layout")
    if tables.table_checksum(np.frombuffer(unsigned, np.uint8), context, at) != checksum:
        raise ValueError("its footer is damaged")
    metaindex = _block(file, context, at - _TRAILER_BYTES - length, length)
    offset, size = _index_handle(metaindex)
    if offset + size > at:
        raise ValueError("its index is beyond its end")
    return tables.Directory(context, *_entries(_block(file, context, offset, size)))


def _block(file: FileIO, context: int, offset: int, length: int) -> U8:
    data = np.frombuffer(_read(file, offset, length + _TRAILER_BYTES), np.uint8)
    checksum = int.from_bytes(data[-4:].tobytes(), "little")
    if data[-5] != 0 or tables.table_checksum(data[:-4], context, offset) != checksum:
        raise ValueError("its index is damaged")
    return data[:-_TRAILER_BYTES]


def _index_handle(metaindex: U8) -> tuple[int, int]:
    end = len(metaindex) - 4 - 4 * int.from_bytes(metaindex[-4:].tobytes(), "little")
    at = np.zeros(1, np.int64)
    while 0 <= at[0] < end:
        ((shared,), (more,), (size,)), at = _varints(metaindex[:end], at, 3)
        key = metaindex[at[0] : at[0] + more].tobytes()
        if shared == 0 and key == _INDEX_KEY:
            handle, _ = _varints(metaindex[:end], at + more, 2)
            return int(handle[0, 0]), int(handle[1, 0])
        at = at + more + size
    raise ValueError("it has no index")


def _entries(index: U8) -> tuple[npt.NDArray[np.uint32], I64]:
    """Return for each table block the last block number that it may hold, and where it starts.

    ``index`` holds one entry per table block. The entry's key is at least as high as all keys of
    the table block, and may have fewer bytes. Its value is the place of the table block. Keys are
    not prefix-compressed.
    """
    t = int.from_bytes(index[-4:].tobytes(), "little")
    if not 0 < 4 * t + 4 <= len(index):
        raise ValueError("its index has no entries")
    entries = np.frombuffer(index[len(index) - 4 - 4 * t : -4].tobytes(), "<u4").astype(np.int64)
    body = np.append(index[: len(index) - 4 - 4 * t], np.zeros(32, np.uint8))
    if int(entries.max()) + 2 > len(body) - 32 or bool((body[entries] != 0).any()):
        raise ValueError("its index has another layout")
    lengths = body[entries + 1].astype(np.int64)
    lasts = np.zeros(t, np.int64)
    for byte in range(4):
        lasts = lasts << 8 | np.where(lengths > byte, body[entries + 2 + byte], 0)
    # A block number has 4 bytes. A shorter key is lower than the number, a longer key higher.
    lasts = np.where(lengths < 4, lasts - 1, np.where(lengths > 4, (1 << 32) - 1, lasts))
    (offsets, sizes), ends = _varints(body, entries + 2 + lengths, 2)
    starts = np.append(offsets, offsets[-1] + sizes[-1] + _TRAILER_BYTES)
    whole = (
        np.array_equal(ends, np.append(entries[1:], len(body) - 32))
        and np.array_equal(starts[:-1] + sizes + _TRAILER_BYTES, starts[1:])
        and bool((lasts[1:] > lasts[:-1]).all())
        and int(lasts[0]) >= 0
    )
    if not whole:
        raise ValueError("its index contradicts itself")
    return lasts.astype(np.uint32), starts


def _varints(data: U8, at: I64, count: int) -> tuple[I64, I64]:
    """Decode ``count`` varints from each position on.

    Returns the numbers, shape (count, n), and the positions where they end.
    """
    values = np.zeros((count, len(at)), np.int64)
    for value in values:
        going = np.ones(len(at), np.bool_)
        for shift in range(0, 63, 7):
            if int(at.max()) >= len(data):
                raise ValueError("it ends within a number")
            byte = data[at].astype(np.int64)
            value |= np.where(going, (byte & 0x7F) << shift, 0)
            at = at + going
            going = going & (byte >= 0x80)
            if not going.any():
                break
        else:
            raise ValueError("it has a number that is too large")
    return values, at
