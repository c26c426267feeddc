"""`dedup check`, the pure part: from what is known of a query to what there is to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dedup.checks import guarantee_rules, kafka_rules, memory_rules, speed_rules
from dedup.checks.facts import Facts
from dedup.checks.findings import Finding, in_order

#: One function a rule; it yields nothing where it does not apply.
RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    guarantee_rules.safety_settings,
    guarantee_rules.commit_validation,
    guarantee_rules.checkpoint_format,
    guarantee_rules.catalog_place,
    kafka_rules.horizon_retention,
    kafka_rules.source_clocks,
    kafka_rules.kafka_data_loss,
    speed_rules.shuffle_partitions,
    speed_rules.shard_layout,
    speed_rules.trigger_limit,
    memory_rules.batch_memory,
    memory_rules.pyspark_memory,
    kafka_rules.kafka_partitions,
    speed_rules.state_store,
    speed_rules.worker_reuse,
    speed_rules.arrow_batch_bytes,
)


def advise(facts: Facts) -> list[Finding]:
    """What every rule found, that which matters most first.

    A rule that finds all well says so, and one that lacks facts says how to give them.
    """
    return in_order(finding for rule in RULES for finding in rule(facts))
