"""Build, open and read a view, which is a database over one segment, with RocksDB.

Every function raises `RocksError` if RocksDB fails, ValueError if content is damaged, and OSError
if files cannot be opened. A *table* is the file that holds the segment's blocks.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rocksdict

from dedup import kernel
from dedup.catalog.blocks import block_numbers, joined
from dedup.catalog.segment_file import META_KEY, SegmentMeta, rocks_errors, table_options
from dedup.catalog.table import Table
from dedup.core.entries import Entries
from dedup.core.keys import Keys
from dedup.core.ports import ABSENT_MS
from dedup.kernel.arrays import I64, U8, U64

#: A lookup holds about this many bytes of blocks at a time.
_LOOKUP_BYTES = 32 << 20
_READAHEAD_BYTES = 256 << 10
#: Name of our own file beside RocksDB's files.
_CHECK_FILE = "checksum"
#: Files that the checksum covers. The file of rocksdict itself is not among them, because every
#: open rewrites that file, and another process may see half of it.
_CHECKED_FILES = ("CURRENT", "MANIFEST-", "OPTIONS-", "IDENTITY")


@dataclass(slots=True)
class View:
    """An open read-only database over one segment, and the segment's metadata entry."""

    db: Any  # an Rdict, whose stubs do not know that raw mode takes and returns only bytes
    meta: SegmentMeta
    meta_bytes: bytes
    table: Table | None  # the same segment, if it can be read without RocksDB

    def close_table(self) -> None:
        """Close the table's file. From then on, RocksDB answers all lookups."""
        if self.table is not None:
            self.table.file.close()
            self.table = None

    def close(self) -> None:
        self.close_table()
        self.db.close()


def build_view(sst: Path, folder: Path) -> None:
    options = _view_options()
    options.create_if_missing(True)
    ingest = rocksdict.IngestExternalFileOptions()
    ingest.set_move_files(True)
    # By default RocksDB writes a sequence number into the file, which may be a hard link to the
    # file at the root.
    ingest.set_allow_global_seqno(False)
    with rocks_errors():
        db = rocksdict.Rdict(str(folder), options)
        try:
            db.ingest_external_file([str(sst)], ingest)
        finally:
            db.close()
    (folder / "LOG").unlink(missing_ok=True)
    (folder / _CHECK_FILE).write_bytes(_check(folder))


def open_view(folder: Path) -> View:
    """Open a database that `build_view` made, read-only."""
    _refuse_damage(folder)
    with rocks_errors():
        db: Any = rocksdict.Rdict(
            str(folder), _view_options(), access_type=rocksdict.AccessType.read_only()
        )
        try:
            meta_bytes = db.get(META_KEY)
            if meta_bytes is None:
                raise ValueError("it has no metadata entry")
            return View(db, SegmentMeta.from_bytes(meta_bytes), meta_bytes, _table(folder))
        except BaseException:
            db.close()
            raise


def _table(folder: Path) -> Table | None:
    with suppress(OSError, ValueError):
        (path,) = folder.glob("*.sst")
        return Table.open(path)
    return None


def _refuse_damage(folder: Path) -> None:
    # RocksDB reads some damaged manifests forever, for example if a record type is 5, not 1.
    try:
        intact = (folder / _CHECK_FILE).read_bytes() == _check(folder)
    except OSError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise  # too few file descriptors; the view may be intact
        raise ValueError(f"its files cannot be read: {exc}") from exc
    if not intact:
        raise ValueError("its files have changed")


def _check(folder: Path) -> bytes:
    """Return a checksum of the files that RocksDB reads when it opens a database.

    These files have no checksums of their own.
    """
    crc = 0
    for path in sorted(folder.iterdir()):
        if path.name.startswith(_CHECKED_FILES):
            crc = zlib.crc32(path.read_bytes(), zlib.crc32(path.name.encode(), crc))
    return f"{crc:08x}".encode()


def find(
    view: View, keys: Keys, hashes: U64, *, sst_bytes: int, digests: U64 | None = None
) -> tuple[I64, int]:
    """Return the time (ms) of each of n keys, and the number of blocks read.

    The time of an absent key is `ABSENT_MS`. If ``digests`` is given, the function fills it with
    the digests of the n keys, and with 0 for a key without a digest.
    """
    wanted = block_numbers(hashes, view.meta.nblocks)
    if view.table is not None:
        # If this fails, or if block numbers are not in order, RocksDB reads below and reports.
        with suppress(OSError, ValueError):
            offsets_ms, blocks_read = view.table.find(wanted, keys, digests)
            return np.where(
                offsets_ms >= 0, view.meta.start_ms + offsets_ms, ABSENT_MS
            ), blocks_read
    return _find_by_rocksdb(view, keys, wanted, sst_bytes, digests)


def _find_by_rocksdb(
    view: View, keys: Keys, wanted: I64, sst_bytes: int, digests: U64 | None
) -> tuple[I64, int]:
    times_ms = np.full(len(keys), ABSENT_MS, np.int64)
    if digests is not None:
        digests[:] = 0
    meta, blocks_read = view.meta, 0
    numbers = np.unique(wanted)
    step = max(1, _LOOKUP_BYTES * meta.nblocks // max(1, sst_bytes))
    for first in range(0, len(numbers), step):
        blocks = _blocks(view, numbers[first : first + step])
        blocks_read += len(blocks)
        present = np.fromiter(blocks, np.int64, len(blocks))
        selected = np.flatnonzero(np.isin(wanted, present))
        if len(selected) == 0:
            continue
        rows = np.searchsorted(present, wanted[selected])
        data, starts = joined(blocks.values())
        query = keys if len(selected) == len(keys) else keys.take(selected)
        beside = None if digests is None else np.zeros(len(query), np.uint64)
        offsets_ms = kernel.blocks_find(data, starts, rows, query.data, query.offsets, beside)
        if digests is not None and beside is not None:
            digests[selected] = beside
        hit = offsets_ms >= 0
        times_ms[selected[hit]] = meta.start_ms + offsets_ms[hit]
    return times_ms, blocks_read


def decode_all(view: View, hash_key: bytes) -> Entries:
    entries = decode_range(view, hash_key, 0, view.meta.nblocks - 1)
    if len(entries) != view.meta.count:
        raise ValueError(f"it holds {len(entries)} IDs, its metadata says {view.meta.count}")
    return entries


def decode_range(view: View, hash_key: bytes, first: int, last: int) -> Entries:
    """Return the entries of blocks ``first`` to ``last``, and of a few adjacent blocks at times."""
    if view.table is not None:
        with suppress(OSError, ValueError):
            return _decode(view, hash_key, view.table.blocks(first, last))
    blocks: list[bytes] = []
    for number, block in _scanned(view, first):
        if number > last:
            return _decode(view, hash_key, [joined(blocks)])
        blocks.append(block)
    raise ValueError(_why_cut(view))


def _decode(view: View, hash_key: bytes, blocks: Iterable[tuple[U8, I64]]) -> Entries:
    pieces: list[Keys] = []
    offsets_ms: list[I64] = []
    digests: list[U64] = []
    for part in blocks:
        data, offsets, part_ms = kernel.blocks_decode(*part)
        pieces.append(Keys(data, offsets))
        offsets_ms.append(part_ms)
        if view.meta.has_digests:
            digests.append(kernel.blocks_digests(*part))
    keys = Keys.concat(pieces)
    hashes = kernel.hash64(keys.data, keys.offsets, hash_key)
    times_ms = np.concatenate(offsets_ms) + view.meta.start_ms
    return Entries(keys, hashes, times_ms, np.concatenate(digests) if digests else None)


def _blocks(view: View, numbers: I64) -> dict[int, bytes]:
    """Return the segment's blocks with these numbers, in rising order.

    Reads with an iterator, because RocksDB's multi-get takes three times as long. Blocks are hardly
    ever absent. If one is, the function first checks that all other blocks are intact.
    """
    blocks: dict[int, bytes] = {}
    iterator = view.db.iter(_reading(scan=False))
    for number in numbers.tolist():
        entry_key = number.to_bytes(4, "big")
        iterator.seek(entry_key)
        key = iterator.key()
        if key == entry_key:
            blocks[number] = iterator.value()
        elif key is None:
            raise ValueError(_why_cut(view))
    if len(blocks) < len(numbers):
        _check_whole(view)
    return blocks


def _scanned(view: View, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield the entries from a block on, with their numbers.

    RocksDB's iterator ends silently at a damaged block. In an intact segment the metadata entry
    follows all blocks, and its number is higher.
    """
    start = first.to_bytes(4, "big")
    for entry_key, block in view.db.items(from_key=start, read_opt=_reading(scan=True)):
        yield int.from_bytes(entry_key[:4], "big"), block


def _check_whole(view: View) -> None:
    """Raise ValueError unless the segment has all its IDs, in blocks of rising numbers."""
    before, count = -1, 0
    for number, block in _scanned(view, 0):
        if number <= before:
            raise ValueError(f"block {number} comes after block {before}")
        if block == view.meta_bytes:
            break
        count += len(kernel.blocks_decode(*joined([block]))[2])
        before = number
    if count != view.meta.count:
        raise ValueError(f"it holds {count} IDs, its metadata says {view.meta.count}")


def _reading(*, scan: bool) -> Any:
    """Return options of a read that does not use the block cache.

    Such a read would only push useful blocks out of the cache.
    """
    options: Any = rocksdict.ReadOptions()  # rocksdict's stubs lack an argument
    options.fill_cache(False)
    if scan:
        options.set_readahead_size(_READAHEAD_BYTES)
    return options


def _why_cut(view: View) -> str:
    iterator = view.db.iter()
    iterator.seek_to_first()
    while iterator.valid():
        iterator.next()
    with rocks_errors():
        iterator.status()
    return "reading it ends before its last entry"


def _view_options() -> rocksdict.Options:
    options = table_options()
    options.set_disable_auto_compactions(True)
    options.set_keep_log_file_num(1)
    # Open every file at once, so that an open view survives the removal of its folder.
    options.set_max_open_files(-1)
    # By default RocksDB starts 16 threads to open files and makes a table cache of 64 parts. A view
    # has only one file.
    options.set_max_file_opening_threads(1)
    options.set_table_cache_num_shard_bits(0)
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(4096)
    options.set_write_buffer_size(64 << 10)
    return options
