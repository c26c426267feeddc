"""Two passes over history, for the state with which a new query starts.

The first pass packs the rows into blobs of one shard and bucket. Spark sorts the blobs, and the
second pass lets each shard learn them in order of time. Both passes belong to one batch job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from dedup.catalog.cache import LocalCache
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.admission import FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED
from dedup.core.clocks import NEVER_MS
from dedup.core.history import History
from dedup.core.records import Epoch
from dedup.errors import faults
from dedup.spark.executor import wire
from dedup.spark.executor.bad_records import first_of
from dedup.spark.executor.call import ShardInput
from dedup.spark.executor.layout import Layout
from dedup.spark.executor.pack import Packer
from dedup.spark.executor.worker_memory import freeze_gc, release_memory
from dedup.spark.machine import wall_clock_ms
from dedup.spark.plan import Plan

#: Packed rows, each with the start of its bucket, or NEVER_MS in a control row. A control row also
#: has the number of rows without ID or time in its task, and a sentence that identifies one.
DATED_ARROW = pa.schema(
    [
        wire.PACKED_ARROW.field("shard"),
        ("start_ms", pa.int64()),
        *(wire.PACKED_ARROW.field(name) for name in ("rows", "keys", "head", "body")),
        ("lacking", pa.int64()),
        ("example", pa.string()),
    ]
)
DATED_SCHEMA = (
    "shard int, start_ms bigint, rows int, keys binary, head binary, body binary, lacking bigint, "
    "example string"
)
#: What a shard has learned. If rows lack an ID or a time, no shard has learned anything.
LEARNED_ARROW = pa.schema(
    [
        ("shard", pa.int32()),
        ("state", pa.binary()),
        ("too_old", pa.int64()),
        ("future", pa.int64()),
        ("rows", pa.int64()),
        ("lacking", pa.int64()),
        ("example", pa.string()),
    ]
)
LEARNED_SCHEMA = (
    "shard int, state binary, too_old bigint, future bigint, rows bigint, lacking bigint, "
    "example string"
)


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """What both passes need to know."""

    plan: Plan
    query_id: str
    slot_keys: tuple[int, ...]
    secret: bytes
    #: ID of the call on the driver, and its time.
    call_id: str
    now_ms: int

    @property
    def layout(self) -> Layout:
        return Layout.of(self.query_id, self.slot_keys, self.secret)


def pack_history(job: HistoryPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the packed rows of one map task: blobs when they are full, control rows at the end."""
    freeze_gc()
    packer, lacking, example, flushes = Packer(job.plan, job.layout), 0, "", 0
    bucket_ms = job.plan.policy.bucket_ms if job.plan.policy.event_time else 0
    for batch in filter(len, batches):
        packer.add(batch)
        flags = packer.heads[-1].column("flags").to_numpy()
        lacks = (flags & (FLAG_NULL_ID | FLAG_NULL_TIME | FLAG_UNTIMED)) != 0
        if lacks.any():
            lacking += int(lacks.sum())
            example = example or first_of(job.plan, batch, lacks)
        if packer.full:
            yield from _dated(job, packer.flush(bucket_ms), flushes)
            flushes += 1
    yield from _dated(job, packer.flush(bucket_ms), flushes)
    control = packer.control_rows()
    for row in range(control.num_rows):
        yield _with_start(control.slice(row, 1), NEVER_MS, lacking, example)
    release_memory()


def _dated(
    job: HistoryPlan, blobs: Iterator[pa.RecordBatch], flushes: int
) -> Iterator[pa.RecordBatch]:
    """Add the start of its bucket to each blob. Without timestamps, any order will do."""
    schema, policy = wire.head_schema(job.plan), job.plan.policy
    for blob in blobs:
        start_ms = flushes
        if policy.event_time:
            head = wire.read_batch(blob.column("head")[0].as_buffer(), schema)
            start_ms = head.column("time_ms")[0].as_py() // policy.bucket_ms * policy.bucket_ms
        yield _with_start(blob, start_ms, None, None)


def _with_start(
    row: pa.RecordBatch, start_ms: int, lacking: int | None, example: str | None
) -> pa.RecordBatch:
    shard, *others = row.columns
    more = pa.array([lacking], pa.int64()), pa.array([example], pa.string())
    columns = [shard, pa.array([start_ms], pa.int64()), *others, *more]
    return pa.RecordBatch.from_arrays(columns, schema=DATED_ARROW)


def learn_history(job: HistoryPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what each shard of one task has learned from its blobs, which are in order."""
    freeze_gc()
    rows = (row for batch in batches for row in zip(*map(pa.Array.to_pylist, batch), strict=True))
    for slot_key, own in groupby(rows, itemgetter(0)):
        learned = _learned(job, job.slot_keys.index(slot_key), own)
        faults.point("history.shard.after")
        yield pa.RecordBatch.from_pylist([learned], LEARNED_ARROW)
    release_memory()


def _learned(job: HistoryPlan, shard: int, rows: Iterator[tuple[Any, ...]]) -> dict[str, Any]:
    layout, plan, count = job.layout, job.plan, 0
    context = TaskContext.get()
    assert context is not None, "this runs only inside a Spark task"
    assert plan.root is not None
    cache = LocalCache(job.query_id, plan.cache_dir, plan.cache_bytes)
    files = ShardFiles(plan.root, cache, job.query_id, shard, job.secret)
    attempt = Attempt(0, job.call_id, context.taskAttemptId())
    epoch = Epoch(
        number=0, run_id=job.call_id, now_ms=job.now_ms, worker_now_ms=wall_clock_ms(),
        shard=shard, hash_key=layout.filter_key,
    )  # fmt: skip
    history, schema_bytes = None, None
    for start_ms, blobs in groupby(rows, itemgetter(1)):
        columns = dict(zip(DATED_ARROW.names, zip(*blobs, strict=True), strict=True))
        shard_input = ShardInput(plan, layout, schema_bytes=schema_bytes)
        shard_input.add(columns)
        if history is None:
            # Control rows come first.
            if lacking := sum(columns["lacking"]):
                return {"shard": shard, "lacking": lacking, "example": max(columns["example"])}
            newest_ms = [seen.newest_ms for seen, _ in shard_input.observed.values()]
            store, policy = ShardStore(files, attempt), plan.policy
            if policy.max_live_ids is not None:
                policy = policy.of_shard(len(job.slot_keys))
            history = History(policy, store, epoch, max(newest_ms, default=NEVER_MS))
            schema_bytes = shard_input.schema_bytes
            continue
        records = shard_input.records()
        if plan.policy.payload is None:
            records = replace(records, tie_rank=lambda index: np.arange(len(index)))
        count += len(records.flags)
        history.learn(records, start_ms)
    assert history is not None, "each map task sends a control row to each shard"
    return {
        "shard": shard,
        "state": history.first_state().to_bytes(),
        "too_old": history.too_old,
        "future": history.future,
        "rows": count,
        "lacking": 0,
        "example": "",
    }
