"""What a micro-batch did, as numbers: measured in the tasks, summed by `observe`, typed here.

The group function returns one row of counters per shard. `DataFrame.observe` aggregates them as
they pass, and `StreamingQueryProgress.observedMetrics` carries the result to every listener, on
Spark Connect too. The row never reaches the user's rows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

#: Counters that add up over shards.
SUMS = (
    "records_in",
    "unique",
    "duplicate",
    "late",
    "null_id",
    "emitted",
    "future",
    "null_timestamp",
    "returned_from_idle",
    "filter_negative",
    "filter_true_positive",
    "filter_false_positive",
    "live_ids",
    "tail_ids",
    "segments",
    "state_bytes",
    "filter_state_bytes",
    "sidecar_bytes",
    "segment_bytes",
    "segments_written",
    "ids_written",
    "segments_merged",
    "segments_expired",
    "segments_deleted",
    "segments_pending",
    "segments_forgotten",
    "views_built",
    "bytes_fetched",
    "bytes_written",
    "filters_rebuilt",
    "catalog_reads",
    "orphan_files",
    "orphans_deleted",
    "foreign_files",
)
#: Stages of the group function, in microseconds, summed over shards.
GROUP_STAGES = ("read", "hash", "tail", "probe", "lookup", "judge", "upkeep", "write")
#: Of the micro-batch: pack, summed over map tasks, before them.
STAGES = ("pack", *GROUP_STAGES)
STAGE_COLUMNS = tuple(f"{stage}_us" for stage in GROUP_STAGES)
#: The greatest over shards.
MAXIMA = ("buckets", "branches", "newest_ms", "now_ms", "low_watermark_ms", "late_watermark_ms")
COLUMNS = (*SUMS, *STAGE_COLUMNS, *MAXIMA, "gc_watermark_ms")

DDL = ", ".join([*(f"{name} bigint" for name in COLUMNS), "shard_index int", "gc_source string"])


def observations() -> list[Column]:
    """Aggregates for `DataFrame.observe` over the group function's output."""
    sums = [F.sum(name).alias(name) for name in (*SUMS, *STAGE_COLUMNS)]
    maxima = [F.max(name).alias(name) for name in MAXIMA]
    holder = F.min(
        F.when(
            F.col("shard_index").isNotNull(),
            F.struct("gc_watermark_ms", "shard_index", "gc_source"),
        )
    )
    return [
        *sums,
        *maxima,
        F.min("gc_watermark_ms").alias("gc_watermark_ms"),
        holder["shard_index"].alias("gc_shard"),
        holder["gc_source"].alias("gc_source"),
        F.count("shard_index").alias("shards"),
    ]


def pack_observation() -> Column:
    """Aggregate for `DataFrame.observe` over pack's output."""
    return F.sum("pack_us").alias("pack_us")


def pack_name(name: str) -> str:
    """Under which name pack's time is observed, given the operator's `metrics` option."""
    return f"{name}_pack"


@dataclass(slots=True)
class Stopwatch:
    """Microseconds per stage."""

    us: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    last_ns: int = field(default_factory=time.perf_counter_ns)

    def resume(self) -> None:
        """Note that what took place since the last stage is none."""
        self.last_ns = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        """Note that a stage ends now."""
        now_ns = time.perf_counter_ns()
        self.us[stage] += (now_ns - self.last_ns) // 1000
        self.last_ns = now_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetrics:
    """One micro-batch, summed over shards.

    ``records_in == unique + duplicate + late + null_id`` holds in every micro-batch, and
    ``filter_negative + filter_true_positive + filter_false_positive`` is the number of distinct
    IDs that the exact tail did not settle. Bytes and IDs are after the micro-batch. Timestamps
    are milliseconds since the epoch, None before the first.

    ``returned_from_idle`` counts late records of source partitions that were idle, or that the
    query does not know (idle ones are forgotten once the GC watermark has passed them).

    Parameters
    ----------
    stage_us : dict of stage name to microseconds
        Time in the group function, summed over shards; ``pack`` is that of the first pass,
        summed over map tasks (attempts that were repeated count again).
    branches
        Other runs that went on from a state of this query's history: a copied or older checkpoint
        was started on the same catalog. Nothing is deleted until ``dedup catalog vacuum`` is told
        which checkpoint is in use.
    gc_shard, gc_source
        The shard with the lowest GC watermark, and the source partition that holds it there.
    """

    query_id: str
    run_id: str
    query_name: str | None
    batch_id: int
    batch_ms: int
    shards: int
    records_in: int
    unique: int
    duplicate: int
    late: int
    null_id: int
    emitted: int
    future: int
    null_timestamp: int
    returned_from_idle: int
    filter_negative: int
    filter_true_positive: int
    filter_false_positive: int
    live_ids: int
    tail_ids: int
    buckets: int
    segments: int
    state_bytes: int
    filter_state_bytes: int
    sidecar_bytes: int
    segment_bytes: int
    segments_written: int
    ids_written: int
    segments_merged: int
    segments_expired: int
    segments_deleted: int
    segments_pending: int
    segments_forgotten: int
    views_built: int
    bytes_fetched: int
    bytes_written: int
    filters_rebuilt: int
    catalog_reads: int
    orphan_files: int
    orphans_deleted: int
    foreign_files: int
    branches: int
    now_ms: int | None
    newest_ms: int | None
    low_watermark_ms: int | None
    late_watermark_ms: int | None
    gc_watermark_ms: int | None
    gc_shard: int | None
    gc_source: str | None
    stage_us: dict[str, int]

    @property
    def gc_lag_newest_ms(self) -> int | None:
        """How far the GC watermark is behind the newest timestamp."""
        return _difference(self.newest_ms, self.gc_watermark_ms)

    @property
    def gc_lag_now_ms(self) -> int | None:
        """How far the GC watermark is behind the micro-batch's time."""
        return _difference(self.now_ms, self.gc_watermark_ms)

    @property
    def filter_fpr(self) -> float | None:
        """The false-positive rate that the filters really had, None if none was asked."""
        unknown = self.filter_negative + self.filter_false_positive
        return self.filter_false_positive / unknown if unknown else None


def _difference(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier


def from_progress(progress: Any, name: str = "dedup") -> BatchMetrics | None:
    """The metrics in a query's progress, None if it carries none.

    Parameters
    ----------
    progress : StreamingQueryProgress or dict
        As a listener or ``query.recentProgress`` gives it.
    name : str
        The operator's `metrics` option.
    """
    if isinstance(progress, Mapping):
        return _from_mapping(progress, name)
    observed = _with_pack(progress.observedMetrics, name)
    if observed is None:
        return None
    about = {
        "id": str(progress.id),
        "runId": str(progress.runId),
        "name": progress.name,
        "batchId": progress.batchId,
        "batchDuration": progress.batchDuration,
    }
    return _typed(about, observed)


def _from_mapping(progress: Mapping[str, Any], name: str) -> BatchMetrics | None:
    observed = _with_pack(progress.get("observedMetrics", {}), name)
    return None if observed is None else _typed(progress, observed)


def _with_pack(metrics: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Both of the operator's observations as one; None if the query has none of that name."""
    observed, packing = metrics.get(name), metrics.get(pack_name(name))
    if observed is None:
        return None
    return _as_dict(observed) | (_as_dict(packing) if packing is not None else {})


def _as_dict(observed: Any) -> dict[str, Any]:
    values: dict[str, Any] = observed if isinstance(observed, dict) else observed.asDict()
    if values.keys() == {"values", "schema"}:
        # Spark Connect, and progress as JSON.
        names = (column["name"] for column in values["schema"]["fields"])
        return dict(zip(names, values["values"], strict=True))
    return values


def _typed(about: Mapping[str, Any], observed: dict[str, Any]) -> BatchMetrics | None:
    if observed.get("shards") in (None, 0):
        return None
    return BatchMetrics(
        query_id=str(about["id"]),
        run_id=str(about["runId"]),
        query_name=about.get("name"),
        batch_id=int(about["batchId"]),
        batch_ms=int(about.get("batchDuration") or 0),
        shards=int(observed["shards"]),
        stage_us={stage: int(observed.get(f"{stage}_us") or 0) for stage in STAGES},
        buckets=int(observed["buckets"]),
        branches=int(observed["branches"]),
        gc_shard=observed["gc_shard"],
        gc_source=observed["gc_source"],
        **{field: int(observed[field]) for field in SUMS},
        **{field: observed[field] for field in (*MAXIMA[2:], "gc_watermark_ms")},
    )
