"""Second pass: the group function, which runs once per shard and micro-batch.

The group function decodes a shard's packed rows, lets the operator's engine judge them, and stores
the shard's next state. It passes the blobs on untouched, with one verdict byte per row. Unpack
decodes the rows anyway, so unpack drops the duplicates. The group function opens bodies only for
records that tie in ID and timestamp. It sets no timeout in Spark: IDs expire when Spark next calls
the function for the shard (invariant 12).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from dedup import kernel
from dedup.core.records import Epoch, Outcome
from dedup.core.state_row import refuse_before_release
from dedup.errors import faults
from dedup.kernel.arrays import U8
from dedup.spark.executor import wire
from dedup.spark.executor.bodies import BodyFile, drop_earlier, handed_on
from dedup.spark.executor.by_id import ById
from dedup.spark.executor.by_sequence import BySequence
from dedup.spark.executor.call import Call, ShardInput
from dedup.spark.executor.layout import Layout, layout
from dedup.spark.executor.task import Task
from dedup.spark.executor.worker_memory import freeze_gc, release_memory
from dedup.spark.machine import Stopwatch, wall_clock_ms
from dedup.spark.observations import counters_ddl
from dedup.spark.plan import Plan

STATE_SCHEMA = "shard_state binary"


def output_schema(plan: Plan) -> str:
    return f"rows int, keys binary, body binary, verdicts binary, {counters_ddl(plan)}"


def dedup_stream(
    plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """Yield the verdicts on one shard's records of a micro-batch, and set the next state."""
    freeze_gc()
    yield _judge_stream(plan, key, frames, state)
    faults.point("group.end")
    release_memory()


def _judge_stream(plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any) -> pd.DataFrame:
    faults.point("group.begin")
    task = Task.current(plan)
    if plan.bodies == "group":
        drop_earlier(task)
    row = bytes(state.get[0]) if state.exists else None
    refuse_before_release(row or b"")
    shard_layout = layout(plan, task, has_state=state.exists)
    call = _call(plan, task, shard_layout, key, frames, state.getCurrentProcessingTimeMs())
    base, counts = call.base(row)
    call.watch.lap("read")
    faults.point("group.read")
    outcome = call.judge(base)
    faults.point("group.judged")
    row = outcome.state.to_bytes()
    faults.point("group.update.before")
    state.update((row,))
    faults.point("group.update.after")
    call.watch.lap("write")
    body_file = handed_on(plan, task, call.shard)
    counts |= {
        "state_bytes": len(row),
        "base_epoch": base.epoch,
        "shards_without_files": int(plan.bodies == "group" and body_file is None),
    }
    return _output(call, outcome, counts, body_file)


def dedup_batch(plan: Plan, key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on one shard's records of a batch DataFrame, without storing a state."""
    freeze_gc()
    task = Task.current(plan)
    call = _call(plan, task, layout(plan, task), key, [frame], wall_clock_ms())
    base, _ = call.base(None)
    call.watch.lap("read")
    return _output(call, call.judge(base), {}, None)


def _call(
    plan: Plan,
    task: Task,
    shard_layout: Layout,
    key: Any,
    frames: Iterable[pd.DataFrame],
    now_ms: int,
) -> Call:
    watch = Stopwatch()
    shard = shard_layout.slot_keys.index(int(key[0]))
    epoch = Epoch(
        number=task.epoch,
        run_id=task.run_id,
        now_ms=now_ms,
        worker_now_ms=wall_clock_ms(),
        shard=shard,
        hash_key=shard_layout.filter_key,
    )
    shard_input = ShardInput(plan, shard_layout)
    for frame in frames:
        shard_input.add(frame)
    by_rule = ById if plan.numbering is None else BySequence
    return by_rule(plan, task, shard_layout, shard, shard_input, epoch, watch)


def _output(
    call: Call, outcome: Outcome[Any], counts: Mapping[str, int], body_file: BodyFile | None
) -> pd.DataFrame:
    """Return a control row with the counters, then the blobs of which at least one row passes."""
    columns, emitted = _judged_rows(call, outcome.verdicts, body_file)
    call.watch.lap("write")
    numbers = {
        **outcome.counts,
        **counts,
        **{f"{stage}_us": call.watch.us[stage] for stage in call.NAMES.stages},
        **call.levels(outcome),
        "shard_count": len(call.layout.slot_keys),
        "shards_without_kernel": int(kernel.PATH == "numpy"),
        "emitted": outcome.counts["records_in"] if call.plan.handling.verdict else emitted,
    }
    blank = [None] * (len(columns["rows"]) - 1)
    for name in call.NAMES.columns:
        columns[name] = pd.array([numbers.get(name, 0), *blank], dtype="Int64")
    columns["shard_index"] = pd.array([call.shard, *blank], dtype="Int32")
    for name, value in call.others(outcome).items():
        columns[name] = pd.Series([value, *blank], dtype=object)
    return pd.DataFrame(columns)


def _judged_rows(
    call: Call, verdicts: U8, body_file: BodyFile | None
) -> tuple[dict[str, Any], int]:
    """Add verdicts to the blobs. Return the blobs' columns and how many records pass.

    If `body_file` is not None, the bodies are written to that file.
    """
    passes = call.plan.passes
    shard_input = call.input
    rows, keys, bodies = [wire.CONTROL], list[bytes | None]([None]), [shard_input.schema_bytes]
    judged_blobs: list[bytes | None] = [None]
    schema = (
        None if shard_input.schema_bytes is None else wire.read_schema(shard_input.schema_bytes)
    )
    # Unpack restores the user's column that the keys replace.
    needs_keys = schema is not None and wire.key_column(call.plan, schema) is not None
    first = emitted = 0
    for head, key_blob, body in zip(
        shard_input.heads, shard_input.key_blobs, shard_input.blobs, strict=True
    ):
        judged = verdicts[first : first + head.num_rows]
        first += head.num_rows
        kept = int(passes[judged].sum())
        emitted += kept
        if kept:
            rows.append(head.num_rows)
            keys.append(key_blob if needs_keys else None)
            if body_file is not None:
                body = body_file.append(np.frombuffer(body, np.uint8))
            bodies.append(body)
            judged_blobs.append(judged.tobytes())
    if body_file is not None:
        body_file.close()
    columns: dict[str, Any] = {
        "rows": pd.array(rows, dtype="int32"),
        "keys": pd.Series(keys, dtype=object),
        "body": pd.Series(bodies, dtype=object),
        "verdicts": pd.Series(judged_blobs, dtype=object),
    }
    return columns, emitted
