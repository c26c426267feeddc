"""Rules about Kafka as the source: what a replay brings, whose clock counts, who reads."""

from __future__ import annotations

from collections.abc import Iterator

from dedup.checks.facts import FOREVER_MS, HOW_CORES, HOW_OPTIONS, Facts, Source, whole
from dedup.checks.findings import Finding, Level, Takes
from dedup.core.duration import format_ms

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


def horizon_retention(facts: Facts) -> Iterator[Finding]:
    """After a lost checkpoint Kafka is read again from its beginning: what of it is remembered.

    A record of age a (Kafka's oldest: the retention) was let through at about now - a. The GC
    watermark is at now - lateness - horizon, so what is older than their sum is forgotten, and
    passes again unless it is dropped as late. In processing time lateness is 0, and none is late.
    """
    rule = "horizon-retention"
    kafka = facts.of_kind("kafka")
    if facts.sources is not None and not kafka:
        return
    if facts.sources is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence="The sources of the query are not known; where one is Kafka, the horizon "
            "should be no shorter than its retention.",
        )
        return
    if facts.kafka_retention_ms is None:
        topics = [topic for source in kafka for topic in source.topics] or ["TOPIC"]
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"How long Kafka keeps {_named(kafka)} cannot be asked from here. Where the "
            "checkpoint is lost, Kafka is read again from its oldest record, and what is older "
            "than the horizon is no longer remembered. Look up retention.ms and give it: "
            '--kafka-retention "7 days" (check_query: kafka_retention=).',
            change="\n".join(
                "kafka-configs.sh --bootstrap-server HOST:9092 --entity-type topics "
                f"--entity-name {topic} --describe --all"
                for topic in topics
            ),
        )
        return
    if facts.horizon_ms is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Kafka keeps {_named(kafka)} for {_ms(facts.kafka_retention_ms)}, but the "
            f"horizon is not known. {HOW_OPTIONS}",
        )
        return
    yield _retention(rule, facts, facts.horizon_ms, facts.kafka_retention_ms)


def _retention(rule: str, facts: Facts, horizon_ms: int, retention_ms: int) -> Finding:
    lateness_ms = facts.lateness_ms or 0
    memory_ms = horizon_ms + lateness_ms
    kept = f"Kafka keeps {_named(facts.of_kind('kafka'))} for {_ms(retention_ms)}"
    own = f"horizon {_ms(horizon_ms)}" + (
        f" and lateness {_ms(lateness_ms)}" if lateness_ms else ""
    )
    if facts.late is None and facts.event_time:
        own += ', late taken to be "emit", the default'
    unsaid = _unsaid(facts)
    if retention_ms <= memory_ms:
        return Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"{kept}, IDs are remembered at least as long ({own}): a replay from the "
            "earliest offsets, after `dedup catalog adopt`, finds its duplicates. (Kafka deletes "
            "whole segments, so a slow topic may hold records up to segment.ms longer.)",
        )
    if facts.late == "drop" and facts.event_time:
        return Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"{kept}, longer than IDs are remembered ({own}); what a replay from the "
            'earliest offsets brings of older records is dropped as late (late="drop"), and does '
            "not pass again.",
        )
    forgotten = (
        "all but the newest of it"
        if retention_ms >= FOREVER_MS
        else f"the oldest {_ms(retention_ms - memory_ms)} of it"
    )
    if retention_ms >= FOREVER_MS:
        return Finding(
            rule=rule,
            level=Level.BREAKS,
            evidence=f"{kept}, IDs are remembered for less ({own}): after a lost checkpoint "
            f"a replay from the earliest offsets lets {forgotten} pass again. No horizon is long "
            f"enough; begin such a replay no further back than the horizon.{unsaid}",
            change='.option("startingTimestamp", MILLISECONDS)',
            takes=Takes.BEGINNING,
        )
    return Finding(
        rule=rule,
        level=Level.BREAKS,
        evidence=f"{kept}, IDs are remembered for less ({own}): after a lost checkpoint a "
        f"replay from the earliest offsets lets {forgotten} pass again. A longer horizon holds for "
        f"what is taken from then on.{unsaid}",
        change=f'horizon="{_whole_hours(retention_ms)}"',
        takes=Takes.RESTART,
    )


def _unsaid(facts: Facts) -> str:
    """What would tell whether the query drops what is late, where it may."""
    if facts.event_time is False or facts.late == "emit":
        return ""
    said = (
        "" if facts.late == "drop" else ' A query with late="drop" lets none pass: give --late drop'
    )
    if facts.event_time is None:
        said = f"{said}, and" if said else ' late="drop" holds for event time only: give'
        said += " --catalog ROOT, which tells whether it judges by timestamps"
    return f"{said}."


def source_clocks(facts: Facts) -> Iterator[Finding]:
    """With one clock for all partitions of Kafka, a slow one's records are late."""
    rule = "source-clocks"
    kafka = facts.of_kind("kafka")
    if not kafka or facts.event_time is False:
        return
    many = [source for source in kafka if source.partitions != 1]
    if not many and len(kafka) == 1:
        return
    if facts.event_time is None or facts.by_source is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence="Whether every partition of Kafka has a clock of its own (source_partition) "
            "is not known: without it, a partition that is behind by more than lateness is late. "
            "Give --log, the folder of DedupListener(log=...).",
        )
        return
    if facts.by_source:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence="source_partition is given: the watermark waits for the slowest partition.",
        )
        return
    seen = ""
    if facts.late_records and facts.records:
        seen = f" {facts.late_records:,} of the last {facts.records:,} records were late."
    harm = (
        'are dropped (late="drop")'
        if facts.late == "drop"
        else "may pass again, where their ID is forgotten"
    )
    if facts.late is None:
        harm += ' (late taken to be "emit", the default; else give --late drop)'
    lateness = "lateness" if facts.lateness_ms is None else _ms(facts.lateness_ms)
    behind = "behind" if facts.lateness_ms == 0 else f"more than {lateness} behind"
    yield Finding(
        rule=rule,
        level=Level.BREAKS,
        evidence=f"All partitions of {_named(kafka)} share one clock, the newest timestamp of "
        f"all: records of a partition that is {behind} the others, say after an outage, are late "
        f"and {harm}.{seen}",
        change='source_partition=["topic", "partition"]',
        takes=Takes.RESTART,
    )


def kafka_data_loss(facts: Facts) -> Iterator[Finding]:
    """With failOnDataLoss=false, what Kafka deleted unread is passed over without an error."""
    rule = "kafka-data-loss"
    kafka = facts.of_kind("kafka")
    if not kafka:
        return
    off = [s for s in kafka if (s.option("failOnDataLoss") or "true").lower() == "false"]
    if off:
        yield Finding(
            rule=rule,
            level=Level.BREAKS,
            evidence=f"failOnDataLoss is false for {_named(off)}: records that Kafka deleted "
            "before they were read are passed over without an error.",
            change='.option("failOnDataLoss", "true")',
            takes=Takes.RESTART,
        )
    elif all(s.complete or s.option("failOnDataLoss") for s in kafka):
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence="failOnDataLoss is true: the query stops where Kafka has deleted records "
            "that were not read.",
        )
    else:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence="Whether failOnDataLoss is true, its default, is not known. Give it: "
            "--source-option failOnDataLoss=true.",
        )


def kafka_partitions(facts: Facts) -> Iterator[Finding]:
    """Rows are packed where they are read: fewer partitions than cores leave cores idle."""
    rule = "kafka-partitions"
    for source in facts.of_kind("kafka"):
        if source.partitions is None or facts.cores is None:
            lacking = "partitions of Kafka" if source.partitions is None else "cores"
            how = "" if source.partitions is None else f" {HOW_CORES}"
            yield Finding(
                rule=rule,
                level=Level.UNKNOWN,
                evidence=f"Whether {source.name} is read by all cores cannot be told: how many "
                f"{lacking} there are is not known.{how}",
            )
            continue
        tasks = max(source.partitions, whole(source.option("minPartitions")) or 0)
        if tasks >= facts.cores:
            yield Finding(
                rule=rule,
                level=Level.FINE,
                evidence=f"{source.name.capitalize()}: {tasks} tasks read for {facts.cores} cores.",
            )
        else:
            guess = "" if source.complete else " (minPartitions is taken not to be given)"
            yield Finding(
                rule=rule,
                level=Level.COSTS,
                evidence=f"{source.name.capitalize()}: {source.partitions} partitions are read, "
                f"parsed and packed by {tasks} of {facts.cores} cores{guess}.",
                change=f'.option("minPartitions", {facts.cores})',
                takes=Takes.RESTART,
            )


def _named(sources: tuple[Source, ...] | list[Source]) -> str:
    return " and ".join(source.name for source in sources)


def _ms(duration_ms: int) -> str:
    """The duration in words; days, and no weeks, as everybody writes a horizon."""
    if duration_ms >= FOREVER_MS:
        return "ever"
    if duration_ms % _DAY_MS == 0:
        days = duration_ms // _DAY_MS
        return f"{days} day{'' if days == 1 else 's'}"
    return format_ms(duration_ms)


def _whole_hours(duration_ms: int) -> str:
    """At least so long, as an option is written."""
    unit_ms = _DAY_MS if duration_ms >= 2 * _DAY_MS else _HOUR_MS
    return _ms(-(-duration_ms // unit_ms) * unit_ms)
