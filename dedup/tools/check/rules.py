"""The rules of `dedup check` by name, and the rules about the guarantee."""

from __future__ import annotations

from collections.abc import Callable

from dedup.tools.check import cost_rules, kafka_rules
from dedup.tools.check.facts import HOW_LOG, HOW_SETTINGS, Facts
from dedup.tools.check.findings import (
    Assessment,
    Assessments,
    Finding,
    Level,
    Takes,
    breaks,
    costs,
    findings_of,
    fine,
    unknown,
)
from dedup.tools.check.kafka_rules import in_days
from dedup.values.duration import format_ms

#: Settings that must be true for the operator to start.
_SAFETY = {
    "spark.sql.streaming.unsupportedOperationCheck": (
        "it hides that two stateful Python operators share one query"
    ),
    "spark.sql.streaming.statefulOperator.useStrictDistribution": (
        "without it a shard's records can meet the state of another partition"
    ),
}
_VALIDATION = "spark.sql.streaming.stateStore.commitValidation.enabled"


def safety_settings(facts: Facts) -> list[Assessment]:
    """Reject settings under which Spark itself does not keep state correctly."""
    values = {name: facts.setting(name, "true") for name in _SAFETY}
    missing = [name for name, value in values.items() if value is None]
    assessments = [
        breaks(
            f"{name} is {value}: {_SAFETY[name]}. The operator refuses to start with it.",
            f"{name}=true",
            Takes.BEGINNING if name in (facts.pinned or ()) else Takes.RESTART,
        )
        for name, value in values.items()
        if facts.enabled(name) is False
    ]
    if missing:
        assessments.append(
            unknown(
                f"Not known: {' and '.join(missing)}. The default, true, is right. The operator "
                f"refuses to start with anything else. {HOW_SETTINGS}"
            )
        )
    return assessments or [fine(f"{' and '.join(_SAFETY)} are true.")]


def commit_validation(facts: Facts) -> Assessment:
    """Require Spark's check that a sink reads every micro-batch to the end."""
    enabled = facts.enabled(_VALIDATION)
    if enabled is False:
        return breaks(
            f"{_VALIDATION} is {facts.setting(_VALIDATION, 'true')}: a foreachBatch that reads "
            "half of a micro-batch (limit, take, head) would lose the other half without an "
            "error. The operator refuses to start with it.",
            f"{_VALIDATION}=true",
        )
    if facts.spark_version is not None and facts.spark_version.startswith(("3.", "4.0")):
        return unknown(
            f"Spark {facts.spark_version} does not detect a sink that reads only part of a "
            "micro-batch (limit, take, head in foreachBatch) and loses the rest. This check does "
            "not see your sink. Spark 4.1 rejects such a sink.",
            "pip install 'pyspark>=4.1'",
            Takes.RESTART,
        )
    if enabled is None:
        return unknown(f"Not known: {_VALIDATION}. The default, true, is right. {HOW_SETTINGS}")
    return fine(
        f"Spark rejects a sink that reads only part of a micro-batch ({_VALIDATION} is true)."
    )


def catalog_place(facts: Facts) -> Assessment | None:
    """Reject a catalog at a local path on a cluster, because every machine has its own disk."""
    if facts.catalog_local is None or facts.local is None:
        return None
    master = facts.settings.get("spark.master")
    if facts.local:
        return fine(
            f"The catalog {facts.catalog_local} is a local path, and Spark runs on this machine "
            f"alone ({master})."
        )
    if facts.shared_local:
        return fine(
            f"The catalog {facts.catalog_local} is a mount that all machines share "
            "(shared_local=True). Each machine verifies this when it starts."
        )
    evidence = (
        f"The catalog {facts.catalog_local} is a local path, but Spark runs on {master}: every "
        "executor would see another disk. The operator refuses to start unless shared_local=True "
        "says that the path is the same mount on all machines."
    )
    if facts.shared_local is None:
        return unknown(evidence, "shared_local=True", Takes.RESTART)
    return breaks(evidence, 'catalog="s3://BUCKET/FOLDER"')


def chosen_guarantee(facts: Facts) -> Assessment | None:
    if facts.guarantee in (None, "exactly-once"):
        return None
    harm = (
        "the filters alone decide, and a new record is lost with a probability of up to fpr"
        if facts.guarantee == "at-most-once"
        else "every record passes, duplicates as well, and no ID is remembered"
    )
    return breaks(
        f'The query has guarantee="{facts.guarantee}": {harm}.', 'guarantee="exactly-once"'
    )


def lasting_id(facts: Facts) -> Assessment | None:
    """Reject random or time-based IDs, because a replay would give the record another ID."""
    if facts.unstable_id is None:
        return None
    option = facts.unstable_id.partition("=")[0]
    return breaks(
        f"{facts.unstable_id} The operator refuses to start with it.", f'{option}="COLUMN"'
    )


def recent_batches(facts: Facts) -> Assessments:
    if facts.concerns is None:
        return None
    if not facts.concerns:
        return fine(
            "In the log's last micro-batches at most 1 % of the records were late or clamped, and "
            "garbage collection did not lag."
        )
    return [
        Assessment(
            # A late record may be a copy that passes.
            Level.BREAKS
            if status == "REWOUND" or (status == "LATE" and facts.late != "drop")
            else Level.COSTS,
            f"{status} in the last micro-batches of the log: {why}.",
            f"dedup remedies {'damaged-state' if status == 'REWOUND' else status.lower()}",
            Takes.OUTSIDE,
        )
        for status, why in facts.concerns
    ]


def fallbacks(facts: Facts) -> Assessments:
    """Report slower ways that the operator takes because executors lack something."""
    return [
        costs(f"In the log's last micro-batch {why}.", "dedup doctor", Takes.OUTSIDE)
        for why in facts.fallbacks or ()
    ]


def windows_after(facts: Facts) -> Assessment | None:
    """Warn of time windows after the operator, which drop rows of slow source partitions."""
    if not facts.by_source:
        return None
    if facts.window_delay_ms is not None:
        return fine(
            "window_delay is set: records that a window after the operator would drop are late, "
            f"if its withWatermark has a delay of {format_ms(facts.window_delay_ms)} or more."
        )
    return unknown(
        "source_partition is set: the operator emits rows of a slow source partition by that "
        "partition's own clock. A window with withWatermark after the operator has one watermark "
        "for all rows, the newest timestamp minus its delay, and silently drops the slow "
        "partition's rows. This check does not see what follows the operator. If a window does, "
        "give its withWatermark a delay as long as a partition may lag behind. "
        "Give dedup_by_id the same delay as window_delay."
    )


def expire_after(facts: Facts) -> Assessment:
    """Warn if producers never expire, because they expire by query time and runs are short."""
    silence = f"A producer expires once it was silent for {in_days(facts.expire_after_ms or 0)}"
    if facts.event_time:
        return fine(f"{silence}, by the timestamps of records: downtime changes nothing.")
    if facts.event_time is None:
        return unknown(f"{silence}; whether by timestamps or by query time is not known. {HOW_LOG}")
    if facts.runs and facts.batches and facts.batches > facts.runs:
        return fine(f"{silence} of query time, which passed in the recent runs.")
    if facts.runs and facts.runs > 1:
        return costs(
            f"{silence} of query time, and each of the last {facts.runs} runs was one "
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


def checkpoint_alone(facts: Facts) -> Assessment:
    """Recommend backups, because a replay without the checkpoint knows no producer."""
    return unknown(
        "The memory of producers is in the checkpoint alone. If the checkpoint is lost, records "
        "that the source delivers again pass again, with any expire_after. This check does not "
        "know whether the checkpoint has backups."
    )


def sink_crashes(facts: Facts) -> Assessment | None:
    """Report a sink's server that confirms commits before they are durable."""
    return facts.crash_risk and breaks(*facts.crash_risk, Takes.OUTSIDE)


Rule = Callable[[Facts], Assessments]
#: Rules for both operators, by name. Names stay the same in every release.
_COMMON: dict[str, Rule] = {
    "safety-settings": safety_settings,
    "commit-validation": commit_validation,
    "lasting-id": lasting_id,
    "recent-batches": recent_batches,
    "fallbacks": fallbacks,
    "windows-after": windows_after,
    "kafka-data-loss": kafka_rules.kafka_data_loss,
    "sink-readers": kafka_rules.sink_readers,
    "sink-markers": kafka_rules.sink_markers,
    "sink-crashes": sink_crashes,
    "source-clocks": kafka_rules.source_clocks,
    "shuffle-partitions": cost_rules.shuffle_partitions,
    "arrow-batches": cost_rules.arrow_batches,
}
RULES: dict[str, Rule] = _COMMON | {
    "catalog-place": catalog_place,
    "guarantee": chosen_guarantee,
    "horizon-retention": kafka_rules.horizon_retention,
    "batch-memory": cost_rules.batch_memory,
    "pyspark-memory": cost_rules.pyspark_memory,
}
#: Rules of `dedup_by_sequence`, which has no IDs and no catalog.
SEQUENCE_RULES: dict[str, Rule] = _COMMON | {
    "checkpoint-alone": checkpoint_alone,
    "expire-after": expire_after,
}


def advise(facts: Facts) -> list[Finding]:
    """Return the findings of all rules, the worst first.

    If facts are missing, the finding names the flags that supply the facts.
    """
    rules = RULES if facts.expire_after_ms is None else SEQUENCE_RULES
    return findings_of((name, rule(facts)) for name, rule in rules.items())
