"""Views: local read-only RocksDB databases, each over exactly one segment.

A view holds nothing but a segment that the manifest names. So a database never holds an ID that the
manifest does not cover (invariant 1). A view is built in a private folder and renamed into place.
The view is open for writing only while it is built (invariant 5).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from dedup.catalog.blocks import block_count
from dedup.catalog.database import View, build_view, decode_all, decode_range, find, open_view
from dedup.catalog.layout import SEGMENT_SUFFIX
from dedup.catalog.open_views import PROCESS_VIEWS, OpenViews
from dedup.catalog.segment_file import RocksError, file_crc32, rocks_errors
from dedup.catalog.shard_files import ShardFiles
from dedup.core.entries import Entries
from dedup.core.keys import Keys
from dedup.core.segment import SegmentRef
from dedup.errors import CatalogError, OtherRelease, SegmentDamaged, faults
from dedup.kernel.arrays import I64, U64
from dedup.storage.root import ObjectMissing
from dedup.values.parse import OtherVersion

T = TypeVar("T")

VIEW_SUFFIX = ".view"
#: Errors of a view that does not work.
_BROKEN = (RocksError, OSError, ValueError)


class Views:
    """The local views of one shard, through which lookups and merges read segments.

    A view that is missing or damaged is rebuilt from the root, once per call. A segment whose
    metadata names another shard counts as damaged.
    """

    def __init__(self, files: ShardFiles, open_views: OpenViews | None = None) -> None:
        self._files = files
        self._root, self._cache, self._counters = files.root, files.cache, files.counters
        self._hash_key_id = files.hash_key_id
        self._open_views = PROCESS_VIEWS if open_views is None else open_views

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64, digests: U64 | None = None) -> I64:
        if len(keys) == 0:
            return np.empty(0, np.int64)
        search = partial(
            find, keys=keys, hashes=seg.spread(hashes), sst_bytes=seg.sst_bytes, digests=digests
        )
        times_ms, blocks_read = self._read(seg, search)
        self._counters.catalog_reads += blocks_read
        return times_ms

    def read(self, seg: SegmentRef, hash_ranges: int = 1, range_index: int = 0) -> Entries:
        """Return the entries of a range of hashes, sorted by hash, then key.

        The result may also have a few entries of adjacent ranges.
        """
        share = hash_ranges // seg.hash_ranges
        if share <= 1:
            return self._read(seg, partial(decode_all, hash_key=self._files.hash_key))
        nth, nblocks = range_index - seg.range_index * share, block_count(seg.count)
        first, last = nth * nblocks // share, -(-(nth + 1) * nblocks // share) - 1
        return self._read(
            seg, partial(decode_range, hash_key=self._files.hash_key, first=first, last=last)
        )

    def drop(self, names: Iterable[str]) -> None:
        with self._open_views.lock:
            for name in names:
                self._discard(self._path(name))
                self._cache.discard(self._kept(name))

    def keep(self, name: str, sst: Path) -> None:
        self._cache.publish(sst, self._kept(name))

    def _read(self, seg: SegmentRef, action: Callable[[View], T]) -> T:
        path = self._path(seg.name)
        with self._open_views.lock:
            try:
                return self._attempt(seg, path, action, checked=False)
            except _BROKEN:
                self._discard(path)
                self._counters.views_rebuilt += 1
            try:
                return self._attempt(seg, path, action, checked=True)
            except _BROKEN as exc:
                self._discard(path)
                if isinstance(exc, OtherVersion):
                    # The file matches the manifest's checksum, so it is not damaged.
                    name = self._files.path(seg.name + SEGMENT_SUFFIX)
                    raise OtherRelease.at(self._root.url(name), exc) from exc
                # Other errors concern this machine, e.g. a file that cannot be created.
                if isinstance(exc, ValueError) or (
                    isinstance(exc, RocksError) and exc.is_corruption
                ):
                    raise self._damaged(seg, exc) from exc
                raise CatalogError(
                    f"The local view {path} cannot be read, though its segment is intact: {exc}. "
                    "Free space and file descriptors on this machine, or choose another cache "
                    "directory.",
                    remedy="local-disk",
                ) from exc

    def _attempt(
        self, seg: SegmentRef, path: Path, action: Callable[[View], T], *, checked: bool
    ) -> T:
        with rocks_errors():
            view = self._open_views.get(path) or self._open(seg, path, checked=checked)
            view.meta.check(seg, shard=self._files.shard, hash_key_id=self._hash_key_id)
            return action(view)

    def _open(self, seg: SegmentRef, path: Path, *, checked: bool) -> View:
        if not path.exists():
            self._build(seg, path, checked=checked)
        view = open_view(path)
        self._cache.touch(path)
        self._open_views.add(path, view)
        return view

    def _build(self, seg: SegmentRef, path: Path, *, checked: bool) -> None:
        with self._cache.scratch() as folder:
            copy = folder / "segment"
            # Try twice, because an object store may truncate an answer (see `Root.read`).
            for again in (checked, True):
                size, crc = self._bring(seg, copy, checked=again)
                if size == seg.sst_bytes and crc in (None, seg.sst_crc32):
                    break
            else:
                raise self._damaged(
                    seg,
                    f"its file has {size} bytes and CRC-32 {crc}, "
                    f"the manifest says {seg.sst_bytes} and {seg.sst_crc32}",
                )
            faults.point("view.build.before", copy)
            build_view(copy, folder / "view")
            faults.point("view.build.after")
            self._cache.publish(folder / "view", path)
            faults.point("view.publish.after")
        self._counters.views_built += 1

    def _bring(self, seg: SegmentRef, copy: Path, *, checked: bool) -> tuple[int, int | None]:
        """Link or copy the segment to a local file, and return its size and CRC-32.

        The CRC-32 is None if the file was linked and not read.
        """
        name = self._files.path(seg.name + SEGMENT_SUFFIX)
        try:
            local = self._root.local_path(name)
            if local is not None and _linked(local, copy):
                return file_crc32(copy) if checked else (copy.stat().st_size, None)
            if local is None and _linked(self._kept(seg.name), copy):
                self._cache.discard(self._kept(seg.name))
                if (size_and_crc := file_crc32(copy)) == (seg.sst_bytes, seg.sst_crc32):
                    return size_and_crc
            fetched = self._root.fetch(name, copy)
        except ObjectMissing as exc:
            raise self._damaged(seg, "its file is missing") from exc
        except OSError as exc:
            raise CatalogError(
                f"Cannot read {self._root.url(name)}: {exc}. Check that its disk is healthy and "
                "that this user may read it. Then start the query again.",
                remedy="storage",
            ) from exc
        self._counters.bytes_fetched += fetched[0]
        return fetched

    def _damaged(self, seg: SegmentRef, why: object) -> SegmentDamaged:
        start, end = (f"{np.datetime64(ms, 'ms')}Z" for ms in (seg.start_ms, seg.end_ms))
        where = self._root.url(self._files.path(seg.name + SEGMENT_SUFFIX))
        return SegmentDamaged(
            f"Segment {seg.name} of shard {self._files.shard}, bucket [{start}, {end}) with "
            f"{seg.count} IDs, is missing or damaged at {where}: {why}. Restore this file from a "
            "backup. Or accept that records of this bucket may pass twice, and start the query "
            f"again after: dedup catalog accept-loss {self._root.url()} --segment {seg.name}",
            remedy="damaged-segment",
        )

    def _path(self, name: str) -> Path:
        return self._files.entry(name + VIEW_SUFFIX)

    def _kept(self, name: str) -> Path:
        return self._files.entry(name + SEGMENT_SUFFIX)

    def _discard(self, path: Path) -> None:
        self._open_views.close(path)
        self._cache.discard(path)


def _linked(source: Path, link: Path) -> bool:
    try:
        os.link(source, link)
    except OSError:  # missing, on another disk, or no links: the caller's fetch reports it
        return False
    return True
