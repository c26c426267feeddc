"""Exported metrics and their names, by Prometheus conventions.

Base units and suffixes follow prometheus.io/docs/practices/naming. Times are exported as
timestamps, so that a dashboard can compute the lag of a query that has died. Labels never hold
record IDs. They hold at most `MAX_SOURCES` names of source partitions per process, so that the
number of series is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dedup.core.forecast import BANDS
from dedup.core.metrics import STAGES, VERDICTS, BatchMetrics
from dedup.core.sequence import SEQUENCE_VERDICTS
from dedup.core.sequence_metrics import SEQUENCE_STAGES, AnyMetrics
from dedup.sinks.figures import SinkMetrics

PREFIX = "dedup_"
#: Factor that converts a field to the exported unit, by the suffix of the field's name.
_UNITS = {"_ms": 1e-3, "_us": 1e-6, "_millionths": 1e-6}


@dataclass(frozen=True)
class Series:
    """A metric of Prometheus, and the fields that its values come from."""

    #: Name without the prefix, and without the suffix ``_total`` of counters.
    name: str
    #: Counters sum over micro-batches. Gauges have the value of the last micro-batch.
    kind: Literal["counter", "gauge"]
    about: str
    #: Field of BatchMetrics, SequenceMetrics or SinkMetrics for every value of the label. A metric
    #: without a label has one field, under "".
    fields: dict[str, str]
    label: str = ""

    @property
    def exported(self) -> str:
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _counter(name: str, about: str, fields: str | dict[str, str], label: str = "") -> Series:
    fields = {"": fields} if isinstance(fields, str) else fields
    return Series(name, "counter", about, fields, label)


def _gauge(name: str, about: str, fields: str | dict[str, str] = "", label: str = "") -> Series:
    fields = {"": fields or name} if isinstance(fields, str) else fields
    return Series(name, "gauge", about, fields, label)


def _eighths(part: int) -> dict[str, str]:
    return {str(band + 1): f"expiring.{band}.{part}" for band in range(BANDS)}


#: Metrics of `dedup_by_id`.
SERIES = (
    _counter("records", "Records judged, by verdict.", {name: name for name in VERDICTS},
             "verdict"),
    _counter("records_emitted", "Records that passed.", "emitted"),
    _counter("records_flagged",
             "Records whose timestamp was in the future or null, that came from an idle partition, "
             "that were not looked up, or whose payload could not be compared.",
             {name: name
              for name in ("future", "null_timestamp", "returned_from_idle", "unchecked",
                           "payload_unknown")},
             "flag"),
    _counter("heartbeats", "Rows that only advanced a clock.", "heartbeats"),
    _counter("received_bytes", "Bytes of the rows that came in, in Arrow's form.", "bytes_in"),
    _counter("filter_probes",
             "Distinct IDs looked up in filters; false positives cost a read of the catalog.",
             {name: f"filter_{name}"
              for name in ("negative", "true_positive", "false_positive", "unconfirmed")},
             "result"),
    _counter("filter_sidecar_ids",
             "Distinct IDs with a negative answer that needed filters outside Spark state.",
             "filter_sidecar"),
    _counter("expected_lost_ids",
             "Expected number of new IDs dropped by filters, under at-most-once.",
             "expected_lost_millionths"),
    _gauge("filter_target_ratio", "False-positive rate that filters are sized for.",
           "target_fpr"),
    _counter("catalog_reads", "Blocks read from the exact catalog.", "catalog_reads"),
    _counter("catalog_written_bytes", "Bytes written to the catalog root.", "bytes_written"),
    _counter("catalog_fetched_bytes", "Bytes fetched from the catalog root.", "bytes_fetched"),
    _counter("catalog_written_ids", "IDs written to segments, by merges as well.", "ids_written"),
    _counter("shard_epochs_lost",
             "Micro-batches by which a shard's state was older than the others: damage.",
             "epochs_apart"),
    _counter("filters_rebuilt", "Filters rebuilt from their segments.", "filters_rebuilt"),
    _counter("ids_forgotten_early", "IDs forgotten early because of max_live_ids.",
             "ids_forgotten_early"),
    _counter("segments_deleted", "Expired segments deleted.", "segments_deleted"),
    _counter("batch_seconds", "Time in micro-batches.", "batch_ms"),
    _counter("stage_seconds", "Time of tasks in each stage of the operator.",
             {stage: f"stage_us.{stage}" for stage in STAGES}, "stage"),
    _gauge("batch_id", "Number of the last micro-batch."),
    _gauge("shards", "Shards that took part in the last micro-batch."),
    _gauge("shard_count", "All shards. More than `shards` if only a part was read."),
    _gauge("shards_without_kernel", "Shards that numpy judged, for want of the C kernel."),
    _gauge("shards_without_files", "Shards whose rows went through Spark, for want of a file."),
    _gauge("buckets", "Buckets that hold IDs."),
    _gauge("live_ids", "Remembered IDs."),
    _gauge("tail_ids", "Remembered IDs in Spark state alone."),
    _gauge("fullest_shard", "Number of the shard with the most IDs."),
    _gauge("fullest_shard_ids", "IDs in the shard with the most IDs."),
    _gauge("segments", "Segments: live, expired and not deleted yet, or lost.",
           {"live": "segments", "pending": "segments_pending", "lost": "segments_lost"}, "state"),
    _gauge("stored_bytes", "Bytes of state, segments and filters.",
           {"state": "state_bytes", "segments": "segment_bytes", "filters": "sidecar_bytes"},
           "place"),
    _gauge("filter_state_bytes", "Bytes of filters in Spark state, a part of its bytes."),
    _gauge("stray_files",
           "Orphans and foreign files at the catalog root.",
           {"orphan": "orphan_files", "foreign": "foreign_files"}, "kind"),
    _gauge("branches", "Runs that continued another state of this query's history."),
    _gauge("expiring_ids",
           "IDs that expire as the GC watermark advances by each eighth of the horizon.",
           _eighths(0), "eighth"),
    _gauge("expiring_bytes", "Bytes at the catalog root that expire with them.", _eighths(1),
           "eighth"),
    _gauge("newest_timestamp_seconds", "Newest record timestamp.", "newest_ms"),
    _gauge("low_watermark_timestamp_seconds", "Lowest clock of an active source partition.",
           "low_watermark_ms"),
    _gauge("late_watermark_timestamp_seconds", "Records before it are late.", "late_watermark_ms"),
    _gauge("gc_watermark_timestamp_seconds", "IDs before it have expired.", "gc_watermark_ms"),
    _gauge("gc_watermark_shard", "Number of the shard with the lowest GC watermark.", "gc_shard"),
    _gauge("horizon_seconds", "Time that an ID is remembered.", "horizon_ms"),
    _gauge("horizon_kept_seconds",
           "Time within which no duplicate passed: less than the horizon while IDs are forgotten "
           "early.", "horizon_kept_ms"),
    _gauge("max_live_ids", "IDs beyond which the oldest are forgotten early, or 0."),
    _gauge("lateness_seconds", "Delay up to which a record is on time.",
           "lateness_ms"),
    _gauge("bucket_seconds", "Length of a bucket.", "bucket_ms"),
    _gauge("state_budget_bytes", "Maximum size of a shard's state without filters."),
    _gauge("max_filter_state_bytes", "Maximum size of the filters in a shard's state."),
)  # fmt: skip

_BY_NAME = {series.name: series for series in SERIES}


def _same(name: str, fields: dict[str, str]) -> Series:
    return replace(_BY_NAME[name], fields=fields)


#: Metrics of `dedup_by_sequence`. Metrics with the same meaning in both operators share a name.
SEQUENCE_SERIES = (
    _same("records", {name: name for name in SEQUENCE_VERDICTS}),
    _BY_NAME["records_emitted"],
    _same("records_flagged", {name: name for name in ("future", "null_timestamp")}),
    _BY_NAME["heartbeats"],
    _BY_NAME["received_bytes"],
    _counter("sequences_missing",
             "Numbers missing before records that passed: lost or late.",
             "missing"),
    _counter("sequences_recovered", "Missing numbers whose records arrived later.",
             "recovered"),
    _counter("producers_new", "Producers that were unknown.", "producers_new"),
    _counter("producers_expired", "Producers that expired.",
             "producers_expired"),
    _BY_NAME["shard_epochs_lost"],
    _BY_NAME["batch_seconds"],
    _same("stage_seconds", {stage: f"stage_us.{stage}" for stage in SEQUENCE_STAGES}),
    _BY_NAME["batch_id"],
    _BY_NAME["shards"],
    _BY_NAME["shard_count"],
    _BY_NAME["shards_without_kernel"],
    _BY_NAME["shards_without_files"],
    _gauge("producers", "Remembered pairs of producer and partition."),
    _gauge("fullest_shard_producers", "Producers in the shard with the most producers."),
    _gauge("max_producers", "Producers that a shard may have: more stop the query."),
    _same("stored_bytes", {"state": "state_bytes"}),
    _BY_NAME["newest_timestamp_seconds"],
    _BY_NAME["low_watermark_timestamp_seconds"],
    _BY_NAME["gc_watermark_timestamp_seconds"],
    _gauge("expire_after_seconds", "Silence after which a producer expires.",
           "expire_after_ms"),
)  # fmt: skip

#: Metrics of both operators, without repeated names. Metrics of one name differ only in `fields`.
FAMILIES = tuple({series.name: series for series in (*SEQUENCE_SERIES, *SERIES)}.values())


#: Metrics of sinks. Each has the label ``sink`` after ``query``.
SINK_SERIES = (
    _counter("sink_rows", "Rows that a sink got, in micro-batches that it published.", "rows"),
    _counter("sink_bytes", "Their size as Arrow bytes.", "bytes"),
    _counter("sink_retries", "Attempts beyond the first, of tasks and driver.", "retries"),
    _counter("sink_fenced", "Slots lost to another owner, such as the next worker.", "fenced"),
    _counter("sink_undelivered", "Records that mode none of Kafka lost.", "undelivered"),
    _counter("sink_seconds", "Time in the sink, of its tasks and of the driver.",
             {"tasks": "task_us", "driver": "driver_us"}, "part"),
)  # fmt: skip


def series_of(batch: AnyMetrics) -> tuple[Series, ...]:
    return SERIES if isinstance(batch, BatchMetrics) else SEQUENCE_SERIES


#: Name of the label that holds a source partition.
SOURCE = "source_partition"
#: Further gauges of a query: their labels besides the query's name, and their meaning. Times come
#: from the listener's clock.
QUERY_GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "last_batch_timestamp_seconds": ((), "End of the last micro-batch."),
    "last_heard_timestamp_seconds": ((), "Last sign of life of the query."),
    "run_first_batch_timestamp_seconds": ((), "End of the run's first micro-batch."),
    "checkpoint_first_batch_timestamp_seconds": (
        (), "End of the checkpoint's first micro-batch, if this process reported it."),
    "query_running": ((), "1 while the query runs."),
    "query_failed": (
        (),
        "1 after a run failed, until a later run has done a micro-batch or waits for input."),
    "query_status": (("status",), "1 for the verdict of `dedup watch`, 0 for the others."),
    "query_evidence_batches": (
        (), "Micro-batches that the verdict is based on, at most ten."),
    "source_partition_timestamp_seconds": (
        (SOURCE, "state"), "Clocks of the ten slowest source partitions."),
    "low_watermark_holder_info": (
        (SOURCE,), "1 for the source partition that holds the low watermark."),
}  # fmt: skip
#: Largest number of source partitions that a process exports, and the name that stands for the
#: rest.
MAX_SOURCES, OTHER = 200, "other"
#: Largest number of exported queries. If there are more, the latest active queries are exported.
MAX_QUERIES = 100


def values(series: Series, batch: AnyMetrics | SinkMetrics) -> Iterator[tuple[str, float]]:
    """Yield the label and the value of every known field, in the exported unit."""
    for label, field in series.fields.items():
        name, *keys = field.split(".")
        value = getattr(batch, name)
        for key in keys:
            value = value[int(key)] if key.isdigit() else value.get(key, 0)
        if value is not None:
            yield label, value * _UNITS.get(name[name.rfind("_") :], 1.0)
