"""`ShardStore`: the catalog's implementation of the interface that the engine uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from dedup import kernel
from dedup.catalog.accepted_loss import read_accepted_loss
from dedup.catalog.gc.pending_lists import read_pending_list, write_pending_list
from dedup.catalog.layout import PENDING_LIST_SUFFIX, SEGMENT_SUFFIX, SIDECAR_SUFFIX, segment_name
from dedup.catalog.open_views import OpenViews
from dedup.catalog.segment_file import write_segment_file
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.sidecars import Sidecars
from dedup.catalog.view import Views
from dedup.core.entries import Entries
from dedup.core.filter import SplitBlockFilter, head_bytes
from dedup.core.hash_ranges import hash_range, spread_hashes
from dedup.core.keys import Keys
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.errors import faults
from dedup.kernel.arrays import BOOL, I64, U64


@dataclass(frozen=True, slots=True)
class Attempt:
    """The micro-batch, run and task attempt of a writer. Together they are unique."""

    epoch: int
    run_id: str
    task_attempt_id: int


class ShardStore:
    """The segments of one shard at a root, by the contract of `dedup.core.ports.SegmentStore`.

    Use one store per attempt and shard, because a store numbers its segments from 0. By default all
    stores of the process share ``open_views``.
    """

    def __init__(
        self, files: ShardFiles, attempt: Attempt, open_views: OpenViews | None = None
    ) -> None:
        self.counters = files.counters
        self._files = files
        self._root, self._query_id, self._shard = files.root, files.query_id, files.shard
        self._attempt = attempt
        self._names_given = 0
        self._hash_key = files.hash_key
        self._views = Views(files, open_views)
        self._sidecars = Sidecars(files, self._views)

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        return self._sidecars.may_hold(seg, hashes)

    def read_filter(self, seg: SegmentRef) -> SplitBlockFilter | None:
        return self._sidecars.read(seg)

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64, digests: U64 | None = None) -> I64:
        return self._views.lookup(seg, keys, hashes, digests)

    def read_segment(self, seg: SegmentRef, hash_ranges: int = 1, range_index: int = 0) -> Entries:
        entries = self._views.read(seg, hash_ranges, range_index)
        faults.point("merge.read.after")
        return entries[hash_range(entries.hashes, hash_ranges, range_index)]

    def write_segment(
        self, plan: SegmentPlan, pieces: Sequence[Entries]
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        for piece in filter(len, pieces):
            first = kernel.hash64(piece.keys.data, piece.keys.offsets[:2], self._hash_key)
            if first[0] != piece.hashes[0]:
                raise ValueError("the hashes do not belong to the keys under the filter key")
        name = self._next_name()
        with self._files.cache.scratch() as folder:
            sst, sidecar = folder / "segment", folder / "sidecar"
            key_id, count = self._files.hash_key_id, sum(map(len, pieces))
            sst_bytes, sst_crc32 = write_segment_file(
                sst, name=name, shard=self._shard, plan=plan, pieces=pieces, hash_key_id=key_id
            )
            built = SplitBlockFilter.sized(count, plan.fpr, hash_key_id=key_id)
            for piece in pieces:
                built.add(spread_hashes(piece.hashes, plan.hash_ranges))
            faults.point("segment.write.after", sst)
            content = built.to_bytes()
            self._files.cache.write(sidecar, content)
            self._put(name, sst, sidecar)
        self.counters.bytes_written += sst_bytes + len(content)
        ref = SegmentRef(
            name,
            plan.start_ms,
            plan.end_ms,
            count,
            sst_bytes,
            sst_crc32,
            len(content),
            crc32(content[: head_bytes(built.blocks)]),
            plan.hash_ranges,
            plan.range_index,
        )
        return ref, built

    def _put(self, name: str, sst: Path, sidecar: Path) -> None:
        # The segment comes last, so that a segment at the root always has its sidecar.
        faults.point("sidecar.put.before", sidecar)
        self._root.put_file(self._files.path(name + SIDECAR_SUFFIX), sidecar)
        faults.point("sidecar.put.after")
        self._root.put_file(self._files.path(name + SEGMENT_SUFFIX), sst)
        faults.point("segment.put.after")
        if self._root.local_path(self._files.path(name)) is None:
            self._sidecars.keep(name, sidecar)
            self._views.keep(name, sst)

    def delete(self, names: Sequence[str]) -> int:
        faults.point("delete.before")
        deleted = self._root.delete(self._files.path(name + SEGMENT_SUFFIX) for name in names)
        faults.point("delete.between")
        self._root.delete(self._files.path(name + SIDECAR_SUFFIX) for name in names)
        self._views.drop(names)
        self._sidecars.drop(names)
        faults.point("delete.after")
        return deleted

    def spill_pending(self, names: Sequence[str]) -> str:
        pending_list = self._next_name()
        faults.point("pending_list.put.before")
        write_pending_list(self._root, self._query_id, self._shard, pending_list, names)
        faults.point("pending_list.put.after")
        return pending_list

    def delete_pending(self, pending_list: str) -> int:
        deleted = self.delete(
            read_pending_list(self._root, self._query_id, self._shard, pending_list)
        )
        self._root.delete([self._files.path(pending_list + PENDING_LIST_SUFFIX)])
        return deleted

    def loss_accepted(self, seg: SegmentRef) -> bool:
        return read_accepted_loss(self._root, self._query_id, self._shard, seg) is not None

    def _next_name(self) -> str:
        attempt = self._attempt
        name = segment_name(
            attempt.epoch, attempt.run_id, attempt.task_attempt_id, self._names_given
        )
        self._names_given += 1
        return name
