"""Second pass: the group function, once per shard and micro-batch.

It decodes heads, lets the core judge them, and sends the blobs on untouched with one verdict byte
per row: filtering is left to unpack, which decodes the rows anyway. Bodies are opened only for
records that tie in ID and timestamp. Nothing here sets a timeout: what expires does so when the
shard is next called (invariant 12).
"""

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
from dedup.core.policy import Policy
from dedup.core.ports import SegmentStore
from dedup.core.records import Epoch
from dedup.core.shard import Outcome, process
from dedup.core.state import ShardState
from dedup.errors import StateError, faults
from dedup.spark.executor.bodies import BodyFile, drop_earlier, handed_on
from dedup.spark.executor.judged import SCHEMA, judged_rows, with_counters
from dedup.spark.executor.shard_input import ShardInput
from dedup.spark.executor.task import Layout, Task, layout, warn_of_others
from dedup.spark.executor.worker import freeze_gc, release_memory
from dedup.spark.machine import wall_clock_ms
from dedup.spark.observations import DDL, Stopwatch
from dedup.spark.plan import Plan

OUTPUT_SCHEMA = f"{SCHEMA}, {DDL}"
STATE_SCHEMA = "shard_state binary"


def dedup_stream(
    plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """Yield one shard's verdicts of a stream's micro-batch, and set its next state."""
    freeze_gc()
    yield _judged(plan, key, frames, state)
    faults.point("group.end")
    release_memory()


def _judged(plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any) -> pd.DataFrame:
    assert plan.root is not None
    faults.point("group.begin")
    task = Task.current(plan)
    if plan.bodies == "group":
        drop_earlier(task)
    lay = layout(plan, task, has_state=state.exists)
    shard = lay.slot_keys.index(int(key[0]))
    cache = LocalCache(task.query_id, plan.cache_dir, plan.cache_bytes)
    files = ShardFiles(plan.root, cache, task.query_id, shard, lay.secret)
    store = ShardStore(files, Attempt(task.epoch, task.run_id, task.attempt_id))
    watch = Stopwatch()
    shard_input = ShardInput.of(plan, lay, frames)
    base, others = _base_state(plan.root, task, lay, shard, state)
    watch.lap("read")
    faults.point("group.read")
    if backup_is_due(plan.root, task.query_id, shard, base, task.run_id):
        faults.point("backup.put.before")
        write_backup(plan.root, task.query_id, shard, base)
        faults.point("backup.put.after")
    now_ms = state.getCurrentProcessingTimeMs()
    shard_task = ShardTask(task.query_id, task.run_id, shard, task.epoch, now_ms)
    tended, swept = housekeep(plan.root, shard_task, base, plan.policy)
    watch.lap("upkeep")
    epoch = Epoch(
        number=task.epoch,
        run_id=task.run_id,
        now_ms=now_ms,
        worker_now_ms=wall_clock_ms(),
        shard=shard,
        hash_key=lay.filter_key,
    )
    outcome = process(tended, shard_input.records(), plan.policy, store, epoch, watch.lap)
    faults.point("group.judged")
    row = outcome.state.to_bytes()
    faults.point("group.update.before")
    state.update((row,))
    faults.point("group.update.after")
    watch.lap("write")
    counts = {
        **asdict(store.counters),
        **outcome.counts,
        "orphans_deleted": swept,
        "state_bytes": len(row),
        "base_epoch": base.epoch,
        "other_queries": others,
    }
    body_file = handed_on(plan, task, shard)
    return _output(plan, shard_input, outcome, shard, counts, watch, body_file)


def _base_state(
    root: Root, task: Task, lay: Layout, shard: int, state: Any
) -> tuple[ShardState, int]:
    """Return what the shard remembers, and as a query is born how many hold the same ID."""
    if state.exists:
        base = ShardState.from_bytes(bytes(state.get[0]), hash_key_id=lay.key_id)
        if lay.secret and base.hash_key_id is None:
            raise StateError.of_another_catalog()
        task.check_follows(base.epoch)
        return base, 0
    adopted = read_adopted(root, task.query_id, shard)
    base = adopted or ShardState()
    base.check_key(lay.key_id)
    born = shard == 0 and adopted is None
    base = replace(base, hash_key_id=lay.key_id if lay.secret else None)
    return base, warn_of_others(root, task.query_id) if born else 0


def dedup_batch(plan: Plan, key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one shard's verdicts of a batch DataFrame, by the same rule, with nothing kept."""
    freeze_gc()
    task = Task.current(plan)
    lay = layout(plan, task)
    shard = lay.slot_keys.index(int(key[0]))
    watch = Stopwatch()
    shard_input = ShardInput.of(plan, lay, [frame])
    now_ms = wall_clock_ms()
    epoch = Epoch(
        number=0, run_id=task.run_id, now_ms=now_ms, worker_now_ms=now_ms, shard=shard,
        hash_key=lay.filter_key,
    )  # fmt: skip
    policy: Policy = replace(plan.policy, state_budget_bytes=1 << 62, accept_clock_jump=True)
    watch.lap("read")
    nothing: SegmentStore = None  # type: ignore[assignment]  # no segment is ever named or sealed
    outcome = process(ShardState(), shard_input.records(), policy, nothing, epoch, watch.lap)
    return _output(plan, shard_input, outcome, shard, dict(outcome.counts), watch)


def _output(
    plan: Plan,
    shard_input: ShardInput,
    outcome: Outcome,
    shard: int,
    counts: dict[str, int],
    watch: Stopwatch,
    body_file: BodyFile | None = None,
) -> pd.DataFrame:
    """Return the control row with the counters, then the blobs of which any row goes on.

    Their bodies are put into a file, if one is given.
    """
    columns, emitted = judged_rows(plan, shard_input, outcome.verdicts, body_file)
    watch.lap("write")
    control = _counters(plan, outcome, shard, counts, watch) | {"emitted": emitted}
    if plan.verdict_column is not None:
        control["emitted"] = counts["records_in"]
    numbers = {name: control.get(name, 0) for name in COLUMNS}
    return with_counters(columns, shard, numbers, _other_columns(plan, outcome.state))


def _other_columns(plan: Plan, state: ShardState) -> dict[str, str | list[int] | None]:
    slowest = slowest_sources(state, plan.policy, SLOWEST_SOURCES)
    ids, sizes = zip(*expiry_bands(state, plan.policy), strict=True)
    return {
        "gc_source": state.clocks.holder(plan.policy) if plan.policy.event_time else None,
        "slowest_sources": json.dumps(slowest, separators=(",", ":")),
        "expiring": [*ids, *sizes],
    }


def _counters(
    plan: Plan, outcome: Outcome, shard: int, counts: dict[str, int], watch: Stopwatch
) -> dict[str, int | None]:
    state = outcome.state
    clocks, manifest = state.clocks, state.manifest
    segment_bytes, sidecar_bytes = manifest.live_bytes()
    return {
        **counts,
        **{f"{stage}_us": watch.us[stage] for stage in GROUP_STAGES},
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
        **{name: getattr(plan.policy, name) for name in SETTINGS},
        "fpr_ppb": round(plan.policy.fpr * 1e9),
    }
