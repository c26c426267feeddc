"""Made-up micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dedup.core.forecast import BANDS
from dedup.core.metrics import NAMES, STAGES, BatchMetrics
from dedup.core.sequence_metrics import SEQUENCE_NAMES, SEQUENCE_STAGES, AnyMetrics, SequenceMetrics
from dedup.tools.watch.health import TimedBatch
from dedup.tools.watch.live_runs import Runs
from dedup.tools.watch.prometheus import Exporter
from dedup.tools.watch.query_log import QueryLog
from dedup.tools.watch.watched import Watched

QUERY, RUN = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff", "11111111-2222-4333-8444-555555555555"
START_MS, HOUR_MS = 1_700_000_000_000, 3_600_000


def batch(number: int, **fields: Any) -> BatchMetrics:
    """A micro-batch, ten seconds after the one before; the GC watermark an hour behind."""
    newest_ms = START_MS + 10_000 * number
    values: dict[str, Any] = dict.fromkeys((*NAMES.counted, *NAMES.held), 0)
    values |= dict.fromkeys(NAMES.times, newest_ms)
    values |= {
        "query_id": QUERY, "run_id": RUN, "query_name": "orders", "batch_id": number,
        "batch_ms": 800, "shards": 4, "records_in": 1000, "unique": 900, "duplicate": 100,
        "emitted": 900, "filter_negative": 890, "filter_false_positive": 10, "buckets": 9,
        "branches": 0, "gc_watermark_ms": newest_ms - HOUR_MS, "gc_shard": 0, "gc_source": None,
        "slowest_sources": (), "fullest_shard": 1, "fullest_shard_ids": 700, "live_ids": 2400,
        "begins": False, "epochs_apart": 0,
        "expiring": tuple((n, 10 * n) for n in range(BANDS)), "horizon_ms": HOUR_MS,
        "lateness_ms": 0, "bucket_ms": fields.get("horizon_ms", HOUR_MS) // 8,
        "state_budget_bytes": 1 << 20, "target_fpr": 0.01, "stage_us": dict.fromkeys(STAGES, 5),
    }  # fmt: skip
    return BatchMetrics(**{**values, **fields})


def sequence_batch(number: int, **fields: Any) -> SequenceMetrics:
    """The same of numbered records, forgotten an hour behind."""
    newest_ms = START_MS + 10_000 * number
    values: dict[str, Any] = dict.fromkeys((*SEQUENCE_NAMES.counted, *SEQUENCE_NAMES.held), 0)
    values |= {
        "query_id": QUERY, "run_id": RUN, "query_name": "pumps", "batch_id": number,
        "batch_ms": 800, "shards": 4, "records_in": 1000, "accept": 880, "duplicate": 100,
        "gap": 20, "emitted": 900, "missing": 30, "recovered": 10, "producers": 2400,
        "producers_new": 5, "producers_expired": 2, "fullest_shard_producers": 700,
        "state_bytes": 144_000, "now_ms": newest_ms + 500, "newest_ms": newest_ms,
        "low_watermark_ms": newest_ms, "expired_before_ms": newest_ms - HOUR_MS,
        "expire_after_ms": HOUR_MS, "max_producers": 100_000, "begins": False, "epochs_apart": 0,
        "stage_us": dict.fromkeys(SEQUENCE_STAGES, 5),
    }  # fmt: skip
    return SequenceMetrics(**{**values, **fields})


def watched(made: Iterable[tuple[int, AnyMetrics]], now_ms: int, **fields: Any) -> Watched:
    """Return a query that reported these micro-batches at these times."""
    timed = [TimedBatch(*one) for one in made]
    log = QueryLog(QUERY, "orders", timed, timed[-1].at_ms if timed else None)
    return replace(log, **fields).watched(now_ms)


class Session(Runs):
    """What a listener with an endpoint is."""

    #: Of the endpoint, where it is served.
    url: str

    def __init__(self) -> None:
        #: The driver's clock.
        self.now_ms = START_MS
        self.exporter = Exporter(lambda: self.now_ms)
        super().__init__(exporter=self.exporter)


def samples(session: Session) -> dict[tuple[str, tuple[str, ...]], float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(session.exporter)
    told = [
        ((sample.name, (sample.labels.pop("query"), *sample.labels.values())), sample.value)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]
    assert len(told) == len(dict(told)), "Prometheus refuses a series that comes twice"
    return dict(told)
