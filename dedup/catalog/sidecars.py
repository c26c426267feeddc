"""Filter sidecars: files beside segments that hold their filters (invariant 7).

A lookup probes a sidecar page by page, without loading the whole file. A damaged sidecar is rebuilt
from its segment.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from dedup.catalog.layout import SIDECAR_SUFFIX
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.view import Views
from dedup.core.filter import BLOCK_BYTES, FilterHead, SplitBlockFilter, blocks_in, head_bytes
from dedup.core.segment import SegmentRef
from dedup.core.sizing import predicted_fpr
from dedup.errors import FilterDamaged, faults
from dedup.kernel.arrays import BOOL, U64
from dedup.storage.root import ObjectMissing

_REBUILT_SUFFIX = ".rebuilt"
_OWNER_BYTES = 4


class Sidecars:
    """The filters of one shard's segments. ``views`` reads a segment to rebuild its filter."""

    def __init__(self, files: ShardFiles, views: Views) -> None:
        self._files = files
        self._views = views
        self._root, self._cache, self._counters = files.root, files.cache, files.counters
        self._hash_key_id = files.hash_key_id

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        """Return for each hash whether the segment's filter may hold it.

        The answer is always True for an ID of the segment. If the sidecar is missing or damaged,
        the method rebuilds it from the segment, and keeps it in the local cache, not at the root.
        """
        spread = seg.spread(hashes)
        for path, head_crc32 in self._places(seg):
            with suppress(OSError, FilterDamaged):
                return self._probe(path, seg, spread, head_crc32)
        return self._rebuild(seg).may_contain(spread)

    def read(self, seg: SegmentRef) -> SplitBlockFilter | None:
        """Return the segment's filter, or None if no intact sidecar is on this machine.

        Nothing is fetched, because no verdict needs the filter here: `may_hold` fetches sidecars.
        """
        file = seg.name + SIDECAR_SUFFIX
        path = self._root.local_path(self._files.path(file)) or self._files.entry(file)
        with suppress(OSError, FilterDamaged):
            intact = SplitBlockFilter.from_bytes(
                path.read_bytes(), hash_key_id=self._hash_key_id, head_crc32=seg.filter_crc32
            )
            faults.point("sidecar.read.after")
            return intact
        return None

    def keep(self, name: str, sidecar: Path) -> None:
        """Move a sidecar just written into the cache, so that it need not be fetched."""
        self._cache.publish(sidecar, self._files.entry(name + SIDECAR_SUFFIX))

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            for suffix in (SIDECAR_SUFFIX, _REBUILT_SUFFIX):
                self._cache.discard(self._files.entry(name + suffix))

    def _places(self, seg: SegmentRef) -> Iterator[tuple[Path, int | None]]:
        """Yield the files that may hold the filter, best first.

        Each file comes with the CRC-32 that the filter's head must have, or None if that is
        unknown.
        """
        file = seg.name + SIDECAR_SUFFIX
        name, copy = self._files.path(file), self._files.entry(file)
        at_root = self._root.local_path(name)
        if at_root is not None:
            yield at_root, seg.filter_crc32
        rebuilt = self._files.entry(seg.name + _REBUILT_SUFFIX)
        for path, head_crc32 in ((copy, seg.filter_crc32), (rebuilt, None)):
            if path.exists():
                self._cache.touch(path)
                yield path, head_crc32
                self._cache.discard(path)
        # Last, because a filter was rebuilt only if the sidecar at the root is unusable.
        if at_root is None:
            with suppress(ObjectMissing), self._cache.scratch() as folder:
                self._counters.bytes_fetched += self._root.fetch(name, folder / file)[0]
                faults.point("sidecar.fetch.after", folder / file)
                self._cache.publish(folder / file, copy)
                yield copy, seg.filter_crc32
                self._cache.discard(copy)

    def _probe(self, path: Path, seg: SegmentRef, spread: U64, head_crc32: int | None) -> BOOL:
        """Probe the filter in a file.

        Raises OSError or FilterDamaged if the file does not hold the segment's filter.
        """
        with open(path, "rb", buffering=0) as file:
            fd = file.fileno()

            def read_into(offset: int, buffer: memoryview) -> None:
                if os.preadv(fd, [buffer], offset) != len(buffer):
                    raise OSError(f"{path} ends too early")

            def read(size: int, offset: int) -> memoryview:
                data = memoryview(bytearray(size))
                read_into(offset, data)
                return data

            blocks = blocks_in(seg.filter_bytes)
            data = read(head_bytes(blocks), 0)
            head = FilterHead.from_bytes(data, hash_key_id=self._hash_key_id, head_crc32=head_crc32)
            if head_crc32 is None:
                owner = read(_OWNER_BYTES, head.nbytes + blocks * BLOCK_BYTES)
                if owner != _owner(seg, data):
                    raise FilterDamaged(f"{path} was made for another segment than {seg.name}")
            if head.count != seg.count:
                raise FilterDamaged(f"{path} holds {head.count} IDs, its segment {seg.count}")
            return head.may_contain(
                spread, lambda offset, buffer: read_into(head.nbytes + offset, buffer)
            )

    def _rebuild(self, seg: SegmentRef) -> SplitBlockFilter:
        entries = self._views.read(seg)
        blocks = blocks_in(seg.filter_bytes)
        rebuilt = SplitBlockFilter(
            np.zeros(8 * blocks, np.uint32),
            count=0,
            fpr=predicted_fpr(seg.count, blocks),
            hash_key_id=self._hash_key_id,
        )
        rebuilt.add(seg.spread(entries.hashes))
        self._counters.filters_rebuilt += 1
        data = rebuilt.to_bytes()
        with self._cache.scratch() as folder:
            self._cache.write(folder / "filter", data + _owner(seg, data[: head_bytes(blocks)]))
            self._cache.publish(folder / "filter", self._files.entry(seg.name + _REBUILT_SUFFIX))
        return rebuilt


def _owner(seg: SegmentRef, head: bytes | memoryview) -> bytes:
    """Return the bytes that a rebuilt filter ends with, which name its segment."""
    return zlib.crc32(seg.name.encode(), zlib.crc32(head)).to_bytes(_OWNER_BYTES, "little")
