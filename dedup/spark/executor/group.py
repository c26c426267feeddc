"""Second pass: the group function, once per shard and micro-batch.

It decodes heads, lets the core judge them, and sends the blobs on untouched with one verdict byte
per row: filtering is left to unpack, which decodes the rows anyway. Bodies are opened only for
records that tie in ID and timestamp. Nothing here sets a timeout: what expires does so when the
shard is next called (invariant 12).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from dedup import faults
from dedup.catalog.cache import LocalCache
from dedup.catalog.gc.housekeeping import ShardTask, housekeep
from dedup.catalog.repair.backup import backup_is_due, read_adopted, write_backup
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.clocks import known_ms
from dedup.core.forecast import SLOWEST_SOURCES, expiry_bands, slowest_sources
from dedup.core.metrics import COLUMNS, GROUP_STAGES
from dedup.core.policy import Policy
from dedup.core.ports import SegmentStore
from dedup.core.records import Epoch
from dedup.core.shard import Outcome, process
from dedup.core.sharding import filter_key_id
from dedup.core.state import ShardState
from dedup.machine import wall_clock_ms
from dedup.spark.executor import wire
from dedup.spark.executor.shard_input import ShardInput
from dedup.spark.executor.task import Layout, Task, layout, warn_of_others
from dedup.spark.executor.worker import freeze_gc, release_memory
from dedup.spark.observations import DDL, Stopwatch
from dedup.spark.plan import Plan

OUTPUT_SCHEMA = f"rows int, keys binary, body binary, verdicts binary, {DDL}"
STATE_SCHEMA = "shard_state binary"


def dedup_stream(
    plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """One shard's micro-batch on a stream: base state in, verdicts and next state out."""
    freeze_gc()
    yield _judged(plan, key, frames, state)
    faults.point("group.end")
    release_memory()


def _judged(plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any) -> pd.DataFrame:
    assert plan.root is not None
    faults.point("group.begin")
    task = Task.current(plan)
    has_state = state.exists
    lay = layout(plan, task, has_state=has_state)
    shard = lay.slot_keys.index(int(key[0]))
    store = _store(plan, task, shard)
    watch = Stopwatch()
    shard_input = _shard_input(plan, lay, frames)
    others = 0
    if has_state:
        base = ShardState.from_bytes(bytes(state.get[0]), hash_key_id=filter_key_id(task.query_id))
    else:
        adopted = read_adopted(plan.root, task.query_id, shard)
        base = adopted or ShardState()
        if shard == 0 and adopted is None:
            others = warn_of_others(plan.root, task.query_id)
    watch.lap("read")
    faults.point("group.read")
    base_epoch = base.epoch
    if backup_is_due(plan.root, task.query_id, shard, base, task.run_id):
        faults.point("backup.put.before")
        write_backup(plan.root, task.query_id, shard, base)
        faults.point("backup.put.after")
    now_ms = state.getCurrentProcessingTimeMs()
    shard_task = ShardTask(task.query_id, task.run_id, shard, task.epoch, now_ms)
    base, swept = housekeep(plan.root, shard_task, base, plan.policy)
    watch.lap("upkeep")
    epoch = Epoch(
        number=task.epoch,
        run_id=task.run_id,
        now_ms=now_ms,
        worker_now_ms=wall_clock_ms(),
        shard=shard,
        hash_key=lay.filter_key,
    )
    outcome = process(base, shard_input.records(), plan.policy, store, epoch, watch.lap)
    faults.point("group.judged")
    row = outcome.state.to_bytes()
    faults.point("group.update.before")
    state.update((row,))
    faults.point("group.update.after")
    watch.lap("write")
    done = store.counters
    counts = {
        **outcome.counts,
        "views_built": done.views_built,
        "bytes_fetched": done.bytes_fetched,
        "bytes_written": done.bytes_written,
        "filters_rebuilt": done.filters_rebuilt,
        "catalog_reads": done.blocks_read,
        "orphans_deleted": swept,
        "state_bytes": len(row),
        "base_epoch": base_epoch,
        "other_queries": others,
    }
    return _output(plan, shard_input, outcome, shard, counts, watch)


def _store(plan: Plan, task: Task, shard: int) -> ShardStore:
    assert plan.root is not None
    return ShardStore(
        plan.root,
        LocalCache(task.query_id, plan.cache_dir, plan.cache_bytes),
        query_id=task.query_id,
        shard=shard,
        attempt=Attempt(task.epoch, task.run_id, task.attempt_id),
    )


def dedup_batch(plan: Plan, key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """One shard of a batch DataFrame: the same rule, in one pass, with nothing kept."""
    freeze_gc()
    task = Task.current(plan)
    lay = layout(plan, task)
    shard = lay.slot_keys.index(int(key[0]))
    watch = Stopwatch()
    shard_input = _shard_input(plan, lay, [frame])
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


def _shard_input(plan: Plan, lay: Layout, frames: Iterable[pd.DataFrame]) -> ShardInput:
    shard_input = ShardInput(plan, lay.shard_key)
    for frame in frames:
        shard_input.add(frame)
    return shard_input


def _output(
    plan: Plan,
    shard_input: ShardInput,
    outcome: Outcome,
    shard: int,
    counts: dict[str, int],
    watch: Stopwatch,
) -> pd.DataFrame:
    """The control row with the counters, then the blobs that have anything to say."""
    goes_on = plan.goes_on
    keys: list[bytes | None] = [None]
    bodies: list[bytes | None] = [shard_input.schema_bytes]
    rows = [wire.CONTROL]
    verdicts: list[bytes | None] = [None]
    needs_keys = shard_input.unpack_needs_keys
    first = emitted = 0
    for head, own, body in zip(
        shard_input.heads, shard_input.key_blobs, shard_input.blobs, strict=True
    ):
        judged = outcome.verdicts[first : first + head.num_rows]
        first += head.num_rows
        kept = int(goes_on[judged].sum())
        emitted += kept
        if kept:
            rows.append(head.num_rows)
            keys.append(own if needs_keys else None)
            bodies.append(body)
            verdicts.append(judged.tobytes())
    watch.lap("write")
    control = _counters(plan, outcome, shard, counts, watch) | {"emitted": emitted}
    if plan.verdict_column is not None:
        control["emitted"] = counts["records_in"]
    blank = [None] * (len(rows) - 1)
    columns: dict[str, Any] = {
        "rows": pd.array(rows, dtype="int32"),
        "keys": pd.Series(keys, dtype=object),
        "body": pd.Series(bodies, dtype=object),
        "verdicts": pd.Series(verdicts, dtype=object),
    }
    for name in COLUMNS:
        columns[name] = pd.array([control.get(name, 0), *blank], dtype="Int64")
    columns["shard_index"] = pd.array([shard, *blank], dtype="Int32")
    for name, text in _texts(plan, outcome.state).items():
        columns[name] = pd.Series([text, *blank], dtype=object)
    return pd.DataFrame(columns)


def _texts(plan: Plan, state: ShardState) -> dict[str, str | None]:
    slowest = slowest_sources(state, plan.policy, SLOWEST_SOURCES)
    return {
        "gc_source": state.clocks.holder(plan.policy) if plan.policy.event_time else None,
        "slowest_sources": json.dumps(slowest, separators=(",", ":")),
    }


def _counters(
    plan: Plan, outcome: Outcome, shard: int, counts: dict[str, int], watch: Stopwatch
) -> dict[str, int | None]:
    state = outcome.state
    clocks, manifest = state.clocks, state.manifest
    segment_bytes, sidecar_bytes = manifest.live_bytes()
    bands = expiry_bands(state, plan.policy)
    return {
        **counts,
        **{f"{stage}_us": watch.us[stage] for stage in GROUP_STAGES},
        "live_ids": manifest.ids + len(state.tail),
        "tail_ids": len(state.tail),
        "segments": sum(1 for _ in manifest.segments()),
        "buckets": state.live_buckets,
        "segments_pending": manifest.pending,
        "segments_lost": state.accepted_losses,
        "filter_state_bytes": sum(piece.nbytes for piece in state.filters.values()),
        "segment_bytes": segment_bytes,
        "sidecar_bytes": sidecar_bytes,
        "orphan_files": state.stray_files[0],
        "foreign_files": state.stray_files[1],
        "branches": state.branches,
        "now_ms": known_ms(clocks.now_ms),
        "newest_ms": known_ms(clocks.newest_ms),
        "low_watermark_ms": known_ms(clocks.low_watermark_ms),
        "late_watermark_ms": known_ms(clocks.late_watermark_ms),
        "gc_watermark_ms": known_ms(clocks.gc_watermark_ms),
        **{f"expiring_ids_{band}": ids for band, (ids, _) in enumerate(bands)},
        **{f"expiring_bytes_{band}": size for band, (_, size) in enumerate(bands)},
        "horizon_ms": plan.policy.horizon_ms,
        "lateness_ms": plan.policy.lateness_ms,
        "bucket_ms": plan.policy.bucket_ms,
        "state_budget_bytes": plan.policy.state_budget_bytes,
        "fpr_ppb": round(plan.policy.fpr * 1e9),
    }
