"""A catalog with one of every kind of file that we write, and the truth about it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dedup import kernel
from dedup.catalog.backup import write_adopted, write_backup
from dedup.catalog.cache import LocalCache
from dedup.catalog.compatibility import create_or_check
from dedup.catalog.gc.lineage import Lineage, Run
from dedup.catalog.gc.runs import mark_through, write_lineage
from dedup.catalog.layout import PENDING_LIST_SUFFIX, certificate_path, run_path, shard_path
from dedup.catalog.open_views import OpenViews
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.bucket import Bucket
from dedup.core.clocks import Clocks, SourceClock
from dedup.core.entries import Entries
from dedup.core.filter import SplitBlockFilter
from dedup.core.keys import Keys
from dedup.core.manifest import Expired, Manifest, PendingList
from dedup.core.payload import digests_of
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.core.sharding import derive_keys
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.spark.id_encoding import ENCODING
from dedup.storage.root import Root
from dedup.tools.repair.segment_check import write_accepted_loss
from tests.support.catalog import SECRET, Content, DirectoryFileSystem, certificate

QUERY, OTHER_QUERY = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "0d4a1185-0000-4d01-b42d-00cf4fc964ff"
RUN, OLD_RUN = "11111111-2222-4333-8444-555555555555", "99999999-2222-4333-8444-555555555555"
START_MS, BUCKET_MS = 1_700_000_000_000, 600_000
SHARDS = 2
EPOCH = 9


@dataclass
class World:
    """One query's catalog on disk.

    `remote`: over a file system that pyarrow does not know to be local.
    """

    path: Path
    query_id: str = QUERY
    remote: bool = False
    seed: int = 1
    ids: int = 150
    #: Which shards compare payloads.
    digested_shards: frozenset[int] = frozenset()
    states: dict[int, ShardState] = field(default_factory=dict)
    truth: dict[str, Content] = field(default_factory=dict)
    lineages: dict[str, Lineage] = field(default_factory=dict)
    pending_lists: dict[str, list[str]] = field(default_factory=dict)
    stores: int = 0
    open_views: OpenViews = field(default_factory=lambda: OpenViews(8))

    def __post_init__(self) -> None:
        self.root = Root(DirectoryFileSystem(f"{self.path}/remote") if self.remote else self.folder)
        self.certificate = certificate(
            self.query_id,
            shards=SHARDS,
            id_columns=(("id", "string"), ("n", "bigint")),
            encoding=ENCODING,
        )
        create_or_check(self.root, self.certificate)
        for shard in range(SHARDS):
            self._fill(shard)
        for began, run_id in ((0, OLD_RUN), (7, RUN)):
            before = self.lineages[OLD_RUN].runs if began else ()
            self.lineages[run_id] = Lineage((*before, Run(run_id, began)))
            write_lineage(self.root, self.query_id, self.lineages[run_id])
        mark_through(self.root, self.query_id, Run(RUN, 7), EPOCH)
        # Its readers run on other machines than its writer.
        self.close()
        shutil.rmtree(self.cache_folder)

    @property
    def folder(self) -> Path:
        """Where the objects lie on this machine."""
        return self.path / ("remote/bucket/catalog" if self.remote else "root")

    @property
    def cache_folder(self) -> Path:
        return self.path / "cache"

    def store(self, shard: int) -> ShardStore:
        """A store as a new process has it: nothing open, nothing loaded."""
        self.stores += 1
        self.close()
        return ShardStore(
            ShardFiles(
                self.root,
                LocalCache(self.query_id, self.cache_folder),
                self.query_id,
                shard,
                SECRET,
            ),
            Attempt(EPOCH - 2, RUN, self.stores),
            self.open_views,
        )

    def close(self) -> None:
        """Close what is open, as the end of a process does."""
        self.open_views.close_all()
        self.open_views = OpenViews(8)

    def file(self, name: str) -> Path:
        return self.folder / name

    def segment(self, shard: int, nth: int = 0) -> SegmentRef:
        return list(self.states[shard].manifest.segments())[nth]

    def segment_path(self, shard: int, nth: int = 0, suffix: str = ".sst") -> str:
        return shard_path(self.query_id, shard, self.segment(shard, nth).name + suffix)

    def pending_list_path(self, shard: int, nth: int = 0) -> str:
        pending_list = self.states[shard].manifest.pending_lists[nth].name
        return shard_path(self.query_id, shard, pending_list + PENDING_LIST_SUFFIX)

    def certificate_path(self) -> str:
        return certificate_path(self.query_id)

    def run_path(self, run_id: str) -> str:
        return run_path(self.query_id, run_id, self.lineages[run_id].runs[-1].began_epoch)

    def content(self, label: str, n: int, start_ms: int) -> Content:
        rng = np.random.default_rng([self.seed, len(label), n])
        keys = Keys.from_list([f"{label}-{self.seed}-{i:04d}".encode() for i in range(n)])
        hashes = kernel.hash64(keys.data, keys.offsets, derive_keys(self.query_id, SECRET)[1])
        return Content(keys, hashes, rng.integers(start_ms, start_ms + BUCKET_MS, n))

    def _fill(self, shard: int) -> None:
        store = self.store(shard)
        buckets, filters = [], {}
        for nth in range(2):
            start_ms = START_MS + nth * BUCKET_MS
            # As many in each, so that nothing but content tells them apart.
            made = self.content(f"{shard}.{nth}", self.ids, start_ms)
            segment, built = self.write(store, made, start_ms, shard)
            self.truth[segment.name] = made
            buckets.append(Bucket(start_ms, start_ms + BUCKET_MS, nth == 0, ((segment,),)))
            filters[segment.name] = built
        pending_lists = []
        for nth in range(2):
            names = [f"{1:012d}-{OLD_RUN}-{shard}-{10 * nth + i:04d}" for i in range(3)]
            pending_lists.append(store.spill_pending(names))
            self.pending_lists[pending_lists[-1]] = names
        state = ShardState(
            epoch=EPOCH,
            bucket_ms=BUCKET_MS,
            clocks=Clocks(
                RUN,
                START_MS + 1,
                7,
                START_MS,
                START_MS - 1,
                START_MS - 2,
                START_MS + 5,
                named_by=("topic", "partition"),
                sources={"p": SourceClock(START_MS, 3, 2), "": SourceClock(START_MS + 5, 3, 2, 1)},
            ),
            manifest=Manifest(
                tuple(buckets),
                (Expired(f"{2:012d}-{RUN}-5-0000", 8, START_MS),),
                tuple(PendingList(pending_list, 3, 8, START_MS) for pending_list in pending_lists),
            ),
            tail=self._tail(shard),
            filters=filters,
            segments_lost=1,
            stray_files=(2, 3),
            run_began=7,
            hash_key_id=self.certificate.hash_key_id,
            payloads=("columns",) if shard in self.digested_shards else (),
        )
        self.states[shard] = state
        write_backup(self.root, self.query_id, shard, state)
        write_adopted(self.root, self.query_id, shard, replace(state, epoch=-1))
        for nth in range(2):
            write_accepted_loss(self.root, self.query_id, shard, self.segment(shard, nth).name)

    def write(
        self, store: ShardStore, made: Content, start_ms: int, shard: int = 0
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        digests = digests_of(made.hashes, 1) if shard in self.digested_shards else None
        entries = Entries.in_order(made.keys, made.hashes, made.times_ms, digests)
        plan = SegmentPlan(start_ms, start_ms + BUCKET_MS, 0.01)
        return store.write_segment(plan, [entries])

    def _tail(self, shard: int) -> Tail:
        made = self.content(f"tail {shard}", 20, START_MS + 2 * BUCKET_MS)
        digests = digests_of(made.hashes, 1) if shard in self.digested_shards else None
        return Tail(made.keys, made.times_ms, np.arange(20) % 3 == 0, digests)


def state_content(state: ShardState) -> Mapping[str, object]:
    """All that a state says, comparable, without its filters."""
    return {
        "head": {**state.head(), "filters": None},
        "tail": [
            list(state.tail.keys),
            state.tail.times_ms.tolist(),
            state.tail.clamped.tolist(),
            None if state.tail.digests is None else state.tail.digests.tolist(),
        ],
    }
