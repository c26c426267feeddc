"""What is exported: parsed by Prometheus's own parser, and by conventions."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_strictly

from dedup.core.forecast import MAX_NAME, SLOWEST_SOURCES
from dedup.core.sequence_metrics import SequenceMetrics
from dedup.tools.watch.health import Status
from dedup.tools.watch.series import (
    FAMILIES,
    MAX_QUERIES,
    MAX_SOURCES,
    QUERY_GAUGES,
    SEQUENCE_SERIES,
    SERIES,
    SINK_SERIES,
)
from tests.support.batch_metrics import HOUR_MS, START_MS, Session, batch, samples, sequence_batch


@pytest.fixture
def session() -> Session:
    return Session()


def test_counters_add_up_and_gauges_are_the_last(session: Session) -> None:
    session.batch(batch(0, duplicate=100, live_ids=5), START_MS)
    session.batch(batch(1, duplicate=11, live_ids=7), START_MS + 1500)
    told = samples(session)
    assert told["dedup_records_total", ("orders", "duplicate")] == 111
    assert told["dedup_records_total", ("orders", "unique")] == 1800
    assert told["dedup_live_ids", ("orders",)] == 7
    assert told["dedup_batch_seconds_total", ("orders",)] == pytest.approx(1.6)
    assert told["dedup_stage_seconds_total", ("orders", "probe")] == pytest.approx(10e-6)
    assert told["dedup_filter_target_ratio", ("orders",)] == pytest.approx(0.01)
    assert told["dedup_expiring_bytes", ("orders", "3")] == 20
    newest_s = (START_MS + 10_000) / 1000
    assert told["dedup_newest_timestamp_seconds", ("orders",)] == pytest.approx(newest_s)
    assert told["dedup_gc_watermark_timestamp_seconds", ("orders",)] == newest_s - HOUR_MS / 1000
    assert told["dedup_last_batch_timestamp_seconds", ("orders",)] == START_MS / 1000 + 1.5
    assert told["dedup_query_running", ("orders",)] == 1


def test_unknown_values_are_not_exported(session: Session) -> None:
    session.batch(batch(0, gc_watermark_ms=None), START_MS)
    assert not [name for name, _ in samples(session) if "gc_watermark_timestamp" in name]


def test_names_and_units_follow_the_conventions(session: Session) -> None:
    registry = CollectorRegistry(auto_describe=False)
    session.batch(batch(0), START_MS)
    registry.register(session.exporter)
    families = list(parse_strictly(open_metrics(registry).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) == len(FAMILIES + SINK_SERIES) + len(QUERY_GAUGES)
    for family in families:
        assert re.fullmatch(r"dedup_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|us|millis|kib|mib|percent)(_|$)", family.name)
    counters = {f.name for f in families if f.type == "counter"}
    expected = (s for s in FAMILIES + SINK_SERIES if s.kind == "counter")
    assert counters == {f"dedup_{s.name}" for s in expected}


def test_every_figure_of_numbered_records_is_exported() -> None:
    shown = {field.partition(".")[0] for s in SEQUENCE_SERIES for field in s.fields.values()}
    told = {field.name for field in fields(SequenceMetrics)}
    assert told - shown == {
        "query_id", "run_id", "query_name", "begins", "now_ms",
        # The sum of all verdicts; and the GC watermark by another name.
        "records_in", "expired_before_ms",
    }  # fmt: skip


def test_both_operators_share_metrics_of_the_same_meaning(session: Session) -> None:
    session.batch(batch(0, query_id="ids"), START_MS)
    for n in range(3):
        session.batch(sequence_batch(n, fenced=n, records_in=1000 + n), START_MS + 1500 * n)
    told = samples(session)
    assert told["dedup_records_total", ("orders", "unique")] == 900
    assert told["dedup_records_total", ("pumps", "accept")] == 3 * 880
    assert told["dedup_records_total", ("pumps", "fenced")] == 3
    assert ("dedup_records_total", ("pumps", "unique")) not in told
    assert told["dedup_sequences_missing_total", ("pumps",)] == 90
    assert told["dedup_sequences_recovered_total", ("pumps",)] == 30
    assert told["dedup_producers", ("pumps",)] == 2400
    assert told["dedup_producers_expired_total", ("pumps",)] == 6
    assert told["dedup_fullest_shard_producers", ("pumps",)] == 700
    assert told["dedup_stored_bytes", ("pumps", "state")] == 144_000
    assert told["dedup_expire_after_seconds", ("pumps",)] == HOUR_MS / 1000
    assert told["dedup_stage_seconds_total", ("pumps", "judge")] == pytest.approx(15e-6)
    gc_s = (START_MS + 20_000 - HOUR_MS) / 1000
    assert told["dedup_gc_watermark_timestamp_seconds", ("pumps",)] == gc_s
    assert told["dedup_query_running", ("pumps",)] == 1
    # One name, one help text, one kind: Prometheus takes no more.
    known = {(s.name, s.kind, s.about, s.label) for s in (*SERIES, *SEQUENCE_SERIES)}
    assert len(known) == len(FAMILIES)


def test_the_number_of_series_is_bounded(session: Session) -> None:
    """No label is a record ID or a shard, partitions are few, and old queries are dropped."""
    sources = tuple((f"p{n}", n, False) for n in range(SLOWEST_SOURCES))
    for n in range(MAX_QUERIES + 20):
        made = batch(0, query_id=f"q{n}", query_name=None, slowest_sources=sources, gc_source="p0")
        session.batch(replace(made, begins=True), START_MS)
    told = samples(session)
    own = sum(len(series.fields) for series in SERIES)
    # Instead of one series each: a status, and a source partition that is slow.
    more = len(QUERY_GAUGES) + len(Status) - 1 + SLOWEST_SOURCES - 1
    assert len(told) == MAX_QUERIES * (own + more)
    queries = {labels[0] for _, labels in told}
    assert not queries & {"q0", "q19"}
    assert {"q20", f"q{MAX_QUERIES + 19}"} <= queries


def test_names_of_source_partitions_are_bounded_for_as_long_as_the_process_lives(
    session: Session,
) -> None:
    seen: set[str] = set()
    for n in range(MAX_SOURCES):
        sources = tuple((f"p{n}-{m}" * 100, n + m, m == 3) for m in range(4))
        session.batch(batch(n, slowest_sources=sources, gc_source=sources[0][0]), START_MS + n)
        told = samples(session)
        seen |= {labels[1] for name, labels in told if "source_partition" in name}
    assert len(seen) == MAX_SOURCES + 1
    assert max(len(name) for name in seen) == MAX_NAME
    # Of partitions without a name the slowest is reported.
    clocks = {key[1][1:]: value for key, value in told.items() if "source_partition" in key[0]}
    assert clocks == {("other", "active"): n / 1000, ("other", "idle"): (n + 3) / 1000}
    assert told["dedup_low_watermark_holder_info", ("orders", "other")] == 1


def test_another_query_of_the_same_name_replaces_the_earlier_one(session: Session) -> None:
    session.batch(batch(0), START_MS)
    session.batch(batch(0, query_id="another"), START_MS)
    assert samples(session)["dedup_records_total", ("orders", "unique")] == 900
