"""Rules about a query of `dedup_by_sequence`: expiry, memory and restarts."""

from __future__ import annotations

from dedup.tools.check.facts import HOW_LOG, Facts
from dedup.tools.check.findings import Assessment, Takes, breaks, costs, fine, unknown
from dedup.tools.check.kafka_rules import OWN_CLOCKS, in_days, named, of_many_partitions

#: Share of `max_producers` from which on a larger number is advised.
NEARLY_FULL = 0.8


def expire_after(facts: Facts) -> Assessment | None:
    """Detect a query of single micro-batches with query time: its producers never expire."""
    producers = facts.producers
    if producers is None:
        return None
    silence = f"A producer expires once it was silent for {in_days(producers.expire_after_ms)}"
    if facts.event_time:
        return fine(f"{silence}, by the timestamps of records: downtime changes nothing.")
    if facts.event_time is None:
        return unknown(f"{silence}; whether by timestamps or by query time is not known. {HOW_LOG}")
    if producers.runs and producers.batches and producers.batches > producers.runs:
        return fine(f"{silence} of query time, which passed in the recent runs.")
    if producers.runs and producers.runs > 1:
        return costs(
            f"{silence} of query time, and each of the last {producers.runs} runs was one "
            "micro-batch, in which no query time passes. Producers never expire, and accumulate "
            "until max_producers stops the query.",
            'timestamp="COLUMN"',
            Takes.BEGINNING,
        )
    return unknown(
        f"{silence} of query time, which counts while the query runs. In a query that runs one "
        "micro-batch at a time (availableNow) producers never expire. Whether this is one cannot "
        f"be known before its second run. {HOW_LOG}"
    )


def max_producers(facts: Facts) -> Assessment | None:
    """Compare the fullest shard with `max_producers`, which stops the query if exceeded."""
    producers = facts.producers
    if producers is None:
        return None
    limit = f"A shard may have {producers.max_producers:,} producers (max_producers)"
    if producers.fullest is None:
        return unknown(f"{limit}; how many it has is not known before the start. {HOW_LOG}")
    limit += f", and the fullest has {producers.fullest:,}"
    if producers.fullest < NEARLY_FULL * producers.max_producers:
        return fine(f"{limit}.")
    return costs(
        f"{limit}: more stop the query, and nothing is lost. If producers take a new name at every "
        "start, let them keep their name and raise their epoch. Otherwise choose a shorter "
        "expire_after, or a larger number, which costs each micro-batch 20 to 35 ms per MB of "
        "state.",
        f"max_producers={2 * producers.max_producers}",
    )


def checkpoint_alone(facts: Facts) -> Assessment | None:
    """Remind of backups: without the checkpoint a replay knows no producer."""
    if facts.producers is None:
        return None
    return unknown(
        "The memory of producers is in the checkpoint alone. If the checkpoint is lost, records "
        "that the source delivers again pass again, with any expire_after. This check does not "
        "know whether the checkpoint has backups."
    )


def producer_clocks(facts: Facts) -> Assessment | None:
    """Ask for a clock per Kafka partition: with one clock, a slow one's producers expire early."""
    kafka = of_many_partitions(facts)
    if facts.producers is None or not kafka:
        return None
    if facts.event_time is None or facts.by_source is None:
        return unknown(
            "The metrics of dedup_by_sequence do not show whether every partition of Kafka has "
            "its own clock (source_partition). Without it, producers of a lagging partition expire "
            "too early. check_query knows it."
        )
    if facts.by_source:
        return fine(OWN_CLOCKS)
    return breaks(
        f"All partitions of {named(kafka)} share one clock, the newest timestamp of all. While a "
        "partition lags, as after an outage or in a backfill, this clock measures the silence of "
        "its producers: some expire before they were silent for "
        f"{in_days(facts.producers.expire_after_ms)}, and copies of their records pass again.",
        'source_partition=["topic", "partition"]',
    )


def producer_memory(facts: Facts) -> Assessment | None:
    """Say that the memory of a worker was measured for `dedup_by_id` alone."""
    if facts.producers is None:
        return None
    return unknown(
        "The memory that a Python worker needs for a shard's share of a micro-batch was measured "
        "for dedup_by_id alone. max_shard_batch_bytes limits the share here as well."
    )
