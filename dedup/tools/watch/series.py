"""Which figures of a micro-batch are exported, under which names (Prometheus conventions).

Base units and suffixes follow prometheus.io/docs/practices/naming. Times are exported as
timestamps: a query computes the lag, and sees a target that is gone as well. A label never holds a
record ID, and of source partitions no more names than `MAX_SOURCES` while the process lives, so
a query is at most `SERIES_PER_QUERY` series.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dedup.core.forecast import BANDS, SLOWEST_SOURCES
from dedup.core.metrics import STAGES, VERDICTS, BatchMetrics
from dedup.core.sequence import SEQUENCE_VERDICTS
from dedup.core.sequence_metrics import SEQUENCE_STAGES, AnyMetrics
from dedup.tools.watch.health import Status

PREFIX = "dedup_"
#: What one of a field is in the exported unit, by the end of the field's name.
_UNITS = {"_ms": 1e-3, "_us": 1e-6, "_millionths": 1e-6}


@dataclass(frozen=True)
class Series:
    """One metric.

    Parameters
    ----------
    name : str
        Without prefix, and for counters without ``_total``.
    kind : {"counter", "gauge"}
        Counters are summed over micro-batches; gauges are as of the last one.
    about : str
        The help text.
    fields : dict of label value to field of BatchMetrics, or of SequenceMetrics
        A single one without label is under "".
    label : str
        Name of the label that tells the fields apart.
    """

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    fields: dict[str, str]
    label: str = ""

    @property
    def exported(self) -> str:
        """Name as it is exported."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


def _counter(name: str, about: str, fields: str | dict[str, str], label: str = "") -> Series:
    fields = {"": fields} if isinstance(fields, str) else fields
    return Series(name, "counter", about, fields, label)


def _gauge(name: str, about: str, fields: str | dict[str, str] = "", label: str = "") -> Series:
    fields = {"": fields or name} if isinstance(fields, str) else fields
    return Series(name, "gauge", about, fields, label)


def _eighths(part: int) -> dict[str, str]:
    return {str(band + 1): f"expiring.{band}.{part}" for band in range(BANDS)}


#: Of `dedup_by_id`.
SERIES = (
    _counter("records", "Records judged, by verdict.", {name: name for name in VERDICTS},
             "verdict"),
    _counter("records_emitted", "Records that went on.", "emitted"),
    _counter("records_flagged",
             "Records whose timestamp was in the future or null, that came from an idle partition, "
             "that were not looked up, or whose payload could not be compared.",
             {name: name
              for name in ("future", "null_timestamp", "returned_from_idle", "unchecked",
                           "payload_unknown")},
             "flag"),
    _counter("filter_probes",
             "Distinct IDs asked of the filters; false positives cost a read of the catalog.",
             {name: f"filter_{name}"
              for name in ("negative", "true_positive", "false_positive", "unconfirmed")},
             "result"),
    _counter("expected_lost_ids",
             "New IDs that the filters are expected to have taken for seen, under at-most-once.",
             "expected_lost_millionths"),
    _gauge("filter_target_ratio", "The false-positive rate that filters are sized for.",
           "target_fpr"),
    _counter("catalog_reads", "Blocks read from the exact catalog.", "catalog_reads"),
    _counter("catalog_written_bytes", "Bytes written to the catalog root.", "bytes_written"),
    _counter("catalog_fetched_bytes", "Bytes fetched from the catalog root.", "bytes_fetched"),
    _counter("catalog_written_ids", "IDs written to segments, by merges as well.", "ids_written"),
    _counter("shard_epochs_lost",
             "Micro-batches by which a shard's state was older than that of others: damage.",
             "epochs_apart"),
    _counter("filters_rebuilt", "Filters made anew from their segments.", "filters_rebuilt"),
    _counter("segments_deleted", "Expired segments deleted.", "segments_deleted"),
    _counter("batch_seconds", "Time in micro-batches.", "batch_ms"),
    _counter("stage_seconds", "Time of tasks in each stage of the operator.",
             {stage: f"stage_us.{stage}" for stage in STAGES}, "stage"),
    _gauge("batch_id", "Number of the last micro-batch."),
    _gauge("shards", "Shards."),
    _gauge("buckets", "Buckets that hold IDs."),
    _gauge("live_ids", "IDs that are remembered."),
    _gauge("tail_ids", "IDs that are remembered in Spark state alone."),
    _gauge("fullest_shard", "Number of the shard that has the most IDs."),
    _gauge("fullest_shard_ids", "IDs in the shard that has the most."),
    _gauge("segments", "Segments: live, expired and not deleted yet, given up.",
           {"live": "segments", "pending": "segments_pending", "lost": "segments_lost"}, "state"),
    _gauge("stored_bytes", "Bytes that remember IDs or producers, by place.",
           {"state": "state_bytes", "segments": "segment_bytes", "filters": "sidecar_bytes"},
           "place"),
    _gauge("stray_files",
           "Files at the catalog root that no manifest names, and such that are not ours.",
           {"orphan": "orphan_files", "foreign": "foreign_files"}, "kind"),
    _gauge("branches", "Runs that went on from another state of this query's history."),
    _gauge("expiring_ids",
           "IDs that leave as the GC watermark advances by each eighth of the horizon.",
           _eighths(0), "eighth"),
    _gauge("expiring_bytes", "Bytes at the catalog root that leave with them.", _eighths(1),
           "eighth"),
    _gauge("newest_timestamp_seconds", "The newest record timestamp.", "newest_ms"),
    _gauge("low_watermark_timestamp_seconds", "The lowest clock of an active source partition.",
           "low_watermark_ms"),
    _gauge("late_watermark_timestamp_seconds", "Records behind it are late.", "late_watermark_ms"),
    _gauge("gc_watermark_timestamp_seconds", "What is behind it is forgotten.", "gc_watermark_ms"),
    _gauge("gc_watermark_shard", "Number of the shard whose GC watermark is lowest.", "gc_shard"),
    _gauge("horizon_seconds", "How long an ID is remembered.", "horizon_ms"),
    _gauge("lateness_seconds", "How far behind a record may be and still be on time.",
           "lateness_ms"),
    _gauge("bucket_seconds", "How long a bucket is.", "bucket_ms"),
    _gauge("state_budget_bytes", "How large the state of one shard may become."),
)  # fmt: skip

_BY_NAME = {series.name: series for series in SERIES}


def _same(name: str, fields: dict[str, str] | None = None) -> Series:
    return _BY_NAME[name] if fields is None else replace(_BY_NAME[name], fields=fields)


#: Of `dedup_by_sequence`: what means the same has the same name.
SEQUENCE_SERIES = (
    _same("records", {name: name for name in SEQUENCE_VERDICTS}),
    _same("records_emitted"),
    _same("records_flagged", {name: name for name in ("future", "null_timestamp")}),
    _counter("sequences_missing",
             "Numbers that producers left out ahead of records which went on: lost, or late.",
             "missing"),
    _counter("sequences_recovered", "Of these, the ones whose records came after all.",
             "recovered"),
    _counter("producers_new", "Producers that were not remembered before.", "producers_new"),
    _counter("producers_expired", "Producers that were forgotten for their silence.",
             "producers_expired"),
    _same("shard_epochs_lost"),
    _same("batch_seconds"),
    _same("stage_seconds", {stage: f"stage_us.{stage}" for stage in SEQUENCE_STAGES}),
    _same("batch_id"),
    _same("shards"),
    _gauge("producers", "Producers that are remembered, of a partition each."),
    _gauge("fullest_shard_producers", "Producers in the shard that has the most."),
    _gauge("max_producers", "How many a shard may have: more stop the query."),
    _same("stored_bytes", {"state": "state_bytes"}),
    _same("newest_timestamp_seconds"),
    _same("low_watermark_timestamp_seconds"),
    _same("gc_watermark_timestamp_seconds"),
    _gauge("expire_after_seconds", "How long a producer may be silent until it is forgotten.",
           "expire_after_ms"),
)  # fmt: skip

#: Every metric once, of whichever operator; series of one name differ in their fields alone.
FAMILIES = tuple({series.name: series for series in (*SEQUENCE_SERIES, *SERIES)}.values())


def series_of(batch: AnyMetrics) -> tuple[Series, ...]:
    """Return the series that a micro-batch has."""
    return SERIES if isinstance(batch, BatchMetrics) else SEQUENCE_SERIES


LAST_BATCH = f"{PREFIX}last_batch_timestamp_seconds"
HEARD = f"{PREFIX}last_heard_timestamp_seconds"
RUN_BEGUN = f"{PREFIX}run_first_batch_timestamp_seconds"
CHECKPOINT_BEGUN = f"{PREFIX}checkpoint_first_batch_timestamp_seconds"
RUNNING = f"{PREFIX}query_running"
FAILED = f"{PREFIX}query_failed"
#: Beside these, by the listener's clock: gauges of the query and its runs.
LIFE = {
    LAST_BATCH: "When a micro-batch was done.",
    HEARD: "When the query gave a sign of life.",
    RUN_BEGUN: "When the run's first micro-batch was done.",
    CHECKPOINT_BEGUN: "When the checkpoint's first micro-batch was done; only where it was heard.",
    RUNNING: "1 while the query runs.",
    FAILED: "1 when a run failed, until a later one has done a micro-batch or waits for input.",
}
#: And the verdict, as `dedup watch` judges it; of a query one is 1, the others 0.
STATUS = f"{PREFIX}query_status"
EVIDENCE = f"{PREFIX}query_evidence_batches"
VERDICT = {
    STATUS: "1 for the verdict on the query, 0 for the others.",
    EVIDENCE: "Micro-batches that the verdict rests on, at most ten.",
}
#: And source partitions, in the label of this name; of a query with one clock there are none.
SOURCE = "source_partition"
CLOCK = f"{PREFIX}source_partition_timestamp_seconds"
HOLDER = f"{PREFIX}low_watermark_holder_info"
SOURCES = {
    CLOCK: "Clocks of the ten slowest source partitions.",
    HOLDER: "1 for the source partition that holds the low watermark.",
}
#: Names that are told of while the process lives; any other one is called so.
MAX_SOURCES, OTHER = 200, "other"
#: Queries that are told of; of more, those heard of last.
MAX_QUERIES = 100
SERIES_PER_QUERY = (
    sum(len(series.fields) for series in SERIES)
    + len(LIFE)
    + len(Status)
    + len([EVIDENCE])
    + SLOWEST_SOURCES
    + len([HOLDER])
)


def values(series: Series, batch: AnyMetrics) -> Iterator[tuple[str, float]]:
    """Yield label value and value in the exported unit, for each field that is known."""
    for label, field in series.fields.items():
        name, *keys = field.split(".")
        value = getattr(batch, name)
        for key in keys:
            value = value[int(key)] if key.isdigit() else value.get(key, 0)
        if value is not None:
            yield label, value * _UNITS.get(name[name.rfind("_") :], 1.0)
