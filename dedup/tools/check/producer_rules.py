"""Rules about a query of `dedup_by_sequence`: expiry, memory and restarts."""

from __future__ import annotations

from dedup.tools.check.facts import Facts
from dedup.tools.check.findings import Assessment, Takes, breaks, costs, fine, unknown
from dedup.tools.check.kafka_rules import in_days, named, of_many_partitions

#: From this share of `max_producers` on more of them should be asked for.
NEARLY_FULL = 0.8
_HOW_LOG = "Give --log, the folder of DedupListener(log=...)."


def expire_after(facts: Facts) -> Assessment | None:
    """With query time, a query of single micro-batches forgets no producer."""
    known = facts.producers
    if known is None:
        return None
    have = f"A producer is forgotten once it was silent for {in_days(known.expire_after_ms)}"
    if facts.event_time:
        return fine(f"{have}, by the timestamps of records: downtime changes nothing.")
    if facts.event_time is None:
        return unknown(f"{have}; whether by timestamps or by query time is not known. {_HOW_LOG}")
    if known.runs and known.batches and known.batches > known.runs:
        return fine(f"{have} of query time, which passed in the recent runs.")
    if known.runs and known.runs > 1:
        return costs(
            f"{have} of query time, and each of the last {known.runs} runs was one micro-batch, in "
            "which no query time passes: nobody is ever forgotten, and producers add up until "
            "max_producers stops the query.",
            'timestamp="COLUMN"',
            Takes.BEGINNING,
        )
    return unknown(
        f"{have} of query time, which counts while the query runs. A query that runs now and then, "
        "in one micro-batch each time (availableNow), forgets nobody; whether this is one cannot "
        f"be told before its second run. {_HOW_LOG}"
    )


def max_producers(facts: Facts) -> Assessment | None:
    """More producers than a shard may have stop the query."""
    known = facts.producers
    if known is None:
        return None
    have = f"A shard may have {known.max_producers:,} producers (max_producers)"
    if known.fullest is None:
        return unknown(f"{have}; how many it has is not known before the start. {_HOW_LOG}")
    have += f", and the fullest has {known.fullest:,}"
    if known.fullest < NEARLY_FULL * known.max_producers:
        return fine(f"{have}.")
    return costs(
        f"{have}: more stop the query, and nothing is lost. Where producers take a new name at "
        "every start, let them keep it and raise their epoch; else a shorter expire_after, or a "
        "larger number, which costs each micro-batch 20 to 35 ms a MB of state.",
        f"max_producers={2 * known.max_producers}",
    )


def checkpoint_alone(facts: Facts) -> Assessment | None:
    """There is no catalog: after a lost checkpoint a replay finds no producer remembered."""
    if facts.producers is None:
        return None
    return unknown(
        "What is remembered of producers is in the checkpoint alone. Where that is lost, no "
        "expire_after helps: what the source is read again of goes on again. Whether the "
        "checkpoint is kept safe cannot be told from here."
    )


def producer_clocks(facts: Facts) -> Assessment | None:
    """With one clock for all partitions of Kafka, the producers of a slow one are forgotten."""
    kafka = of_many_partitions(facts)
    if facts.producers is None or not kafka:
        return None
    if facts.event_time is None or facts.by_source is None:
        return unknown(
            "Whether every partition of Kafka has a clock of its own (source_partition) is not "
            "told by the metrics of dedup_by_sequence: without it, producers of a partition that "
            "is behind the others are forgotten too early. check_query knows it."
        )
    if facts.by_source:
        return fine("source_partition is given: the watermark waits for the slowest partition.")
    return breaks(
        f"All partitions of {named(kafka)} share one clock, the newest timestamp of all. While a "
        "partition is behind the others, as after an outage or in a backfill, the silence of its "
        f"producers is measured by theirs: some are forgotten before they were silent for "
        f"{in_days(facts.producers.expire_after_ms)}, and copies of their records go on again.",
        'source_partition=["topic", "partition"]',
    )


def producer_memory(facts: Facts) -> Assessment | None:
    """The memory of a worker was measured for `dedup_by_id` alone."""
    if facts.producers is None:
        return None
    return unknown(
        "How much memory a Python worker needs for a shard's share of a micro-batch was measured "
        "for dedup_by_id alone. max_shard_batch_bytes bounds the share here as well."
    )
