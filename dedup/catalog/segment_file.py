"""Segments: immutable RocksDB SST files that hold the record IDs of one bucket of one shard."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import rocksdict

from dedup.catalog.blocks import block_bounds, block_count, encode_blocks
from dedup.core.entries import Entries, merged
from dedup.core.hash_ranges import hash_range, spread_hashes
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.errors import CatalogError, faults
from dedup.kernel.arrays import U64
from dedup.values.parse import OtherVersion, parse_json

SEGMENT_FORMAT = 1
#: Entry key of the metadata, which sorts after every block number.
META_KEY = b"\xff\xff\xff\xffmeta"

#: Size of a table block, RocksDB's unit of reading. Our segment blocks have about 1.4 KB, so a
#: table block holds three. Smaller table blocks enlarge the index.
_TABLE_BLOCK_BYTES = 4 << 10
_CRC_CHUNK_BYTES = 256 << 10
#: Number of blocks merged, encoded and written at a time.
_CHUNK_BLOCKS = 512


class RocksError(Exception):
    """An error of RocksDB, with its text. It never leaves this package."""

    @property
    def is_corruption(self) -> bool:
        return str(self).startswith("Corruption")


@contextlib.contextmanager
def rocks_errors() -> Iterator[None]:
    """Convert rocksdict's errors, which are plain `Exception`, into `RocksError`."""
    try:
        yield
    except Exception as exc:
        if type(exc) not in (Exception, rocksdict.DbClosedError):
            raise
        raise RocksError(str(exc)) from exc


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """The metadata entry of a segment file. It says which segment the file holds."""

    name: str
    shard: int
    start_ms: int
    end_ms: int
    count: int
    nblocks: int
    hash_key_id: str
    time_bytes: int
    hash_ranges: int
    range_index: int
    #: Whether a digest of the payload is stored beside each ID.
    has_digests: bool
    format: int = SEGMENT_FORMAT

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> SegmentMeta:
        """Return the metadata. Raises OtherVersion for another format, ValueError for damage."""
        fields: Any = parse_json(data)
        shown = f"metadata {data[:200].decode(errors='replace')}"
        if not isinstance(fields, dict) or type(fields.get("format")) is not int:
            raise ValueError(f"{shown} does not describe a segment")
        if fields["format"] != SEGMENT_FORMAT:
            raise OtherVersion(fields["format"], SEGMENT_FORMAT)
        try:
            meta = cls(**fields)
            consistent = meta.to_bytes() == data and meta.nblocks == block_count(meta.count)
        except (TypeError, RecursionError, OverflowError) as exc:
            raise ValueError(f"{shown} has wrong fields") from exc
        if not consistent:
            raise ValueError(f"{shown} contradicts itself")
        return meta

    def check(self, seg: SegmentRef, *, shard: int, hash_key_id: int) -> None:
        """Raise ValueError, which names both values, unless this is the metadata of ``seg``."""
        wanted = {
            "name": seg.name,
            "shard": shard,
            "start_ms": seg.start_ms,
            "end_ms": seg.end_ms,
            "count": seg.count,
            "hash_key_id": f"{hash_key_id:016x}",
            "hash_ranges": seg.hash_ranges,
            "range_index": seg.range_index,
        }
        for field, value in wanted.items():
            if (actual := getattr(self, field)) != value:
                raise ValueError(f"its {field} is {actual!r}, in the manifest {value!r}")


def table_options() -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    # Do not compress: LZ4 saves 0.1 % of IDs and hashes.
    options.set_compression_type(rocksdict.DBCompressionType.none())
    table = rocksdict.BlockBasedOptions()
    table.set_block_size(_TABLE_BLOCK_BYTES)
    # `dedup.catalog.table` reads this format without RocksDB.
    table.set_format_version(6)
    table.set_checksum_type(rocksdict.ChecksumType.xxhash64())
    table.set_block_cache(_BLOCK_CACHE)
    options.set_block_based_table_factory(table)
    return options


#: One small cache for all views of the process. The page cache holds the rest.
_BLOCK_CACHE = rocksdict.Cache(1 << 20)


def write_segment_file(
    path: str | os.PathLike[str],
    *,
    name: str,
    shard: int,
    plan: SegmentPlan,
    pieces: Sequence[Entries],
    hash_key_id: int,
) -> tuple[int, int]:
    """Write entries as a new SST file, and return its size and CRC-32. The file is not synced.

    Raises ValueError if a time is outside the bucket, a hash is outside its range, entries are out
    of order, or a key occurs twice. Raises CatalogError if the local disk is full or fails.
    """
    for piece in filter(len, pieces):
        _check_piece(piece, plan)
    count = sum(map(len, pieces))
    digested = any(piece.digests is not None for piece in pieces)
    nblocks = block_count(count)
    wide_times = plan.end_ms - plan.start_ms > 1 << 32
    meta = SegmentMeta(
        name,
        shard,
        plan.start_ms,
        plan.end_ms,
        count,
        nblocks,
        f"{hash_key_id:016x}",
        time_bytes=8 if wide_times else 4,
        hash_ranges=plan.hash_ranges,
        range_index=plan.range_index,
        has_digests=digested,
    )
    try:
        with rocks_errors():
            writer = rocksdict.SstFileWriter(table_options())
            writer.open(os.fspath(path))
            for chunk in merged(pieces, _chunk_bounds(nblocks, plan)):
                _refuse_repeats(chunk)
                spread = spread_hashes(chunk.hashes, plan.hash_ranges)
                offsets_ms = chunk.times_ms - plan.start_ms
                digests = chunk.digests
                if digested and digests is None:
                    digests = np.zeros(len(chunk), np.uint64)
                for entry_key, block in encode_blocks(
                    chunk.keys, spread, offsets_ms, nblocks, wide_times=wide_times, digests=digests
                ):
                    writer[entry_key] = block
                faults.point("segment.chunk")
            writer[META_KEY] = meta.to_bytes()
            writer.finish()
        return file_crc32(path)
    except (RocksError, OSError) as exc:
        raise CatalogError(
            f"Cannot write segment {name} to {os.fspath(path)}: {exc}. Free space on this disk, or "
            "choose another cache directory.",
            remedy="local-disk",
        ) from exc


def _check_piece(piece: Entries, plan: SegmentPlan) -> None:
    times_ms, hashes = piece.times_ms, piece.hashes
    if not plan.start_ms <= int(times_ms.min()) <= int(times_ms.max()) < plan.end_ms:
        raise ValueError(
            f"times {times_ms.min()} to {times_ms.max()} leave the bucket "
            f"[{plan.start_ms}, {plan.end_ms})"
        )
    if bool((hashes[1:] < hashes[:-1]).any()):
        raise ValueError("entries are not in the order of their hashes")
    if hash_range(hashes, plan.hash_ranges, plan.range_index) != slice(0, len(hashes)):
        raise ValueError(f"hashes leave range {plan.range_index} of {plan.hash_ranges}")


def _chunk_bounds(nblocks: int, plan: SegmentPlan) -> U64:
    bits = plan.hash_ranges.bit_length() - 1
    bounds = block_bounds(nblocks, _CHUNK_BLOCKS) >> np.uint64(bits)
    return bounds | np.uint64(plan.range_index << (64 - bits)) if bits else bounds


def file_crc32(path: str | os.PathLike[str]) -> tuple[int, int]:
    size = crc = 0
    chunk = memoryview(bytearray(_CRC_CHUNK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while read := file.readinto(chunk):
            size, crc = size + read, zlib.crc32(chunk[:read], crc)
    return size, crc


def _refuse_repeats(entries: Entries) -> None:
    # A lookup returns one time, so of two entries with the same ID the first hides the second.
    keys, hashes = entries.keys, entries.hashes
    for i in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
        if keys[i] == keys[i + 1]:
            raise ValueError(f"key {keys[i][:64]!r} occurs twice; a segment holds an ID once")
