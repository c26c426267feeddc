"""`dedup check`, the pure part: from what is known of a query to what there is to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dedup.core import advice_guarantee, advice_kafka, advice_memory, advice_speed
from dedup.core.facts import Facts
from dedup.core.findings import Finding, in_order

#: One function a rule; it yields nothing where it does not apply.
RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    advice_guarantee.safety_settings,
    advice_guarantee.commit_validation,
    advice_guarantee.checkpoint_format,
    advice_guarantee.catalog_place,
    advice_kafka.horizon_retention,
    advice_kafka.source_clocks,
    advice_kafka.kafka_data_loss,
    advice_speed.shuffle_partitions,
    advice_speed.shard_layout,
    advice_speed.trigger_limit,
    advice_memory.batch_memory,
    advice_memory.pyspark_memory,
    advice_kafka.kafka_partitions,
    advice_speed.state_store,
    advice_speed.worker_reuse,
    advice_speed.arrow_batch_bytes,
)


def advise(facts: Facts) -> list[Finding]:
    """What every rule found, that which matters most first.

    A rule that finds all well says so, and one that lacks facts says how to give them.
    """
    return in_order(finding for rule in RULES for finding in rule(facts))
