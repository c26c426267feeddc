"""Rules about Kafka as the source: replays, clocks and data loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dedup.core.duration import counted, format_ms
from dedup.spark.stream_source import Source
from dedup.tools.check.facts import FOREVER_MS, HOW_OPTIONS, Facts
from dedup.tools.check.findings import Assessment, Takes, breaks, fine, unknown

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def horizon_retention(facts: Facts) -> Assessment | None:
    """After a lost checkpoint Kafka is read again from its beginning: what of it is remembered.

    A record of age a (Kafka's oldest: the retention) was let through at about now - a. The GC
    watermark is at now - lateness - horizon, so what is older than their sum is forgotten, and
    passes again unless it is dropped as late. In processing time lateness is 0, and none is late.
    """
    if facts.sources is None:
        return unknown(
            "The sources of the query are not known; where one is Kafka, the horizon "
            "should be no shorter than its retention."
        )
    kafka, retention_ms = facts.of_kind("kafka"), facts.kafka_retention_ms
    if not kafka:
        return None
    if retention_ms is None:
        topics = [topic for source in kafka for topic in source.topics] or ["TOPIC"]
        return unknown(
            f"How long Kafka keeps {named(kafka)} cannot be asked from here. Where the "
            "checkpoint is lost, Kafka is read again from its oldest record, and what is older "
            "than the horizon is no longer remembered. Look up retention.ms and give it: "
            '--kafka-retention "7 days" (check_query: kafka_retention=).',
            "\n".join(
                "kafka-configs.sh --bootstrap-server HOST:9092 --entity-type topics "
                f"--entity-name {topic} --describe --all"
                for topic in topics
            ),
        )
    kept = f"Kafka keeps {named(kafka)} for {in_days(retention_ms)}"
    if facts.horizon_ms is None:
        return unknown(f"{kept}, but the horizon is not known. {HOW_OPTIONS}")
    return _replay(facts, kept, retention_ms, facts.horizon_ms)


def _replay(facts: Facts, kept: str, retention_ms: int, horizon_ms: int) -> Assessment:
    memory_ms = horizon_ms + (facts.lateness_ms or 0)
    options = _options(facts, horizon_ms)
    if retention_ms <= memory_ms:
        return fine(
            f"{kept}, IDs are remembered at least as long ({options}): a replay from the "
            "earliest offsets, after `dedup catalog adopt`, finds its duplicates. (Kafka deletes "
            "whole segments, so a slow topic may hold records up to segment.ms longer.)"
        )
    if facts.late == "drop" and facts.event_time:
        return fine(
            f"{kept}, longer than IDs are remembered ({options}); what a replay from the "
            'earliest offsets brings of older records is dropped as late (late="drop"), and does '
            "not pass again."
        )
    harm = (
        f"{kept}, IDs are remembered for less ({options}): after a lost checkpoint a replay from "
        "the earliest offsets lets"
    )
    if retention_ms >= FOREVER_MS:
        return breaks(
            f"{harm} all but the newest of it pass again. No horizon is long enough; begin such "
            f"a replay no further back than the horizon.{_lacking(facts)}",
            '.option("startingTimestamp", MILLISECONDS)',
            Takes.BEGINNING,
        )
    return breaks(
        f"{harm} the oldest {in_days(retention_ms - memory_ms)} of it pass again. A longer horizon "
        f"holds for what is taken from then on.{_lacking(facts)}",
        f'horizon="{_whole_hours(retention_ms)}"',
    )


def _options(facts: Facts, horizon_ms: int) -> str:
    lateness = f" and lateness {in_days(facts.lateness_ms)}" if facts.lateness_ms else ""
    assumed = (
        ', late taken to be "emit", the default' if facts.late is None and facts.event_time else ""
    )
    return f"horizon {in_days(horizon_ms)}{lateness}{assumed}"


def _lacking(facts: Facts) -> str:
    """Return how to find out whether the query drops late records, if that is open."""
    if facts.event_time is False or facts.late == "emit":
        return ""
    catalog = " --catalog ROOT, which tells whether it judges by timestamps."
    if facts.late == "drop":
        return f' late="drop" holds for event time only: give{catalog}'
    late = ' A query with late="drop" lets none pass: give --late drop'
    return f"{late}, and{catalog}" if facts.event_time is None else f"{late}."


def of_many_partitions(facts: Facts) -> Sequence[Source]:
    """Return the Kafka sources whose partitions may share a clock; by query time none do."""
    kafka = facts.of_kind("kafka")
    single = len(kafka) == 1 and kafka[0].partitions == 1
    return () if single or facts.event_time is False else kafka


def source_clocks(facts: Facts) -> Assessment | None:
    """With one clock for all partitions of Kafka, a slow one's records are late."""
    kafka = of_many_partitions(facts)
    if not kafka:
        return None
    if facts.event_time is None or facts.by_source is None:
        return unknown(
            "Whether every partition of Kafka has a clock of its own (source_partition) "
            "is not known: without it, a partition that is behind by more than lateness is late. "
            "Give --log, the folder of DedupListener(log=...), and --catalog ROOT."
        )
    if facts.by_source:
        return fine("source_partition is given: the watermark waits for the slowest partition.")
    harm = (
        'are dropped (late="drop")'
        if facts.late == "drop"
        else "may pass again, where their ID is forgotten"
    )
    if facts.late is None:
        harm += ' (late taken to be "emit", the default; else give --late drop)'
    lateness = "lateness" if facts.lateness_ms is None else in_days(facts.lateness_ms)
    behind = "behind" if facts.lateness_ms == 0 else f"more than {lateness} behind"
    return breaks(
        f"All partitions of {named(kafka)} share one clock, the newest timestamp of "
        f"all: records of a partition that is {behind} the others, say after an outage, are late "
        f"and {harm}.",
        'source_partition=["topic", "partition"]',
    )


def kafka_data_loss(facts: Facts) -> Assessment | None:
    """With failOnDataLoss=false, Spark silently skips records that Kafka deleted unread."""
    kafka = facts.of_kind("kafka")
    if not kafka:
        return None
    off = [s for s in kafka if (s.option("failOnDataLoss") or "true").lower() == "false"]
    if off:
        return breaks(
            f"failOnDataLoss is false for {named(off)}: records that Kafka deleted "
            "before they were read are passed over without an error.",
            '.option("failOnDataLoss", "true")',
        )
    if all(s.complete or s.option("failOnDataLoss") for s in kafka):
        return fine(
            "failOnDataLoss is true: the query stops where Kafka has deleted records "
            "that were not read."
        )
    return unknown(
        "Whether failOnDataLoss is true, its default, is not known. Give it: "
        "--source-option failOnDataLoss=true."
    )


def named(sources: Iterable[Source]) -> str:
    """Return the names of several sources, for a sentence."""
    return " and ".join(source.name for source in sources)


def in_days(duration_ms: int) -> str:
    """Return the duration in words, in days rather than weeks, like a horizon."""
    if duration_ms >= FOREVER_MS:
        return "ever"
    if duration_ms % _DAY_MS == 0:
        return counted(duration_ms // _DAY_MS, "day")
    return format_ms(duration_ms)


def _whole_hours(duration_ms: int) -> str:
    unit_ms = _DAY_MS if duration_ms >= 2 * _DAY_MS else _HOUR_MS
    return in_days(-(-duration_ms // unit_ms) * unit_ms)
