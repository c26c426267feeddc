"""`ShardStore`: what the shard logic of the core talks to, over a real catalog."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from dedup import kernel
from dedup.catalog.cache import LocalCache
from dedup.catalog.certificate import derive_keys, filter_key_id
from dedup.catalog.counters import Counters
from dedup.catalog.graves import read_grave, write_grave
from dedup.catalog.layout import (
    GRAVE_SUFFIX,
    SEGMENT_SUFFIX,
    SIDECAR_SUFFIX,
    segment_name,
    shard_path,
)
from dedup.catalog.root import Root
from dedup.catalog.segment import write_segment_file
from dedup.catalog.sidecars import Sidecars
from dedup.catalog.tombstone import read_tombstone
from dedup.catalog.view import OpenViews, Views
from dedup.core.filter import SplitBlockFilter, head_bytes
from dedup.core.keys import Keys
from dedup.core.ports import BOOL, I64, U64, SegmentRef, hash_range


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who writes: micro-batch, run and task attempt. Together they are unique for ever."""

    epoch: int
    run_id: str
    task_attempt_id: int


class ShardStore:
    """The segments of one shard; implements `dedup.core.ports.SegmentStore`.

    Parameters
    ----------
    root : Root
        Where segments live.
    cache : LocalCache
        Where views and copies of them live on this machine.
    query_id : str
        Whose catalog it is; hash keys are derived from it.
    shard : int
        Which shard, >= 0.
    attempt : Attempt
        Who writes. One store per attempt and shard: the names of segments count from 0.
    open_views
        Budget of open files; default: the process's own.

    Attributes
    ----------
    counters : Counters
        What was done since the last ``counters.take()``.
    """

    def __init__(
        self,
        root: Root,
        cache: LocalCache,
        *,
        query_id: str,
        shard: int,
        attempt: Attempt,
        open_views: OpenViews | None = None,
    ) -> None:
        self.counters = Counters()
        self._root = root
        self._cache = cache
        self._query_id = query_id
        self._shard = shard
        self._attempt = attempt
        self._names_given = 0
        self._hash_key = derive_keys(query_id)[1]
        self._hash_key_id = filter_key_id(query_id)
        self._views = Views(
            root,
            cache,
            query_id=query_id,
            shard=shard,
            hash_key_id=self._hash_key_id,
            counters=self.counters,
            open_views=open_views,
        )
        self._sidecars = Sidecars(
            root,
            cache,
            self._views,
            query_id=query_id,
            shard=shard,
            hash_key=self._hash_key,
            hash_key_id=self._hash_key_id,
            counters=self.counters,
        )

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        """Return which hashes the segment's filter may hold, shape (n,).

        Parameters
        ----------
        seg : SegmentRef
            Whose filter; it is rebuilt from the segment where damaged.
        hashes : ndarray of uint64, shape (n,)
            Never falling, in the segment's range.

        Raises
        ------
        SegmentDamaged
            When sidecar and segment are both missing or damaged.
        CatalogError
            When the root cannot be reached, or the local disk fails.
        """
        return self._sidecars.may_hold(seg, hashes)

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64) -> I64:
        """Return the timestamp (ms) of each of n keys, shape (n,); `ABSENT_MS` where absent.

        Raises
        ------
        SegmentDamaged
            When the segment is missing or damaged at the root.
        CatalogError
            When the root cannot be reached, or the local disk fails.
        """
        return self._views.lookup(seg, keys, hashes)

    def read_segment(self, seg: SegmentRef, parts: int = 1, part: int = 0) -> tuple[Keys, U64, I64]:
        """Return all keys of a range of hashes, hashes and timestamps, in (hash, key) order.

        Parameters
        ----------
        seg : SegmentRef
        parts, part : int
            Range ``part`` of ``parts`` equal ones; default: all.

        Raises
        ------
        SegmentDamaged, CatalogError
            As `lookup`.
        """
        keys, times_ms = self._views.read(seg, parts, part)
        hashes = kernel.hash64(keys.data, keys.offsets, self._hash_key)
        inside = hash_range(hashes, parts, part)
        if inside == slice(0, len(hashes)):
            return keys, hashes, times_ms
        some = Keys(keys.data, keys.offsets[inside.start : inside.stop + 1])
        return some, hashes[inside], times_ms[inside]

    def write_segment(
        self,
        start_ms: int,
        end_ms: int,
        keys: Keys,
        hashes: U64,
        times_ms: I64,
        fpr: float,
        parts: int = 1,
        part: int = 0,
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        """Write n distinct keys as a new segment with its sidecar, both durable on return.

        Parameters
        ----------
        start_ms, end_ms : int
            The bucket.
        keys : Keys
            n distinct keys, in any order.
        hashes : ndarray of uint64, shape (n,)
            Their hashes under the query's filter key.
        times_ms : ndarray of int64, shape (n,)
            Their timestamps, in ``[start_ms, end_ms)``.
        fpr : float
            Target false-positive rate of the sidecar, between 0 and 1.
        parts, part : int
            All hashes lie in range ``part`` of ``parts`` equal ones, a power of two.

        Raises
        ------
        ValueError
            When the arguments contradict each other; nothing is written.
        CatalogError
            When root or local disk fail, or the name is taken.
        """
        if len(keys):
            first = kernel.hash64(keys.data, keys.offsets[:2], self._hash_key)
            if len(hashes) == 0 or first[0] != hashes[0]:
                raise ValueError("the hashes are not those of the keys under the filter key")
        name = self._next_name()
        with self._cache.scratch() as folder:
            sst = folder / "segment"
            info = write_segment_file(
                sst,
                name=name,
                shard=self._shard,
                start_ms=start_ms,
                end_ms=end_ms,
                keys=keys,
                hashes=hashes,
                times_ms=times_ms,
                hash_key_id=self._hash_key_id,
                parts=parts,
                part=part,
            )
            spread = hashes << np.uint64(parts.bit_length() - 1)
            built = SplitBlockFilter.build(spread, fpr, hash_key_id=self._hash_key_id)
            sidecar = built.to_bytes()
            # The segment comes last: where it is, its sidecar is too.
            (folder / "sidecar").write_bytes(sidecar)
            self._root.put_file(self._path(name + SIDECAR_SUFFIX), folder / "sidecar")
            self._root.put_file(self._path(name + SEGMENT_SUFFIX), sst)
        self.counters.segments_written += 1
        self.counters.bytes_written += info.sst_bytes + len(sidecar)
        ref = SegmentRef(
            name,
            start_ms,
            end_ms,
            info.count,
            info.sst_bytes,
            info.sst_crc32,
            len(sidecar),
            crc32(sidecar[: head_bytes(built.blocks)]),
            parts,
            part,
        )
        return ref, built

    def delete(self, names: Sequence[str]) -> int:
        """Delete the segments of these names with all that belongs to them; return how many.

        Raises
        ------
        CatalogError
            When the root cannot be reached; some may be deleted then.
        """
        deleted = self._root.delete(self._path(name + SEGMENT_SUFFIX) for name in names)
        self._root.delete(self._path(name + SIDECAR_SUFFIX) for name in names)
        self._views.drop(names)
        self._sidecars.drop(names)
        self.counters.segments_deleted += deleted
        return deleted

    def bury(self, names: Sequence[str]) -> str:
        """Write names of expired segments as one durable object; return the object's name.

        Raises
        ------
        CatalogError
            When the root cannot be written.
        """
        grave = self._next_name()
        write_grave(self._root, self._query_id, self._shard, grave, names)
        return grave

    def unbury(self, grave: str) -> int:
        """Delete the segments that such an object names, then the object; return how many.

        Raises
        ------
        CatalogError
            When the root cannot be reached; some may be deleted then.
        """
        deleted = self.delete(read_grave(self._root, self._query_id, self._shard, grave))
        self._root.delete([self._path(grave + GRAVE_SUFFIX)])
        return deleted

    def forgotten(self, seg: SegmentRef) -> bool:
        """Tell whether a user accepted the loss of this segment (its tombstone is there).

        Raises
        ------
        CatalogError
            When there is a tombstone, but damaged or for another bucket: that is no consent.
        """
        return read_tombstone(self._root, self._query_id, self._shard, seg) is not None

    def _next_name(self) -> str:
        attempt = self._attempt
        name = segment_name(
            attempt.epoch, attempt.run_id, attempt.task_attempt_id, self._names_given
        )
        self._names_given += 1
        return name

    def _path(self, file: str | os.PathLike[str]) -> str:
        return shard_path(self._query_id, self._shard, os.fspath(file))
