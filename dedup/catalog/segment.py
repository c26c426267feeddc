"""Segments: immutable RocksDB SST files that hold the record IDs of one bucket of one shard."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import rocksdict

from dedup import kernel
from dedup.catalog.blocks import block_count, encode_blocks
from dedup.core.keys import Keys
from dedup.core.ports import I64, U64, SegmentRef, hash_range
from dedup.errors import CatalogError

SEGMENT_FORMAT = 2
#: Entry key of the metadata; sorts behind every block number.
META_KEY = b"\xff\xff\xff\xffmeta"

#: Our blocks are of about 1.4 KB: three to a table block; smaller ones make a larger index.
_TABLE_BLOCK_BYTES = 4 << 10
_CRC_CHUNK_BYTES = 256 << 10


class RocksError(Exception):
    """RocksDB refused; its text says why. Never leaves this package."""

    @property
    def is_corruption(self) -> bool:
        """Whether RocksDB read bytes that are not what was written."""
        return str(self).startswith("Corruption")


@contextlib.contextmanager
def rocks_errors() -> Iterator[None]:
    """Turn rocksdict's errors, which have no class of their own, into `RocksError`."""
    try:
        yield
    except rocksdict.DbClosedError as exc:
        raise RocksError(str(exc)) from exc
    except Exception as exc:
        if type(exc) is not Exception:
            raise
        raise RocksError(str(exc)) from exc


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What `write_segment_file` wrote: number of IDs, size and CRC-32 of the file."""

    count: int
    sst_bytes: int
    sst_crc32: int


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """The metadata entry inside a segment, by which a swapped file is found out."""

    name: str
    shard: int
    start_ms: int
    end_ms: int
    count: int
    nblocks: int
    hash_key_id: str
    time_bytes: int
    parts: int
    part: int
    format: int = SEGMENT_FORMAT

    def to_bytes(self) -> bytes:
        """Return the value of the metadata entry."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> SegmentMeta:
        """Return the metadata; ValueError when these bytes are none that this version reads."""
        fields: Any = json.loads(data)
        if not isinstance(fields, dict) or fields.get("format") != SEGMENT_FORMAT:
            raise ValueError(f"metadata {data[:200]!r} is of an unknown format")
        try:
            meta = cls(**fields)
        except TypeError as exc:
            raise ValueError(f"metadata {data[:200]!r} has other fields: {exc}") from exc
        if meta.to_bytes() != data or meta.nblocks != block_count(meta.count):
            raise ValueError(f"metadata {data[:200]!r} contradicts itself")
        return meta

    def check(self, seg: SegmentRef, *, shard: int, hash_key_id: int) -> None:
        """Raise ValueError, naming both values, when this is not the segment that is wanted."""
        wanted = {
            "name": seg.name,
            "shard": shard,
            "start_ms": seg.start_ms,
            "end_ms": seg.end_ms,
            "count": seg.count,
            "hash_key_id": f"{hash_key_id:016x}",
            "parts": seg.parts,
            "part": seg.part,
        }
        for field, value in wanted.items():
            if (found := getattr(self, field)) != value:
                raise ValueError(f"it says {field} {found!r}, the manifest says {value!r}")


def table_options() -> rocksdict.Options:
    """Return RocksDB options for writing and reading segments."""
    options = rocksdict.Options(raw_mode=True)
    # IDs and hashes do not compress: LZ4 gained 0.1 %.
    options.set_compression_type(rocksdict.DBCompressionType.none())
    table = rocksdict.BlockBasedOptions()
    table.set_block_size(_TABLE_BLOCK_BYTES)
    table.set_block_cache(_BLOCK_CACHE)
    options.set_block_based_table_factory(table)
    return options


#: One small cache for all views of the process; the page cache does the rest.
_BLOCK_CACHE = rocksdict.Cache(1 << 20)


def write_segment_file(
    path: str | os.PathLike[str],
    *,
    name: str,
    shard: int,
    start_ms: int,
    end_ms: int,
    keys: Keys,
    hashes: U64,
    times_ms: I64,
    hash_key_id: int,
    parts: int = 1,
    part: int = 0,
) -> SegmentInfo:
    """Write keys and their times as one SST file and return its size and checksum.

    Parameters
    ----------
    path
        Local file, not there yet. It is complete on return, but not synced.
    name, shard, start_ms, end_ms, hash_key_id
        Kept in the metadata entry.
    keys : Keys
        n distinct keys, in any order.
    hashes : ndarray of uint64, shape (n,)
        Their hashes under the key that ``hash_key_id`` names.
    times_ms : ndarray of int64, shape (n,)
        Their timestamps, in ``[start_ms, end_ms)``.
    parts, part : int
        All hashes lie in range ``part`` of ``parts`` equal ones.

    Raises
    ------
    ValueError
        When lengths differ, a time lies outside the bucket or a hash outside its range, or a key
        occurs twice.
    CatalogError
        When the local disk is full or fails.
    """
    n = len(keys)
    if len(hashes) != n or len(times_ms) != n:
        raise ValueError(f"{n} keys, {len(hashes)} hashes and {len(times_ms)} times")
    if n and not start_ms <= int(times_ms.min()) <= int(times_ms.max()) < end_ms:
        raise ValueError(
            f"times {times_ms.min()} to {times_ms.max()} leave the bucket [{start_ms}, {end_ms})"
        )
    order = kernel.sort_keys(keys.data, keys.offsets, hashes)
    keys, hashes, offsets_ms = keys.take(order), hashes[order], times_ms[order] - start_ms
    _refuse_repeats(keys, hashes)
    if hash_range(hashes, parts, part) != slice(0, n):
        raise ValueError(f"hashes leave range {part} of {parts}")
    wide_times = end_ms - start_ms > 1 << 32
    meta = SegmentMeta(
        name,
        shard,
        start_ms,
        end_ms,
        n,
        block_count(n),
        f"{hash_key_id:016x}",
        time_bytes=8 if wide_times else 4,
        parts=parts,
        part=part,
    )
    try:
        with rocks_errors():
            writer = rocksdict.SstFileWriter(table_options())
            writer.open(os.fspath(path))
            spread = hashes << np.uint64(parts.bit_length() - 1)
            for entry_key, block in encode_blocks(keys, spread, offsets_ms, wide_times=wide_times):
                writer[entry_key] = block
            writer[META_KEY] = meta.to_bytes()
            writer.finish()
        size, crc = file_crc32(path)
    except (RocksError, OSError) as exc:
        raise CatalogError(
            f"cannot write segment {name} to {os.fspath(path)}: {exc}; free space on this disk, "
            "or point the cache directory to another one"
        ) from exc
    return SegmentInfo(n, size, crc)


def file_crc32(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return size in bytes and CRC-32 of a local file."""
    size = crc = 0
    chunk = memoryview(bytearray(_CRC_CHUNK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while read := file.readinto(chunk):
            size, crc = size + read, zlib.crc32(chunk[:read], crc)
    return size, crc


def _refuse_repeats(keys: Keys, hashes: U64) -> None:
    # A lookup returns one time, so a second entry of the same ID would hide behind the first.
    for i in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
        if keys[i] == keys[i + 1]:
            raise ValueError(f"key {keys[i][:64]!r} occurs twice; a segment holds an ID once")
