"""The group function that both operators share: it runs once per shard and micro-batch.

It decodes a shard's packed rows, lets the operator's engine judge them, stores the shard's next
state, and passes the blobs on untouched with one verdict byte per row: unpack decodes the rows
anyway, so it filters them. Bodies are opened only for records that tie in ID and timestamp. Nothing
here sets a timeout: an expiry happens when the shard is next called (invariant 12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dedup.catalog.compatibility import began_twice
from dedup.core.arrays import I64, U8
from dedup.core.keys import Keys
from dedup.core.records import Epoch, Records
from dedup.core.sequence_shard import SequenceOutcome
from dedup.core.sequence_state import SequenceState
from dedup.core.shard import Outcome
from dedup.core.sharding import derive_keys
from dedup.core.state import ShardState
from dedup.errors import ConfigError, faults
from dedup.spark.executor import wire
from dedup.spark.executor.bodies import BodyFile, BodyReader, drop_earlier, handed_on
from dedup.spark.executor.rowhash import hash_rows
from dedup.spark.executor.task import Layout, Task, layout
from dedup.spark.executor.worker import freeze_gc, release_memory
from dedup.spark.machine import wall_clock_ms
from dedup.spark.observations import Stopwatch
from dedup.spark.plan import Plan

#: Columns of every group function's output; the operator's counters follow.
SCHEMA = "rows int, keys binary, body binary, verdicts binary"
STATE_SCHEMA = "shard_state binary"


@dataclass(slots=True)
class ShardInput:
    """A shard's packed rows of one micro-batch, decoded as far as the engine needs them."""

    plan: Plan
    row_key: bytes
    key_id: int
    blobs: list[bytes] = field(default_factory=list)
    key_blobs: list[bytes] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    heads: list[pa.RecordBatch] = field(default_factory=list)
    observed: wire.ObservedSources = field(default_factory=dict)
    schema_bytes: bytes | None = None
    nbytes: int = 0

    @staticmethod
    def of(plan: Plan, lay: Layout, frames: Iterable[pd.DataFrame]) -> ShardInput:
        """Return a shard's packed rows; errors as `add`."""
        # A batch draws new hash keys each time, but its ties must end the same way.
        row_key = lay.shard_key if plan.streaming else derive_keys("batch")[0]
        shard_input = ShardInput(plan, row_key, lay.key_id)
        for frame in frames:
            shard_input.add(frame)
        return shard_input

    def add(self, rows: pd.DataFrame) -> None:
        """Decode packed rows.

        Raises
        ------
        ConfigError
            If the shard's share of the micro-batch exceeds the limit.
        CatalogError
            If another start of the query gave it other hash keys since the rows were packed.
        """
        schema = wire.plan_head(self.plan)
        columns = (rows[name] for name in ("rows", "keys", "head", "body"))
        for count, keys, head, body in zip(*columns, strict=True):
            if count == wire.CONTROL:
                root = self.plan.root
                if root is not None and bytes(keys) != wire.write_key_id(self.key_id):
                    raise began_twice(root)
                wire.add_observed(self.observed, wire.read_observed(head))
                if body is not None:
                    self.schema_bytes = bytes(body)
                continue
            self.nbytes += len(keys) + len(head) + len(body)
            if self.nbytes > self.plan.max_shard_batch_bytes:
                # More shards do not divide the records of one producer.
                shards = "use more `shards`, " if self.plan.numbering is None else ""
                raise ConfigError(
                    "One shard's share of this micro-batch exceeds "
                    f"{self.plan.max_shard_batch_bytes:,} bytes, which a worker must hold in "
                    "memory. Limit the micro-batch at its source (Kafka: maxOffsetsPerTrigger, "
                    f"files: maxFilesPerTrigger or maxBytesPerTrigger), {shards}or raise "
                    "`max_shard_batch_bytes`.",
                    remedy="large-micro-batch",
                )
            self.heads.append(wire.read_batch(head, schema))
            self.keys.append(wire.read_keys(keys, count))
            self.key_blobs.append(keys)
            self.blobs.append(body)

    @property
    def unpack_needs_keys(self) -> bool:
        """Whether the keys replace one of the user's columns."""
        if self.schema_bytes is None:
            return False
        return wire.key_column(self.plan, wire.read_schema(self.schema_bytes)) is not None

    def records(self) -> Records:
        """Return the shard's records, in the order of the blobs."""
        plan, column = self.plan, self._column
        numbered = plan.numbering is not None
        return Records(
            keys=Keys.concat(self.keys),
            times_ms=column("time_ms", np.int64),
            flags=column("flags", np.uint8),
            observed={name: observed for name, (observed, _) in self.observed.items()},
            sources=column("source", np.uint64) if plan.source_columns else None,
            source_hashes={name: number for name, (_, number) in self.observed.items()},
            tie_rank=self.tie_rank,
            payload_hashes=column("payload", np.uint64) if plan.policy.payload else None,
            numbers=(column("epoch", np.int64), column("sequence", np.int64)) if numbered else None,
        )

    def _column(self, name: str, dtype: type) -> npt.NDArray[Any]:
        if not self.heads:
            return np.zeros(0, dtype)
        return np.concatenate([head.column(name).to_numpy() for head in self.heads])

    def tie_rank(self, index: I64) -> I64:
        """Return the ranks of records by order columns, then by keyed row hash."""
        rows = self.rows(index)
        user = rows.select(range(self.plan.user_columns))
        columns = {f"o{i}": rows.column(name) for i, name in enumerate(self.plan.order_columns)}
        columns["hash"] = pa.chunked_array([pa.array(hash_rows(user, self.row_key))])
        order = pc.sort_indices(
            pa.table(columns), sort_keys=[(name, "ascending") for name in columns]
        )
        rank = np.empty(len(index), np.int64)
        rank[order.to_numpy()] = np.arange(len(index))
        return rank

    def rows(self, index: I64) -> pa.Table:
        """Return the user rows of the given records, in that order."""
        assert self.schema_bytes is not None
        schema = wire.read_schema(self.schema_bytes)
        in_keys = wire.key_column(self.plan, schema)
        ends = np.cumsum([head.num_rows for head in self.heads])
        blob = np.searchsorted(ends, index, "right")
        by_blob = np.argsort(blob, kind="stable")
        pieces, reader = [], BodyReader()
        for number in np.unique(blob):
            start = ends[number] - self.heads[number].num_rows
            inside = index[by_blob[blob[by_blob] == number]] - start
            body = reader.read(self.blobs[number], wire.without(schema, in_keys))
            keys = self.keys[number].take(inside)
            pieces.append(wire.restored(body.take(pa.array(inside)), keys, schema, in_keys))
        restore = np.empty(len(index), np.int64)
        restore[by_blob] = np.arange(len(index))
        return pa.Table.from_batches(pieces).combine_chunks().take(pa.array(restore))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the group function: a shard in a micro-batch."""

    plan: Plan
    task: Task
    layout: Layout
    shard: int
    input: ShardInput
    epoch: Epoch
    watch: Stopwatch


Judged: TypeAlias = Outcome | SequenceOutcome


@dataclass(frozen=True, slots=True)
class Engine:
    """What one operator adds to the shared group function."""

    #: From the state row, or None, to the checked state to start from, and counters.
    base: Callable[[Call, bytes | None], tuple[ShardState | SequenceState, dict[str, int]]]
    #: From the base state to the outcome.
    judge: Callable[[Call, Any], Judged]
    #: From the outcome to the counters that describe the next state.
    levels: Callable[[Call, Any], Mapping[str, int | None]]
    #: Counters of the output that are whole numbers.
    columns: tuple[str, ...]
    #: Stages of the stopwatch.
    stages: tuple[str, ...]
    #: From the outcome to the other columns of the output.
    others: Callable[[Call, Any], Mapping[str, str | list[int] | None]] = lambda *_: {}


def judge_stream(
    engine: Engine, plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any
) -> Iterator[pd.DataFrame]:
    """Yield one shard's verdicts of a micro-batch, and set the shard's next state."""
    freeze_gc()
    yield _judge_stream(engine, plan, key, frames, state)
    faults.point("group.end")
    release_memory()


def _judge_stream(
    engine: Engine, plan: Plan, key: Any, frames: Iterable[pd.DataFrame], state: Any
) -> pd.DataFrame:
    faults.point("group.begin")
    task = Task.current(plan)
    if plan.bodies == "group":
        drop_earlier(task)
    lay = layout(plan, task, has_state=state.exists)
    call = _call(plan, task, lay, key, frames, state.getCurrentProcessingTimeMs())
    base, counts = engine.base(call, bytes(state.get[0]) if state.exists else None)
    call.watch.lap("read")
    faults.point("group.read")
    outcome = engine.judge(call, base)
    faults.point("group.judged")
    row = outcome.state.to_bytes()
    faults.point("group.update.before")
    state.update((row,))
    faults.point("group.update.after")
    call.watch.lap("write")
    counts |= {"state_bytes": len(row), "base_epoch": base.epoch}
    return _output(engine, call, outcome, counts, handed_on(plan, task, call.shard))


def judge_batch(engine: Engine, plan: Plan, key: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one shard's verdicts of a batch DataFrame, by the same rule; nothing is kept."""
    freeze_gc()
    task = Task.current(plan)
    call = _call(plan, task, layout(plan, task), key, [frame], wall_clock_ms())
    base, _ = engine.base(call, None)
    call.watch.lap("read")
    return _output(engine, call, engine.judge(call, base), {}, None)


def _call(
    plan: Plan, task: Task, lay: Layout, key: Any, frames: Iterable[pd.DataFrame], now_ms: int
) -> Call:
    watch = Stopwatch()
    shard = lay.slot_keys.index(int(key[0]))
    epoch = Epoch(
        number=task.epoch,
        run_id=task.run_id,
        now_ms=now_ms,
        worker_now_ms=wall_clock_ms(),
        shard=shard,
        hash_key=lay.filter_key,
    )
    return Call(plan, task, lay, shard, ShardInput.of(plan, lay, frames), epoch, watch)


def _output(
    engine: Engine,
    call: Call,
    outcome: Judged,
    counts: Mapping[str, int],
    body_file: BodyFile | None,
) -> pd.DataFrame:
    """Return the control row with the counters, then the blobs of which any row passes."""
    columns, emitted = _judged_rows(call, outcome.verdicts, body_file)
    call.watch.lap("write")
    numbers = {
        **outcome.counts,
        **counts,
        **{f"{stage}_us": call.watch.us[stage] for stage in engine.stages},
        **engine.levels(call, outcome),
        "emitted": outcome.counts["records_in"] if call.plan.verdict_column else emitted,
    }
    blank = [None] * (len(columns["rows"]) - 1)
    for name in engine.columns:
        columns[name] = pd.array([numbers.get(name, 0), *blank], dtype="Int64")
    columns["shard_index"] = pd.array([call.shard, *blank], dtype="Int32")
    for name, value in engine.others(call, outcome).items():
        columns[name] = pd.Series([value, *blank], dtype=object)
    return pd.DataFrame(columns)


def _judged_rows(
    call: Call, verdicts: U8, body_file: BodyFile | None
) -> tuple[dict[str, Any], int]:
    """Return the columns of `SCHEMA`, and how many records the user's options let pass.

    Bodies go into the file, if there is one.
    """
    passes = call.plan.passes
    given = call.input
    rows, keys, bodies = [wire.CONTROL], list[bytes | None]([None]), [given.schema_bytes]
    judged_blobs: list[bytes | None] = [None]
    needs_keys = given.unpack_needs_keys
    first = emitted = 0
    for head, key_blob, body in zip(given.heads, given.key_blobs, given.blobs, strict=True):
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
