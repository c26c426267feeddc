"""One call of the group function, which gets the packed rows of one shard and micro-batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dedup.catalog.compatibility import began_twice
from dedup.core.keys import Keys
from dedup.core.metrics import MetricNames
from dedup.core.records import Epoch, Outcome, Records
from dedup.core.sharding import derive_keys
from dedup.errors import ConfigError
from dedup.kernel.arrays import I64
from dedup.spark.executor import wire
from dedup.spark.executor.bodies import BodyReader
from dedup.spark.executor.layout import Layout
from dedup.spark.executor.rowhash import hash_rows
from dedup.spark.executor.task import Task
from dedup.spark.machine import Stopwatch
from dedup.spark.plan import Plan


@dataclass(slots=True)
class ShardInput:
    """A shard's packed rows of one micro-batch, decoded as far as the engine needs them."""

    plan: Plan
    layout: Layout
    blobs: list[bytes] = field(default_factory=list)
    key_blobs: list[bytes] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    heads: list[pa.RecordBatch] = field(default_factory=list)
    observed: wire.ObservedSources = field(default_factory=dict)
    heartbeats: int = 0
    schema_bytes: bytes | None = None
    nbytes: int = 0

    def add(self, rows: pd.DataFrame | Mapping[str, Iterable[Any]]) -> None:
        schema = wire.head_schema(self.plan)
        columns = (rows[name] for name in ("rows", "keys", "head", "body"))
        for count, keys, head, body in zip(*columns, strict=True):
            if count == wire.CONTROL:
                root = self.plan.root
                if root is not None and bytes(keys) != wire.write_key_id(self.layout.key_id):
                    raise began_twice(root)
                observed, heartbeats = wire.read_observed(head)
                wire.add_observed(self.observed, observed)
                self.heartbeats += heartbeats
                if body is not None:
                    self.schema_bytes = bytes(body)
                continue
            self.nbytes += len(keys) + len(head) + len(body)
            if self.nbytes > self.plan.max_shard_batch_bytes:
                # More shards would not divide the records of one producer.
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

    def records(self) -> Records:
        """Return the shard's records, in the order of the blobs."""
        plan, column = self.plan, self._column
        numbered = plan.numbering is not None
        return Records(
            keys=Keys.concat(self.keys),
            times_ms=column("time_ms", np.int64),
            flags=column("flags", np.uint8),
            observed={name: observed for name, (observed, _) in self.observed.items()},
            heartbeats=self.heartbeats,
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
        """Rank the given records by the columns of `order_by`, then by a hash of the whole row."""
        # A batch draws new hash keys each time, but the same record must always come first.
        key = self.layout.shard_key if self.plan.streaming else derive_keys("batch")[0]
        rows = self.rows(index)
        user = rows.select(range(self.plan.user_columns))
        columns = {f"o{i}": rows.column(name) for i, name in enumerate(self.plan.order_columns)}
        columns["hash"] = pa.chunked_array([pa.array(hash_rows(user, key))])
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
class Call(ABC):
    """One call of the group function. A subclass judges the records by an operator's rules."""

    #: Names of the counters in the output.
    NAMES: ClassVar[MetricNames]

    plan: Plan
    task: Task
    layout: Layout
    shard: int
    input: ShardInput
    epoch: Epoch
    watch: Stopwatch

    @abstractmethod
    def base(self, row: bytes | None) -> tuple[Any, dict[str, int]]:
        """Check the shard's state row, and return the state and counters.

        `row` is None if Spark has no state for the shard.
        """

    @abstractmethod
    def judge(self, base: Any) -> Outcome[Any]:
        """Judge the records, and return the verdicts and the next state."""

    @abstractmethod
    def levels(self, outcome: Any) -> Mapping[str, int | None]:
        """Return the counters that describe the next state."""

    def others(self, outcome: Any) -> Mapping[str, str | list[int] | None]:
        return {}
