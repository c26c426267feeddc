"""Judges a shard's records for `dedup_by_id`, with the shard's state and its catalog."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from dedup.catalog.backup import backup_is_due, read_adopted, write_backup
from dedup.catalog.cache import LocalCache
from dedup.catalog.gc.housekeeping import housekeep
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.catalog.successor import refuse_closed
from dedup.core.clocks import known_ms
from dedup.core.forecast import SLOWEST_SOURCES, expiry_bands, slowest_sources
from dedup.core.metrics import NAMES
from dedup.core.ports import SegmentStore
from dedup.core.records import Outcome
from dedup.core.shard import process
from dedup.core.state import ShardState
from dedup.errors import faults
from dedup.spark.executor.call import Call
from dedup.spark.executor.layout import warn_of_others


@dataclass(frozen=True, slots=True)
class ById(Call):
    """One call of the group function for `dedup_by_id`."""

    NAMES = NAMES

    def base(self, row: bytes | None) -> tuple[ShardState, dict[str, int]]:
        root, layout, task = self.plan.root, self.layout, self.task
        if root is None:
            assert not self.plan.streaming, "a stream without a catalog would forget every ID"
            return ShardState(), {}
        if row is not None:
            base = ShardState.from_bytes(row, hash_key_id=layout.key_id)
            task.check_follows(base.epoch)
            return base, {}
        adopted = read_adopted(root, task.query_id, self.shard)
        if adopted is not None:
            adopted.check_key(layout.key_id)
        is_born = self.shard == 0 and adopted is None
        counts = {"other_queries": warn_of_others(root, task.query_id)} if is_born else {}
        return adopted or ShardState(), counts

    def judge(self, base: ShardState) -> Outcome[ShardState]:
        root, task, shard, policy = self.plan.root, self.task, self.shard, self.plan.policy
        lap = self.watch.lap
        if root is None:
            policy = replace(policy, state_budget_bytes=1 << 62, accept_clock_jump=True)
            nothing: SegmentStore = None  # type: ignore[assignment]  # nothing names a segment
            return process(base, self.input.records(), policy, nothing, self.epoch, lap)
        if shard == 0:
            refuse_closed(root, task.query_id)  # somebody may rebuild a query that runs
        policy = policy.of_shard(len(self.layout.slot_keys))
        if backup_is_due(root, task.query_id, shard, base, task.run_id):
            faults.point("backup.put.before")
            write_backup(root, task.query_id, shard, base)
            faults.point("backup.put.after")
        state, deleted = housekeep(root, task.query_id, self.epoch, base, policy)
        lap("upkeep")
        cache = LocalCache(task.query_id, self.plan.cache_dir, self.plan.cache_bytes)
        files = ShardFiles(root, cache, task.query_id, shard, self.layout.secret)
        store = ShardStore(files, Attempt(task.epoch, task.run_id, task.attempt_id))
        made = process(state, self.input.records(), policy, store, self.epoch, lap)
        counts = {**asdict(store.counters), **made.counts, "orphans_deleted": deleted}
        return replace(made, counts=counts)

    def levels(self, outcome: Outcome[ShardState]) -> dict[str, int | None]:
        state, policy = outcome.state, self.plan.policy
        clocks, manifest = state.clocks, state.manifest
        segment_bytes, sidecar_bytes = manifest.live_bytes()
        return {
            "live_ids": manifest.ids + len(state.tail),
            "tail_ids": len(state.tail),
            "segments": sum(1 for _ in manifest.segments()),
            "buckets": state.live_buckets,
            "segments_pending": manifest.pending,
            "segments_lost": state.segments_lost,
            "filter_state_bytes": sum(built.nbytes for built in state.filters.values()),
            "segment_bytes": segment_bytes,
            "sidecar_bytes": sidecar_bytes,
            "orphan_files": state.stray_files[0],
            "foreign_files": state.stray_files[1],
            "branches": state.branches,
            **{name: known_ms(getattr(clocks, name)) for name in NAMES.times},
            "gc_watermark_ms": known_ms(clocks.gc_watermark_ms),
            **{name: getattr(policy, name) or 0 for name in NAMES.settings},
            "fpr_ppb": round(policy.fpr * 1e9),
        }

    def others(self, outcome: Outcome[ShardState]) -> dict[str, str | list[int] | None]:
        state, policy = outcome.state, self.plan.policy
        slowest = slowest_sources(state, policy, SLOWEST_SOURCES)
        ids, sizes = zip(*expiry_bands(state, policy), strict=True)
        return {
            "gc_source": state.clocks.holder(policy) if policy.event_time else None,
            "slowest_sources": json.dumps(slowest, separators=(",", ":")),
            "expiring": [*ids, *sizes],
        }
