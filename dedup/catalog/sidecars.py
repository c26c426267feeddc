"""Filter sidecars: loaded once per process, checked, and rebuilt where they cannot be trusted."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa

from dedup import kernel
from dedup.catalog.cache import LocalCache
from dedup.catalog.counters import Counters
from dedup.catalog.layout import SIDECAR_SUFFIX, shard_path
from dedup.catalog.root import ObjectMissing, Root
from dedup.catalog.view import Views
from dedup.core.filter import BLOCK_BYTES, HEADER_BYTES, SplitBlockFilter, predicted_fpr
from dedup.core.ports import SegmentRef
from dedup.errors import FilterDamaged

#: Filters that a process keeps in memory.
MAX_LOADED_BYTES = 256 << 20
_REBUILT_SUFFIX = ".rebuilt"


class LoadedFilters:
    """The sidecars that this process has read and checked; least recently used go first.

    Parameters
    ----------
    max_bytes
        Bound of their size, > 0; the newest is kept whatever its size.
    """

    def __init__(self, max_bytes: int = MAX_LOADED_BYTES) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._filters: OrderedDict[str, tuple[int, SplitBlockFilter]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._filters)

    def get(self, path: str, crc: int) -> SplitBlockFilter | None:
        """Return the loaded filter of this path and checksum; None where it is not loaded."""
        with self._lock:
            found_crc, found = self._filters.get(path, (None, None))
            if found is None or found_crc != crc:
                return None
            self._filters.move_to_end(path)
            return found

    def add(self, path: str, crc: int, loaded: SplitBlockFilter) -> None:
        """Take a filter in; one that goes is freed when nobody uses it any more."""
        with self._lock:
            self._remove(path)
            self._filters[path] = crc, loaded
            self.nbytes += loaded.nbytes
            while self.nbytes > self.max_bytes and len(self._filters) > 1:
                self._remove(next(iter(self._filters)))

    def drop(self, path: str) -> None:
        """Let go of a filter, where it is loaded."""
        with self._lock:
            self._remove(path)

    def clear(self) -> None:
        """Let go of all filters."""
        with self._lock:
            self._filters.clear()
            self.nbytes = 0

    def _remove(self, path: str) -> None:
        _, gone = self._filters.pop(path, (0, None))
        if gone is not None:
            self.nbytes -= gone.nbytes


#: Shared by all shards and queries of the process.
PROCESS_FILTERS = LoadedFilters()


class Sidecars:
    """Filters of one shard's segments.

    Parameters
    ----------
    root, cache, views
        Where sidecars are, where fetched and rebuilt ones go, and how segments are read.
    query_id, shard, hash_key, hash_key_id
        Whose they are, and the key of their hashes.
    counters
        Where work is counted.
    loaded
        Default: the process's own.
    """

    def __init__(
        self,
        root: Root,
        cache: LocalCache,
        views: Views,
        *,
        query_id: str,
        shard: int,
        hash_key: bytes,
        hash_key_id: int,
        counters: Counters,
        loaded: LoadedFilters | None = None,
    ) -> None:
        self._root = root
        self._cache = cache
        self._views = views
        self._query_id = query_id
        self._shard = shard
        self._hash_key = hash_key
        self._hash_key_id = hash_key_id
        self._counters = counters
        self._loaded = PROCESS_FILTERS if loaded is None else loaded

    def load(self, seg: SegmentRef) -> SplitBlockFilter:
        """Return the filter of a segment. It never lacks an ID that the segment holds.

        A sidecar that is missing or damaged is made again from the segment, in the local cache;
        the root is never changed.

        Raises
        ------
        SegmentDamaged
            When the segment is missing or damaged as well.
        CatalogError
            When the root cannot be reached, or the local disk fails.
        """
        path = self._url(seg.name)
        found = self._loaded.get(path, seg.filter_crc32)
        if found is None:
            found = self._from_root(seg) or self._from_rebuilt(seg) or self._rebuild(seg)
            self._loaded.add(path, seg.filter_crc32, found)
        return found

    def drop(self, names: Iterable[str]) -> None:
        """Remove the local copies of these segments' sidecars."""
        for name in names:
            self._loaded.drop(self._url(name))
            for suffix in (SIDECAR_SUFFIX, _REBUILT_SUFFIX):
                self._cache.discard(self._cache.entry(self._shard, name + suffix))

    def _from_root(self, seg: SegmentRef) -> SplitBlockFilter | None:
        file = seg.name + SIDECAR_SUFFIX
        name = shard_path(self._query_id, self._shard, file)
        at_root = self._root.local_path(name)
        if at_root is not None:
            return self._checked(at_root, seg)
        copy = self._cache.entry(self._shard, file)
        found = self._checked(copy, seg)
        if found is None:
            with suppress(ObjectMissing), self._cache.scratch() as folder:
                self._counters.bytes_fetched += self._root.fetch(name, folder / file)[0]
                self._cache.publish(folder / file, copy)
            found = self._checked(copy, seg)
        return found

    def _checked(self, path: Path, seg: SegmentRef) -> SplitBlockFilter | None:
        """Read a sidecar whose bytes are those that the manifest vouches for; None otherwise."""
        with suppress(OSError, ValueError, FilterDamaged):
            data = _read(path)
            if len(data) == seg.filter_bytes and crc32(data) == seg.filter_crc32:
                found = SplitBlockFilter.from_buffer(
                    data, hash_key_id=self._hash_key_id, check_bits=False
                )
                self._counters.filters_loaded += 1
                self._cache.touch(path)
                return found
        return None

    def _from_rebuilt(self, seg: SegmentRef) -> SplitBlockFilter | None:
        path = self._cache.entry(self._shard, seg.name + _REBUILT_SUFFIX)
        with suppress(OSError, ValueError, FilterDamaged):
            found = SplitBlockFilter.from_buffer(_read(path), hash_key_id=self._hash_key_id)
            if found.count == seg.count:
                self._counters.filters_loaded += 1
                self._cache.touch(path)
                return found
        return None

    def _rebuild(self, seg: SegmentRef) -> SplitBlockFilter:
        keys, _ = self._views.read_all(seg)
        blocks = max(1, (seg.filter_bytes - HEADER_BYTES) // BLOCK_BYTES)
        rebuilt = SplitBlockFilter(
            np.zeros(8 * blocks, np.uint32),
            count=0,
            fpr=predicted_fpr(seg.count, blocks),
            hash_key_id=self._hash_key_id,
        )
        rebuilt.add(kernel.hash64(keys.data, keys.offsets, self._hash_key))
        self._counters.filters_rebuilt += 1
        with self._cache.scratch() as folder:
            (folder / "filter").write_bytes(rebuilt.to_bytes())
            self._cache.publish(
                folder / "filter", self._cache.entry(self._shard, seg.name + _REBUILT_SUFFIX)
            )
        return rebuilt

    def _url(self, name: str) -> str:
        return self._root.url(shard_path(self._query_id, self._shard, name + SIDECAR_SUFFIX))


def _read(path: Path) -> memoryview:
    """The file's bytes in memory of our own, aligned to 64 bytes.

    Not mapped: what is checked once must stay as it was, whatever happens to the file.
    """
    with open(path, "rb", buffering=0) as file:
        view = memoryview(pa.allocate_buffer(os.fstat(file.fileno()).st_size))
        if file.readinto(view) != len(view):
            raise OSError(f"{path} changed while it was read")
        return view
