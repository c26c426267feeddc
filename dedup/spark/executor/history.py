"""Two passes over history, for the state with which a new query starts.

The first pass packs the rows into blobs of one shard and slice of time. Spark sorts the blobs, and
the second pass lets each shard learn them in order of time. Both passes belong to one batch job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from dedup.core.records import Epoch, Records
from dedup.errors import faults
from dedup.spark.executor import wire
from dedup.spark.executor.bad_records import first_of
from dedup.spark.executor.call import ShardInput
from dedup.spark.executor.layout import Layout
from dedup.spark.executor.pack import BUFFER_BYTES, Packer
from dedup.spark.executor.worker_memory import freeze_gc, release_memory
from dedup.spark.machine import wall_clock_ms
from dedup.spark.plan import Plan

#: Packed rows, each with the start of its slice, or NEVER_MS in a control row. A control row also
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
#: A shard learns about as many rows at a time, or rows of `BUFFER_BYTES`. These are all rows of one
#: slice of time or several.
STEP_ROWS = 1 << 16
#: Slices of a bucket. A shard holds all rows of a slice in memory.
_SLICES = 4


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """What both passes need to know."""

    plan: Plan
    query_id: str
    slot_keys: tuple[int, ...]
    #: ID of the call on the driver, and its time.
    call_id: str
    now_ms: int

    @property
    def slice_ms(self) -> int:
        policy = self.plan.policy
        return max(1, policy.bucket_ms // _SLICES) if policy.event_time else 0

    @property
    def layout(self) -> Layout:
        return Layout.of(self.query_id, self.slot_keys, self.plan.secret)


def pack_history(job: HistoryPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the packed rows of one map task: blobs when they are full, control rows at the end."""
    freeze_gc()
    packer, lacking, example, flushes = Packer(job.plan, job.layout), 0, "", 0
    for batch in filter(len, batches):
        packer.add(batch)
        flags = packer.heads[-1].column("flags").to_numpy()
        lacks = (flags & (FLAG_NULL_ID | FLAG_NULL_TIME | FLAG_UNTIMED)) != 0
        if lacks.any():
            lacking += int(lacks.sum())
            example = example or first_of(job.plan, batch, lacks)
        if packer.nbytes >= BUFFER_BYTES:
            yield from _dated(job, packer, flushes)
            flushes += 1
    yield from _dated(job, packer, flushes)
    control = packer.control_rows()
    count = control.num_rows
    yield _with_start(control, [NEVER_MS] * count, [lacking] * count, [example] * count)
    release_memory()


def _dated(job: HistoryPlan, packer: Packer, flushes: int) -> Iterator[pa.RecordBatch]:
    """Yield the packed rows, each with the start of its slice of time.

    Without timestamps any order will do, as long as few rows have the same number.
    """
    schema, slice_ms = wire.head_schema(job.plan), job.slice_ms
    context = TaskContext.get()
    assert context is not None, "this runs only inside a Spark task"
    for blob in packer.flush(slice_ms):
        start_ms = (context.partitionId() << 32) + flushes
        if slice_ms:
            head = wire.read_batch(blob.column("head")[0].as_buffer(), schema)
            start_ms = head.column("time_ms")[0].as_py() // slice_ms * slice_ms
        yield _with_start(blob, [start_ms], [None], [None])


def _with_start(
    rows: pa.RecordBatch,
    starts_ms: Sequence[int],
    lacking: Sequence[int | None],
    examples: Sequence[str | None],
) -> pa.RecordBatch:
    shard, *others = rows.columns
    more = pa.array(lacking, pa.int64()), pa.array(examples, pa.string())
    columns = [shard, pa.array(starts_ms, pa.int64()), *others, *more]
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
    by_start = groupby(rows, itemgetter(1))
    # Control rows come first.
    _, blobs = next(by_start)
    control, columns = _input(job, blobs)
    if lacking := sum(columns["lacking"]):
        return {"shard": shard, "lacking": lacking, "example": max(columns["example"])}
    newest_ms = [seen.newest_ms for seen, _ in control.observed.values()]
    history, count = _history(job, shard, max(newest_ms, default=NEVER_MS)), 0
    step = ShardInput(job.plan, job.layout, schema_bytes=control.schema_bytes)
    for start_ms, blobs in by_start:
        _input(job, blobs, step)
        held = sum(head.num_rows for head in step.heads)
        if held >= STEP_ROWS or step.nbytes >= BUFFER_BYTES:
            history.learn(_records(step), start_ms + job.slice_ms)
            count += held
            step = ShardInput(job.plan, job.layout, schema_bytes=control.schema_bytes)
    count += sum(head.num_rows for head in step.heads)
    state = history.first_state(_records(step))
    return {
        "shard": shard,
        "state": state.to_bytes(),
        "too_old": history.too_old,
        "future": history.future,
        "rows": count,
        "lacking": 0,
        "example": "",
    }


def _input(
    job: HistoryPlan, blobs: Iterator[tuple[Any, ...]], into: ShardInput | None = None
) -> tuple[ShardInput, dict[str, tuple[Any, ...]]]:
    """Decode packed rows, and return them with their columns."""
    columns = dict(zip(DATED_ARROW.names, zip(*blobs, strict=True), strict=True))
    into = into or ShardInput(job.plan, job.layout)
    into.add(columns)
    return into, columns


def _records(step: ShardInput) -> Records:
    records = step.records()
    if step.plan.policy.payload is not None:
        return records
    # Without payloads it does not matter which of several copies passes, and bodies are empty.
    return replace(records, tie_rank=lambda index: np.arange(len(index)))


def _history(job: HistoryPlan, shard: int, newest_ms: int) -> History:
    plan, policy, context = job.plan, job.plan.policy, TaskContext.get()
    assert context is not None, "this runs only inside a Spark task"
    assert plan.root is not None
    cache = LocalCache(job.query_id, plan.cache_dir, plan.cache_bytes)
    files = ShardFiles(plan.root, cache, job.query_id, shard, plan.secret)
    store = ShardStore(files, Attempt(0, job.call_id, context.taskAttemptId()))
    epoch = Epoch(
        number=0, run_id=job.call_id, now_ms=job.now_ms, worker_now_ms=wall_clock_ms(),
        shard=shard, hash_key=job.layout.filter_key,
    )  # fmt: skip
    return History(policy, store, epoch, newest_ms)
