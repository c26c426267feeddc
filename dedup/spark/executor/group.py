"""The second pass of `dedup_by_id`: one shard of one micro-batch, with its catalog."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from dedup.catalog.backup import backup_is_due, read_adopted, write_backup
from dedup.catalog.cache import LocalCache
from dedup.catalog.gc.housekeeping import ShardTask, housekeep
from dedup.catalog.root import Root
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.clocks import known_ms
from dedup.core.forecast import SLOWEST_SOURCES, expiry_bands, slowest_sources
from dedup.core.metrics import COLUMNS, GROUP_STAGES, SETTINGS, TIMES
from dedup.core.ports import SegmentStore
from dedup.core.shard import Outcome, process
from dedup.core.state import ShardState
from dedup.errors import StateError, faults
from dedup.spark.executor.shell import SCHEMA, Call, Engine, judge_batch, judge_stream
from dedup.spark.executor.task import warn_of_others
from dedup.spark.observations import DDL
from dedup.spark.plan import Plan

OUTPUT_SCHEMA = f"{SCHEMA}, {DDL}"


def dedup_stream(
    plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """Yield one shard's verdicts of a stream's micro-batch, and set its next state."""
    yield from judge_stream(_ENGINE, plan, key, frames, state)


def dedup_batch(plan: Plan, key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one shard's verdicts of a batch DataFrame."""
    return judge_batch(_ENGINE, plan, key, frame)


def _base(call: Call, row: bytes | None) -> tuple[ShardState, dict[str, int]]:
    root, lay = call.plan.root, call.layout
    if root is None:
        assert not call.plan.streaming, "a stream without a catalog would forget every ID"
        return ShardState(), {}
    if row is not None:
        base = ShardState.from_bytes(row, hash_key_id=lay.key_id)
        if lay.secret and base.hash_key_id is None:
            raise StateError.of_another_catalog()
        call.task.check_follows(base.epoch)
        return base, {}
    query_id = call.task.query_id
    adopted = read_adopted(root, query_id, call.shard)
    base = adopted or ShardState()
    base.check_key(lay.key_id)
    is_born = call.shard == 0 and adopted is None
    counts = {"other_queries": warn_of_others(root, query_id)} if is_born else {}
    return replace(base, hash_key_id=lay.key_id if lay.secret else None), counts


def _judge(call: Call, base: ShardState) -> Outcome:
    root, lap = call.plan.root, call.watch.lap
    if root is None:
        policy = replace(call.plan.policy, state_budget_bytes=1 << 62, accept_clock_jump=True)
        nothing: SegmentStore = None  # type: ignore[assignment]  # nothing names or seals a segment
        return process(base, call.input.records(), policy, nothing, call.epoch, lap)
    task, shard = call.task, call.shard
    if backup_is_due(root, task.query_id, shard, base, task.run_id):
        faults.point("backup.put.before")
        write_backup(root, task.query_id, shard, base)
        faults.point("backup.put.after")
    here = ShardTask(task.query_id, task.run_id, shard, task.epoch, call.epoch.now_ms)
    state, deleted = housekeep(root, here, base, call.plan.policy)
    lap("upkeep")
    store = _store(call, root)
    made = process(state, call.input.records(), call.plan.policy, store, call.epoch, lap)
    counts = {**asdict(store.counters), **made.counts, "orphans_deleted": deleted}
    return replace(made, counts=counts)


def _store(call: Call, root: Root) -> ShardStore:
    task = call.task
    cache = LocalCache(task.query_id, call.plan.cache_dir, call.plan.cache_bytes)
    files = ShardFiles(root, cache, task.query_id, call.shard, call.layout.secret)
    return ShardStore(files, Attempt(task.epoch, task.run_id, task.attempt_id))


def _levels(call: Call, outcome: Outcome) -> dict[str, int | None]:
    state, policy = outcome.state, call.plan.policy
    clocks, manifest = state.clocks, state.manifest
    segment_bytes, sidecar_bytes = manifest.live_bytes()
    return {
        "live_ids": manifest.ids + len(state.tail),
        "tail_ids": len(state.tail),
        "segments": sum(1 for _ in manifest.segments()),
        "buckets": state.live_buckets,
        "segments_pending": manifest.pending,
        "segments_lost": state.accepted_losses,
        "filter_state_bytes": sum(built.nbytes for built in state.filters.values()),
        "segment_bytes": segment_bytes,
        "sidecar_bytes": sidecar_bytes,
        "orphan_files": state.stray_files[0],
        "foreign_files": state.stray_files[1],
        "branches": state.branches,
        **{name: known_ms(getattr(clocks, name)) for name in TIMES},
        **{name: getattr(policy, name) for name in SETTINGS},
        "fpr_ppb": round(policy.fpr * 1e9),
    }


def _others(call: Call, outcome: Outcome) -> dict[str, str | list[int] | None]:
    state, policy = outcome.state, call.plan.policy
    slowest = slowest_sources(state, policy, SLOWEST_SOURCES)
    ids, sizes = zip(*expiry_bands(state, policy), strict=True)
    return {
        "gc_source": state.clocks.holder(policy) if policy.event_time else None,
        "slowest_sources": json.dumps(slowest, separators=(",", ":")),
        "expiring": [*ids, *sizes],
    }


_ENGINE = Engine(_base, _judge, _levels, COLUMNS, GROUP_STAGES, _others)
