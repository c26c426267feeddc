"""`dedup check`, the pure part: from what is known of a query to what there is to say about it."""

from __future__ import annotations

from collections.abc import Callable

from dedup.tools.check import cost_rules, guarantee_rules, kafka_rules, producer_rules, sink_rules
from dedup.tools.check.facts import Facts
from dedup.tools.check.findings import Assessments, Finding, findings

#: Every rule of `dedup_by_id` by its name, which stays the same in every release.
RULES: dict[str, Callable[[Facts], Assessments]] = {
    "safety-settings": guarantee_rules.safety_settings,
    "commit-validation": guarantee_rules.commit_validation,
    "checkpoint-format": guarantee_rules.checkpoint_format,
    "catalog-place": guarantee_rules.catalog_place,
    "guarantee": guarantee_rules.chosen_guarantee,
    "lasting-id": guarantee_rules.lasting_id,
    "recent-batches": guarantee_rules.recent_batches,
    "windows-after": guarantee_rules.windows_after,
    "horizon-retention": kafka_rules.horizon_retention,
    "source-clocks": kafka_rules.source_clocks,
    "kafka-data-loss": kafka_rules.kafka_data_loss,
    "sink-readers": sink_rules.sink_readers,
    "sink-markers": sink_rules.sink_markers,
    "sink-timeout": sink_rules.sink_timeout,
    "shuffle-partitions": cost_rules.shuffle_partitions,
    "batch-memory": cost_rules.batch_memory,
    "pyspark-memory": cost_rules.pyspark_memory,
}

#: Of these some speak of IDs, their catalog, or what was measured with it. Of a query of
#: `dedup_by_sequence` there are others in their place.
_OF_IDS = (
    "catalog-place", "guarantee", "horizon-retention", "source-clocks", "batch-memory",
    "pyspark-memory",
)  # fmt: skip
SEQUENCE_RULES: dict[str, Callable[[Facts], Assessments]] = {
    **{name: rule for name, rule in RULES.items() if name not in _OF_IDS},
    "checkpoint-alone": producer_rules.checkpoint_alone,
    "expire-after": producer_rules.expire_after,
    "source-clocks": producer_rules.producer_clocks,
    "max-producers": producer_rules.max_producers,
    "batch-memory": producer_rules.producer_memory,
}


def advise(facts: Facts) -> list[Finding]:
    """Return what every rule found, that which matters most first.

    A rule that finds all well says so, and one that lacks facts says how to give them.
    """
    rules = RULES if facts.producers is None else SEQUENCE_RULES
    return findings((name, rule(facts)) for name, rule in rules.items())
