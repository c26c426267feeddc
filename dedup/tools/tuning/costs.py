"""Measure the time of a shard's work on this machine.

The engine (`dedup.core`) runs over a real catalog on this machine's disk. Spark's passes are not
measured, because they add the same time for every choice of options, except for passing a larger
state row to Python and back: about 9 ms per MiB and micro-batch.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dedup import kernel
from dedup.catalog.cache import LocalCache
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.policy import Policy
from dedup.core.sharding import derive_keys, filter_key_id
from dedup.core.state import ShardState
from dedup.spark.machine import Stopwatch
from dedup.storage.root import Root
from dedup.tools.tuning.load import HASH_KEY, UNKNOWN, KeysOf, Load, drive, synthetic_keys
from dedup.tools.tuning.trial import Trial, filters_of

#: Stages of `process` whose time depends on the number of records.
_ROW_STAGES = ("hash", "tail", "judge")
_QUERY = "00000000-0000-4000-8000-000000000000"
_HOUR_MS = 3_600_000
_BATCHES = 40
#: Number of micro-batches at the start that are not measured, because there are no segments yet.
_WARM_UP = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Time of one core, in nanoseconds, per unit of work.

    `row_ns` is the time to hash, look up in the tail and judge a record. `filter_ns` is the time to
    look up a record in one filter. `read_ns` is for a block of the catalog, and `written_ns` for an
    ID in a segment, merges included. `state_ns` is for a byte of state that a micro-batch rewrites.
    """

    row_ns: float
    filter_ns: float
    read_ns: float
    written_ns: float
    state_ns: float

    def ms_per_million(self, trial: Trial, state_bytes: float, rows: float) -> float:
        """Return the milliseconds that 1 M records take.

        `state_bytes` is the size of a shard's state, and `rows` its records per micro-batch.
        """
        # A nanosecond per record is a millisecond per million.
        return (
            self.row_ns
            + self.filter_ns * trial.filters_asked
            + self.read_ns * trial.blocks_read
            + self.written_ns * trial.ids_written
            + self.state_ns * state_bytes / rows
        )


def measure(keys: KeysOf, progress: Callable[[float], None], rows: int = 40_000) -> Costs:
    """Return the costs on this machine, as medians over micro-batches of `rows` records.

    `keys` should make keys as long as the query's keys. Calls `progress` with the finished share.
    Raises CatalogError if the disk of temporary files fails.
    """
    policy = Policy(
        horizon_ms=24 * _HOUR_MS, bucket_ms=3 * _HOUR_MS, event_time=True, lateness_ms=_HOUR_MS
    )
    load = Load(rows=rows, batch_ms=_HOUR_MS, policy=policy)
    units: defaultdict[str, list[float]] = defaultdict(list)
    watch = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="dedup-tune-") as folder:
        root, cache = Root(Path(folder, "catalog")), LocalCache(_QUERY, Path(folder, "cache"))
        store = ShardStore(ShardFiles(root, cache, _QUERY, 0), Attempt(0, _QUERY, 0))
        hash_key, filters = derive_keys(_QUERY)[1], 0.0
        for step in drive(load, _BATCHES, keys, store, hash_key=hash_key, on_stage_end=watch.lap):
            done = store.counters.take()
            written = step.counts.get("ids_written", 0)
            if step.number >= _WARM_UP and done.catalog_reads and written:
                judging_us = sum(watch.us[stage] for stage in _ROW_STAGES)
                units["row_ns"].append(1000 * judging_us / rows)
                units["filter_ns"].append(1000 * watch.us["probe"] / (rows * filters))
                units["read_ns"].append(1000 * watch.us["lookup"] / done.catalog_reads)
                units["written_ns"].append(1000 * watch.us["upkeep"] / written)
                units["state_ns"].append(_state_ns(step.state))
            filters = sum(share for share, _ in filters_of(step.state, load, step.now_ms))
            progress((step.number + 1) / _BATCHES)
            watch.us.clear()
    return Costs(**{name: float(np.median(values)) for name, values in units.items()})


def _state_ns(state: ShardState) -> float:
    """Return the nanoseconds per byte for reading, searching and writing a state row."""
    row, key_id = state.to_bytes(), filter_key_id(_QUERY)
    one = synthetic_keys()(np.array([UNKNOWN]))
    one_hash = kernel.hash64(one.data, one.offsets, HASH_KEY)
    start_ns = time.perf_counter_ns()
    tail = ShardState.from_bytes(row, hash_key_id=key_id).tail
    hashes = tail.hashes(HASH_KEY)
    kernel.match(tail.keys.data, tail.keys.offsets, hashes, one.data, one.offsets, one_hash)
    state.to_bytes()
    return (time.perf_counter_ns() - start_ns) / len(row)
