"""Rules about what breaks the guarantee."""

from __future__ import annotations

from dedup.tools.check.facts import HOW_SETTINGS, Facts
from dedup.tools.check.findings import Assessment, Assessments, Level, Takes, breaks, fine, unknown

HDFS_STORE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
STORE = "spark.sql.streaming.stateStore.providerClass"
#: Settings that the operator refuses to start under unless they are true, and why.
_SAFETY = {
    "spark.sql.streaming.unsupportedOperationCheck": (
        "it hides that two stateful Python operators share one query"
    ),
    "spark.sql.streaming.statefulOperator.useStrictDistribution": (
        "without it a shard's records can meet the state of another partition"
    ),
}
_VALIDATION = "spark.sql.streaming.stateStore.commitValidation.enabled"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def safety_settings(facts: Facts) -> list[Assessment]:
    """Settings under which Spark itself does not keep state right."""
    values = {name: facts.setting(name, "true") for name in _SAFETY}
    missing = [name for name, value in values.items() if value is None]
    found = [
        breaks(
            f"{name} is {value}: {_SAFETY[name]}. The operator refuses to start with it.",
            f"{name}=true",
            Takes.BEGINNING if name in (facts.pinned or ()) else Takes.RESTART,
        )
        for name, value in values.items()
        if facts.enabled(name) is False
    ]
    if missing:
        found.append(
            unknown(
                f"Not known: {' and '.join(missing)}. The default, true, is right; the "
                f"operator refuses to start with anything else. {HOW_SETTINGS}"
            )
        )
    return found or [fine(f"{' and '.join(_SAFETY)} are true.")]


def commit_validation(facts: Facts) -> Assessment:
    """A sink that reads only part of a micro-batch loses the rest, unless Spark looks."""
    enabled = facts.enabled(_VALIDATION)
    if enabled is False:
        return breaks(
            f"{_VALIDATION} is {facts.setting(_VALIDATION, 'true')}: a foreachBatch that reads "
            "half of a micro-batch (limit, take, head) would lose the other half without an "
            "error. The operator refuses to start with it.",
            f"{_VALIDATION}=true",
        )
    if facts.spark_version is not None and facts.spark_version.startswith("4.0"):
        return unknown(
            f"Spark {facts.spark_version} does not notice a sink that reads only part of "
            "a micro-batch (limit, take, head in foreachBatch); the rest is lost. Whether yours "
            "does cannot be seen from here; Spark 4.1 refuses it.",
            "pip install 'pyspark>=4.1'",
            Takes.RESTART,
        )
    if enabled is None:
        return unknown(f"Not known: {_VALIDATION}. The default, true, is right. {HOW_SETTINGS}")
    return fine(
        f"Spark refuses a sink that reads only part of a micro-batch ({_VALIDATION} is true)."
    )


def checkpoint_format(facts: Facts) -> Assessment:
    """The state store and the version of the checkpoint must go together."""
    asked = (facts.setting(_FORMAT, "1") or "").strip()
    version = asked if facts.checkpoint_format is None else str(facts.checkpoint_format)
    if not version:
        return unknown(
            f"Not known: {_FORMAT}. 1, the default, is right, and so is 2 with RocksDB. "
            f"{HOW_SETTINGS}"
        )
    if version != "1" and facts.setting(STORE, HDFS_STORE) == HDFS_STORE:
        return breaks(
            f"{_FORMAT} is {version}, which the HDFS-backed state store does not know: the "
            "query fails in its first micro-batch.",
            f"{_FORMAT}=1",
        )
    protection = (
        "A task that was thought dead may overwrite state that is committed; each attempt's state "
        "is whole by itself, so nothing is lost by it."
        if version == "1"
        else "A task that was thought dead cannot overwrite state that is committed."
    )
    ignored = (
        f" It keeps it, {_FORMAT}={asked} changes nothing; a Spark before 4.3 may stop, and ask "
        f"for {version}."
        if asked and asked != version
        else ""
    )
    return fine(f"The checkpoint is of format {version}. {protection}{ignored}")


def catalog_place(facts: Facts) -> Assessment | None:
    """A local path names a different disk on every machine of a cluster."""
    if facts.catalog_local is None or facts.local is None:
        return None
    master = facts.settings.get("spark.master")
    if facts.local:
        return fine(
            f"The catalog {facts.catalog_local} is a local path, and Spark runs on this "
            f"machine alone ({master})."
        )
    if facts.shared_local:
        return fine(
            f"The catalog {facts.catalog_local} is a mount that all machines share "
            "(shared_local=True); each makes sure of it when it starts."
        )
    evidence = (
        f"The catalog {facts.catalog_local} is a local path, but Spark runs on "
        f"{master}: every executor would see another disk. The operator refuses it, unless "
        "shared_local=True says that it is the same mount on all machines."
    )
    if facts.shared_local is None:
        return unknown(evidence, "shared_local=True", Takes.RESTART)
    return breaks(evidence, 'catalog="s3://BUCKET/FOLDER"')


def chosen_guarantee(facts: Facts) -> Assessment | None:
    """The query was given a weaker guarantee than exactly-once."""
    if facts.guarantee in (None, "exactly-once"):
        return None
    what = (
        "the filters alone decide, and a new record is lost with a probability of up to fpr"
        if facts.guarantee == "at-most-once"
        else "every record goes on, duplicates as well, and none is remembered"
    )
    return breaks(
        f'The query was asked for guarantee="{facts.guarantee}": {what}.',
        'guarantee="exactly-once"',
    )


def recent_batches(facts: Facts) -> Assessments:
    """Report what `dedup watch` would say about the log's last micro-batches."""
    if facts.concerns is None:
        return None
    if not facts.concerns:
        return fine(
            "In the log's last micro-batches at most 1 % of the records were late or clamped, and "
            "no lag was seen."
        )
    return [
        Assessment(
            # Copies may pass among late records; the other concerns cost memory.
            Level.BREAKS if status == "LATE" and facts.late != "drop" else Level.COSTS,
            f"{status} in the last micro-batches of the log: {why}.",
            f"dedup remedies {status.lower()}",
            Takes.OUTSIDE,
        )
        for status, why in facts.concerns
    ]


def lasting_id(facts: Facts) -> Assessment | None:
    """A random ID, or one of the clock, changes when Spark reads the record again."""
    if facts.does_not_last is None:
        return None
    option = facts.does_not_last.partition("=")[0]
    return breaks(
        f"{facts.does_not_last} The operator refuses to start with it.", f'{option}="COLUMN"'
    )


def windows_after(facts: Facts) -> Assessment | None:
    """Spark has one watermark for a stream, the operator a clock for each source partition."""
    if not facts.by_source:
        return None
    return unknown(
        "source_partition is set: the operator emits rows of a slow source partition by that "
        "partition's own clock. A window with withWatermark after the operator has one watermark "
        "for all rows, the newest timestamp less its delay, and drops the slow partition's rows "
        "silently. What follows the operator cannot be seen from here: if a window does, give its "
        "withWatermark a delay as long as a partition may lag behind."
    )
