"""First pass: packs the user's rows into blobs. A blob holds some thousand rows of one shard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup import kernel
from dedup.core.admission import FLAG_NULL_ID, observed_times
from dedup.core.clocks import NEVER_MS, Observed, check_sources
from dedup.core.keys import Keys
from dedup.core.sequence import CYCLE
from dedup.core.sharding import shards_of
from dedup.errors import DataError, faults
from dedup.kernel.arrays import BOOL, I64, U8, U64
from dedup.spark.executor import wire
from dedup.spark.executor.bad_records import first_of, plain
from dedup.spark.executor.bodies import BodyFile, drop_earlier, packed_bodies
from dedup.spark.executor.layout import Layout, layout
from dedup.spark.executor.rowhash import hash_rows
from dedup.spark.executor.task import Task
from dedup.spark.executor.worker_memory import freeze_gc, release_memory
from dedup.spark.id_encoding import encode_ids, null_mask
from dedup.spark.machine import Stopwatch
from dedup.spark.plan import Numbering, Plan
from dedup.spark.versions import check_executor

#: Largest number of rows of a blob.
BLOB_ROWS = 8192
MAX_BLOB_ROWS = 65_536
#: If this many bytes are buffered, all of them are sent.
BUFFER_BYTES = 32 << 20


def pack(
    plan: Plan, batches: Iterator[pa.RecordBatch], bad_records: Callable[[], int] = int
) -> Iterator[pa.RecordBatch]:
    """Yield the packed rows of one map task: blobs when they are full, control rows at the end.

    `bad_records` returns how many records are not rows, when all `batches` are read.
    """
    if plan.streaming:
        check_executor()
    freeze_gc()
    faults.point("pack.begin")
    watch = Stopwatch()
    task = Task.current(plan)
    if plan.bodies == "pack":
        drop_earlier(task)
    file = packed_bodies(plan, task)
    with nullcontext() if file is None else closing(file):
        packer, bytes_in = Packer(plan, layout(plan, task), file), 0
        for batch in batches:
            watch.resume()
            bytes_in += batch.nbytes
            if batch.num_rows:
                packer.add(batch)
                if packer.full:
                    yield from _sent(packer.flush(), watch)
            watch.lap("pack")
        watch.resume()
        yield from _sent(packer.flush(), watch)
    control = packer.control_rows()
    watch.lap("pack")
    yield _with_figures(control, watch.us["pack"], bytes_in, bad_records())
    faults.point("pack.end")
    del control, packer
    release_memory()


def _sent(rows: Iterator[pa.RecordBatch], watch: Stopwatch) -> Iterator[pa.RecordBatch]:
    """Yield packed rows, and stop the watch until Spark asks for the next row."""
    for row in rows:
        watch.lap("pack")
        yield _with_figures(row, *[None] * len(wire.PACK_FIGURES))
        watch.resume()


def _with_figures(rows: pa.RecordBatch, *figures: int | None) -> pa.RecordBatch:
    others = [None] * (rows.num_rows - 1)
    columns = [pa.array([figure, *others], pa.int64()) for figure in figures]
    return pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=wire.SENT_ARROW)


@dataclass(slots=True)
class Packer:
    """Buffers rows per shard. The same rows in the same order give the same blobs."""

    plan: Plan
    layout: Layout
    file: BodyFile | None = None
    bodies: list[pa.RecordBatch] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    heads: list[pa.RecordBatch] = field(default_factory=list)
    shards: list[I64] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    schema: pa.Schema | None = None
    observed: wire.ObservedSources = field(default_factory=dict)
    heartbeats: int = 0

    @property
    def full(self) -> bool:
        return self.rows >= BLOB_ROWS * len(self.layout.slot_keys) or self.nbytes >= BUFFER_BYTES

    def add(self, batch: pa.RecordBatch) -> None:
        """Buffer one Arrow batch. Raises DataError for a record that an option refuses."""
        if self.plan.heartbeat_column is not None:
            batch = self._without_heartbeats(batch, batch.column(self.plan.heartbeat_column))
            if not batch.num_rows:
                return
        ids = encode_ids([batch.column(column) for column, _, _ in self.plan.id_columns])
        flags = np.zeros(batch.num_rows, np.uint8)
        if ids.null.any():
            names = ", ".join(name for _, name, _ in self.plan.id_columns)
            self.plan.handling.check_ids(ids.null, names, partial(first_of, self.plan, batch))
            flags[ids.null] |= FLAG_NULL_ID
        numbers: list[pa.Array] = []
        if self.plan.numbering is not None:
            *columns, missing = _numbers(self.plan, self.plan.numbering, batch)
            flags[missing] |= FLAG_NULL_ID
            numbers = [pa.array(values) for values in columns]
        times_ms = self._times(batch, ids.keys, flags)
        head: list[pa.Array] = [pa.array(times_ms), pa.array(flags)]
        if self.plan.policy.event_time:
            sources = self._observe(batch, times_ms, flags)
            if sources is not None:
                head.append(pa.array(sources))
        if self.plan.policy.payload is not None:
            payload = pa.Table.from_batches([batch.select(list(self.plan.payload_columns))])
            head.append(pa.array(hash_rows(payload, self.layout.payload_key)))
        head += numbers
        count = len(self.layout.slot_keys)
        hashes = kernel.hash64(ids.keys.data, ids.keys.offsets, self.layout.shard_key)
        shards = shards_of(hashes, count)
        body = batch.select(range(self.plan.body_columns))
        if ids.null.any():
            # Spread rows by their hash, because a retried task may see them in another order.
            nulls = pa.Table.from_batches([body.filter(pa.array(ids.null))])
            spread = hash_rows(nulls, self.layout.shard_key) % np.uint64(count)
            shards[ids.null] = spread.astype(np.int64)
        self.schema = body.schema
        in_keys = wire.key_column(self.plan, body.schema)
        if in_keys is not None:
            body = body.remove_column(in_keys)
        self.bodies.append(body)
        self.keys.append(ids.keys)
        self.heads.append(pa.RecordBatch.from_arrays(head, schema=wire.head_schema(self.plan)))
        self.shards.append(shards)
        self.rows += batch.num_rows
        self.nbytes += body.nbytes + ids.keys.nbytes + self.heads[-1].nbytes

    def flush(self, slice_ms: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the buffered rows, one or more blobs per shard, and clear the buffer.

        With `slice_ms`, all rows of a blob belong to one slice of time of this length.
        """
        if not self.rows:
            return
        body, head = _joined(self.bodies), _joined(self.heads)
        keys = Keys.concat(self.keys)
        shards = np.concatenate(self.shards)
        count = len(self.layout.slot_keys)
        if slice_ms:
            slices = np.floor_divide(head.column("time_ms").to_numpy(), slice_ms)
            shards += count * np.unique(slices, return_inverse=True)[1]
        sizes = np.bincount(shards, minlength=count)
        # Use the narrowest type: numpy sorts 8 and 16 bits by radix.
        order = np.argsort(shards.astype(np.min_scalar_type(len(sizes))), kind="stable")
        bounds = np.cumsum([0, *sizes])
        self.bodies, self.keys, self.heads, self.shards = [], [], [], []
        self.rows = self.nbytes = 0
        write_body = wire.write_body if self.file is None else self.file.write
        for group in np.flatnonzero(sizes).tolist():
            for first in range(bounds[group], bounds[group + 1], MAX_BLOB_ROWS):
                taken = order[first : min(first + MAX_BLOB_ROWS, bounds[group + 1])]
                index = pa.array(taken)
                yield _packed_row(
                    self.layout.slot_keys[group % count],
                    len(index),
                    wire.write_keys(keys.take(taken)),
                    head.take(index).serialize(),
                    write_body(body.take(index)),
                )

    def control_rows(self) -> pa.RecordBatch:
        """Return one row per shard, so that every shard observes every clock (invariant 10)."""
        count = len(self.layout.slot_keys)
        schema = None if self.schema is None else self.schema.serialize().to_pybytes()
        # The metrics add up the shards, so only one of them counts the heartbeats.
        heads = [
            wire.write_observed(self.observed, 0 if shard else self.heartbeats)
            for shard in range(count)
        ]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.layout.slot_keys, pa.int32()),
                pa.array([wire.CONTROL] * count, pa.int32()),
                pa.array([wire.write_key_id(self.layout.key_id)] * count, pa.binary()),
                pa.array(heads, pa.binary()),
                pa.array([schema] * count, pa.binary()),
            ],
            schema=wire.PACKED_ARROW,
        )

    def _without_heartbeats(self, batch: pa.RecordBatch, marks: pa.Array) -> pa.RecordBatch:
        """Observe the clocks of the heartbeats, and return the other rows."""
        marked = pc.fill_null(marks, False)
        heartbeats = batch.filter(marked)
        if not heartbeats.num_rows:
            return batch
        self.heartbeats += heartbeats.num_rows
        keys = encode_ids([heartbeats.column(column) for column, _, _ in self.plan.id_columns]).keys
        # As records without an ID, heartbeats need no timestamp. Those without one do nothing.
        flags = np.full(heartbeats.num_rows, FLAG_NULL_ID, np.uint8)
        self._observe(heartbeats, self._times(heartbeats, keys, flags), flags, heartbeats=True)
        return batch.filter(pc.invert(marked))

    def _times(self, batch: pa.RecordBatch, keys: Keys, flags: U8) -> I64:
        """Return timestamps in ms. The micro-batch's time replaces null and future timestamps."""
        plan = self.plan
        if not plan.policy.event_time:
            return np.zeros(batch.num_rows, np.int64)
        now_ms = int(millis(batch.column(plan.now_column))[0])
        no_id = (flags & FLAG_NULL_ID) != 0
        if plan.time.in_id is not None:
            times_ms, null = plan.time.in_id.read(keys, plan.id_columns[0][2])
        else:
            column = batch.column(plan.time.column)
            times_ms = millis(column).copy()
            null = null_mask(column)
        # A record without an ID needs no time.
        first = partial(first_of, plan, batch)
        plan.handling.check_times(null & ~no_id, plan.time.text, first)
        plan.handling.substitute_times(
            times_ms,
            null,
            flags,
            now_ms=now_ms,
            max_future_ms=plan.max_future_ms,
            in_id=plan.time.in_id is not None,
        )
        return times_ms

    def _observe(
        self, batch: pa.RecordBatch, times_ms: I64, flags: U8, *, heartbeats: bool = False
    ) -> U64 | None:
        """Observe the batch's clocks, and return the hashes of the rows' source partitions."""

        def seen(newest_ms: int, rows: int) -> Observed:
            return Observed(NEVER_MS, rows, newest_ms) if heartbeats else Observed(newest_ms, rows)

        timed, trusted_ms = observed_times(times_ms, flags)
        if not self.plan.source_columns:
            if timed.any():
                everything = seen(int(trusted_ms.max()), int(timed.sum()))
                wire.add_observed(self.observed, {"": (everything, 0)})
            return None
        columns = [batch.column(name) for name in self.plan.source_columns]
        names, hashes, index = name_sources(columns, self.layout.shard_key)
        newest_ms = np.full(len(names), NEVER_MS, np.int64)
        np.maximum.at(newest_ms, index, trusted_ms)
        counts = np.bincount(index[timed], minlength=len(names))
        for name, number, newest, count in zip(names, hashes, newest_ms, counts, strict=True):
            if count:
                wire.add_observed(
                    self.observed, {name: (seen(int(newest), int(count)), int(number))}
                )
        check_sources(len(self.observed))
        return hashes[index]


def millis(column: pa.Array) -> I64:
    """Return timestamps rounded down to milliseconds, with 0 for a null."""
    micros = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    millis: I64 = np.floor_divide(
        micros.fill_null(0).to_numpy(zero_copy_only=False), np.int64(1000)
    )
    return millis


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)


def _packed_row(
    slot_key: int, rows: int, keys: pa.Buffer, head: pa.Buffer, body: pa.Buffer
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([slot_key], pa.int32()),
            pa.array([rows], pa.int32()),
            _one_binary(keys),
            _one_binary(head),
            _one_binary(body),
        ],
        schema=wire.PACKED_ARROW,
    )


def _one_binary(data: pa.Buffer) -> pa.BinaryArray:
    offsets = pa.py_buffer(np.array([0, data.size], np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, data])


def _numbers(plan: Plan, numbering: Numbering, batch: pa.RecordBatch) -> tuple[I64, I64, BOOL]:
    """Return epochs and sequences, and which records lack a producer, epoch or sequence."""
    sequences, missing = _whole(batch.column(numbering.sequence_column))
    epochs = np.zeros(batch.num_rows, np.int64)
    if numbering.epoch_column is not None:
        epochs, none = _whole(batch.column(numbering.epoch_column))
        missing |= none
    for column in numbering.producer_columns:
        missing |= null_mask(batch.column(column))
    if numbering.rule.unnumbered == "error" and missing.any():
        raise DataError(
            f"{int(missing.sum())} records have no producer, epoch or sequence (null, or below 0), "
            f'and unnumbered="error" is set. {first_of(plan, batch, missing)} Fix the records, or '
            'choose unnumbered="emit" or "drop".',
            remedy="bad-records",
        )
    return epochs, sequences % CYCLE, missing


def _whole(column: pa.Array) -> tuple[I64, BOOL]:
    """Return the values of an integer column, and which of them are null or below 0."""
    values = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return values, values < 0


def name_sources(columns: Sequence[pa.Array], key: bytes) -> tuple[list[str], U64, I64]:
    """Return the distinct source partitions, their hashes, and each record's index into them.

    The name of a source partition is the JSON of its column values, such as ``["clicks",3]``, or of
    a single value. `key` is the 16-byte key of the hashes.
    """
    ids = encode_ids(columns)
    hashes = kernel.hash64(ids.keys.data, ids.keys.offsets, key)
    distinct, first, index = np.unique(hashes, return_index=True, return_inverse=True)
    rows = zip(*(map(plain, column.take(pa.array(first))) for column in columns), strict=True)
    names = [
        json.dumps(row[0] if len(row) == 1 else list(row), default=str, separators=(",", ":"))
        for row in rows
    ]
    return names, distinct, index.astype(np.int64)
