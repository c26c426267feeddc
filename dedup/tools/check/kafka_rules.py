"""Rules about queries that read from Kafka or write to Kafka."""

from __future__ import annotations

from collections.abc import Iterable

from dedup.spark.driver.checkpoint_log import Source
from dedup.tools.check.facts import FOREVER_MS, HOW_OPTIONS, Facts
from dedup.tools.check.findings import Assessment, Takes, breaks, fine, unknown
from dedup.values.duration import counted, format_ms

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def horizon_retention(facts: Facts) -> Assessment | None:
    """Compare the horizon with Kafka's retention, because a lost checkpoint replays all records.

    The IDs of records older than lateness + horizon have expired. If Kafka still holds an older
    record, the replay emits it again, unless the query drops it as late. In processing time,
    lateness is 0 and no record is late.
    """
    if facts.sources is None:
        return unknown(
            "The sources of the query are not known. If one is Kafka, the horizon should be at "
            "least as long as its retention."
        )
    kafka, retention_ms = facts.kafka_sources, facts.kafka_retention_ms
    if not kafka:
        return None
    if retention_ms is None:
        topics = [topic for source in kafka for topic in source.topics] or ["TOPIC"]
        return unknown(
            f"The retention of {named(kafka)} is not known. If the checkpoint is lost, the query "
            "reads Kafka again from its oldest record, and does not remember records older than "
            'the horizon. Look up retention.ms and give it: --kafka-retention "7 days" '
            "(check_query: kafka_retention=).",
            "\n".join(map(_describe, topics)),
        )
    kept = f"Kafka keeps {named(kafka)} for {in_days(retention_ms)}"
    if facts.horizon_ms is None:
        return unknown(f"{kept}, but the horizon is not known. {HOW_OPTIONS}")
    memory_ms = facts.horizon_ms + (facts.lateness_ms or 0)
    options = _options(facts, facts.horizon_ms)
    if retention_ms <= memory_ms:
        return fine(
            f"{kept}, and IDs are remembered at least as long ({options}): a replay from the "
            "earliest offsets, after `dedup catalog adopt`, finds its duplicates. (Kafka deletes "
            "whole segments, so a slow topic may hold records up to segment.ms longer.)"
        )
    if facts.late == "drop" and facts.event_time:
        return fine(
            f"{kept}, longer than IDs are remembered ({options}). A replay from the earliest "
            'offsets does not let older records pass again: they are dropped as late (late="drop").'
        )
    harm = (
        f"{kept}, and IDs are remembered for less ({options}): after a lost checkpoint a replay "
        "from the earliest offsets lets"
    )
    if retention_ms >= FOREVER_MS:
        return breaks(
            f"{harm} all but the newest of it pass again. No horizon is long enough. Start such a "
            f"replay no further back than the horizon.{_lacking(facts)}",
            '.option("startingTimestamp", MILLISECONDS)',
            Takes.BEGINNING,
        )
    return breaks(
        f"{harm} the oldest {in_days(retention_ms - memory_ms)} of it pass again. A longer horizon "
        f"protects records read from then on.{_lacking(facts)}",
        f'horizon="{_whole_hours(retention_ms)}"',
    )


def _options(facts: Facts, horizon_ms: int) -> str:
    lateness = f" and lateness {in_days(facts.lateness_ms)}" if facts.lateness_ms else ""
    assumed = (
        ', assuming late="emit", the default' if facts.late is None and facts.event_time else ""
    )
    return f"horizon {in_days(horizon_ms)}{lateness}{assumed}"


def _lacking(facts: Facts) -> str:
    """Return a text that asks for flags, or "" if it is known that late records are emitted."""
    if facts.event_time is False or facts.late == "emit":
        return ""
    catalog = " --catalog ROOT, which shows whether it judges by timestamps."
    if facts.late == "drop":
        return f' late="drop" works for event time only: give{catalog}'
    late = ' A query with late="drop" lets none pass: give --late drop'
    return f"{late}, and{catalog}" if facts.event_time is None else f"{late}."


def source_clocks(facts: Facts) -> Assessment | None:
    """Ask for a clock per Kafka partition, because one clock makes a slow partition's records late.

    `dedup_by_sequence` drops no late records, but it expires producers of a slow partition early.
    If producers expire by query time, the rule does not apply.
    """
    kafka = facts.kafka_sources
    single = len(kafka) == 1 and kafka[0].partitions == 1
    if not kafka or single or facts.event_time is False:
        return None
    of_sequences = facts.expire_after_ms is not None
    if facts.event_time is None or facts.by_source is None:
        return unknown(
            "It is not known whether every partition of Kafka has its own clock "
            "(source_partition). Without it, "
            + (
                "producers of a lagging partition expire too early. The metrics of "
                "dedup_by_sequence do not show it, but check_query knows it."
                if of_sequences
                else "a partition that lags by more than lateness is late. Give --log, the folder "
                "of DedupListener(log=...), and --catalog ROOT."
            )
        )
    if facts.by_source:
        return fine("source_partition is given: the watermark waits for the slowest partition.")
    shared = f"All partitions of {named(kafka)} share one clock, the newest timestamp of all. " + (
        _early_expiry(facts) if of_sequences else _late_records(facts)
    )
    return breaks(shared, 'source_partition=["topic", "partition"]')


def _early_expiry(facts: Facts) -> str:
    return (
        "While a partition lags, as after an outage or in a backfill, this clock measures the "
        "silence of its producers: some expire before they were silent for "
        f"{in_days(facts.expire_after_ms or 0)}, and copies of their records pass again."
    )


def _late_records(facts: Facts) -> str:
    harm = (
        'are dropped (late="drop")'
        if facts.late == "drop"
        else "may pass again if their ID has expired"
    )
    if facts.late is None:
        harm += ' (assuming late="emit", the default; otherwise give --late drop)'
    lateness = "lateness" if facts.lateness_ms is None else in_days(facts.lateness_ms)
    behind = "behind" if facts.lateness_ms == 0 else f"more than {lateness} behind"
    return (
        f"If a partition is {behind} the others, for example after an outage, its records are "
        f"late and {harm}."
    )


def kafka_data_loss(facts: Facts) -> Assessment | None:
    """Reject failOnDataLoss=false, which makes Spark silently skip records that Kafka deleted."""
    kafka = facts.kafka_sources
    if not kafka:
        return None
    off = [s for s in kafka if (s.option("failOnDataLoss") or "true").lower() == "false"]
    if off:
        return breaks(
            f"failOnDataLoss is false for {named(off)}: Spark skips records that Kafka deleted "
            "before they were read, without an error.",
            '.option("failOnDataLoss", "true")',
        )
    if all(s.complete or s.option("failOnDataLoss") for s in kafka):
        return fine(
            "failOnDataLoss is true: the query stops if Kafka has deleted records that were not "
            "read."
        )
    return unknown(
        "It is not known whether failOnDataLoss is true, its default. Give it: "
        "--source-option failOnDataLoss=true."
    )


def sink_readers(facts: Facts) -> Assessment | None:
    """Ask that readers read only committed records, because aborted transactions leave records."""
    if not facts.kafka_sinks:
        return None
    return unknown(
        f"The query writes to Kafka in transactions (sink {', '.join(facts.kafka_sinks)}). Readers "
        "of the topic must read only committed records. Otherwise they see records of aborted "
        "transactions, and records twice. The Java client, and with it Spark's own source, reads "
        "uncommitted records by default; librdkafka reads committed ones. This check does not see "
        "your readers.",
        "isolation.level=read_committed",
        Takes.OUTSIDE,
    )


def sink_markers(facts: Facts) -> Assessment | None:
    """Ask for compaction of the marker topic, because retention would delete old markers.

    The sink needs the last marker of each slot, even if it is years old.
    """
    if not facts.kafka_sinks:
        return None
    topic = facts.sink_options.get("topic") or "TOPIC"
    markers = facts.sink_options.get("markers") or f"{topic}-markers"
    return unknown(
        f"Topic {markers} holds the markers, which record what is published. It must have "
        "cleanup.policy=compact and no other policy: if Kafka deletes markers, the sink does not "
        "restart. This check does not ask the brokers.",
        _describe(markers),
        Takes.OUTSIDE,
    )


def named(sources: Iterable[Source]) -> str:
    return " and ".join(source.name for source in sources)


def in_days(duration_ms: int) -> str:
    """Return the duration as text, in days rather than weeks, because horizons are in days."""
    if duration_ms >= FOREVER_MS:
        return "ever"
    if duration_ms % _DAY_MS == 0:
        return counted(duration_ms // _DAY_MS, "day")
    return format_ms(duration_ms)


def _whole_hours(duration_ms: int) -> str:
    unit_ms = _DAY_MS if duration_ms >= 2 * _DAY_MS else _HOUR_MS
    return in_days(-(-duration_ms // unit_ms) * unit_ms)


def _describe(topic: str) -> str:
    return (
        "kafka-configs.sh --bootstrap-server HOST:9092 --entity-type topics --entity-name "
        f"{topic} --describe --all"
    )
