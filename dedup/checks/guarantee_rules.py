"""Rules about what breaks the guarantee: each looks at the facts and says what it found."""

from __future__ import annotations

from collections.abc import Iterator

from dedup.checks.facts import HOW_SETTINGS, Facts
from dedup.checks.findings import Finding, Level, Takes

HDFS_STORE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: Settings that the operator refuses to start under, what they must be, and why.
_SAFETY = (
    (
        "spark.sql.streaming.unsupportedOperationCheck",
        "it hides that two stateful Python operators share one query",
    ),
    (
        "spark.sql.streaming.statefulOperator.useStrictDistribution",
        "without it a shard's records can meet the state of another partition",
    ),
)
_VALIDATION = "spark.sql.streaming.stateStore.commitValidation.enabled"


def safety_settings(facts: Facts) -> Iterator[Finding]:
    """Settings under which Spark itself does not keep state right."""
    rule = "safety-settings"
    unknown = []
    wrong = False
    for name, why in _SAFETY:
        value = facts.setting(name, "true")
        if value is None:
            unknown.append(name)
        elif value.strip().lower() != "true":
            wrong = True
            kept = facts.pinned is not None and name in facts.pinned
            yield Finding(
                rule=rule,
                level=Level.BREAKS,
                evidence=f"{name} is {value}: {why}. The operator refuses to start with it.",
                change=f"{name}=true",
                takes=Takes.BEGINNING if kept else Takes.RESTART,
            )
    if unknown:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Not known: {' and '.join(unknown)}. The default, true, is right; the "
            f"operator refuses to start with anything else. {HOW_SETTINGS}",
        )
    elif not wrong:
        names = " and ".join(name for name, _ in _SAFETY)
        yield Finding(rule=rule, level=Level.FINE, evidence=f"{names} are true.")


def commit_validation(facts: Facts) -> Iterator[Finding]:
    """A sink that reads only part of a micro-batch loses the rest, unless Spark looks."""
    rule = "commit-validation"
    value = facts.setting(_VALIDATION, "true")
    if value is not None and value.strip().lower() != "true":
        yield Finding(
            rule=rule,
            level=Level.BREAKS,
            evidence=f"{_VALIDATION} is {value}: a foreachBatch that reads half of a micro-batch "
            "(limit, take, head) would lose the other half without an error. The operator refuses "
            "to start with it.",
            change=f"{_VALIDATION}=true",
            takes=Takes.RESTART,
        )
    elif facts.spark_version is not None and facts.spark_version.startswith("4.0"):
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Spark {facts.spark_version} does not notice a sink that reads only part of "
            "a micro-batch (limit, take, head in foreachBatch); the rest is lost. Whether yours "
            "does cannot be seen from here; Spark 4.1 refuses it.",
            change="pip install 'pyspark>=4.1'",
            takes=Takes.RESTART,
        )
    elif value is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Not known: {_VALIDATION}. The default, true, is right. {HOW_SETTINGS}",
        )
    else:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence="Spark refuses a sink that reads only part of a micro-batch "
            f"({_VALIDATION} is true).",
        )


def checkpoint_format(facts: Facts) -> Iterator[Finding]:
    """The state store and the version of the checkpoint must go together."""
    rule = "checkpoint-format"
    name = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    asked = facts.setting(name, "1")
    store = facts.setting("spark.sql.streaming.stateStore.providerClass", HDFS_STORE)
    have = facts.checkpoint_format
    version = str(have) if have is not None else asked and asked.strip()
    if version is None:
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN,
            evidence=f"Not known: {name}. 1, the default, is right, and so is 2 with RocksDB. "
            f"{HOW_SETTINGS}",
        )
    elif version != "1" and store == HDFS_STORE:
        yield Finding(
            rule=rule,
            level=Level.BREAKS,
            evidence=f"{name} is {version}, which the HDFS-backed state store does not know: the "
            "query fails in its first micro-batch.",
            change=f"{name}=1",
            takes=Takes.RESTART,
        )
    else:
        other = ""
        if have is not None and asked is not None and asked.strip() != version:
            other = (
                f" It keeps it, {name}={asked.strip()} changes nothing; a Spark before 4.3 may "
                f"stop, and ask for {version}."
            )
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"The checkpoint is of format {version}. "
            + (
                "A task that was thought dead may overwrite state that is committed; each "
                "attempt's state is whole by itself, so nothing is lost by it."
                if version == "1"
                else "A task that was thought dead cannot overwrite state that is committed."
            )
            + other,
        )


def catalog_place(facts: Facts) -> Iterator[Finding]:
    """A local path is another disk on every machine of a cluster."""
    rule = "catalog-place"
    if facts.catalog_local is None or facts.local is None:
        return
    master = facts.settings.get("spark.master")
    if facts.local:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"The catalog {facts.catalog_local} is a local path, and Spark runs on this "
            f"machine alone ({master}).",
        )
    elif facts.shared_local:
        yield Finding(
            rule=rule,
            level=Level.FINE,
            evidence=f"The catalog {facts.catalog_local} is a mount that all machines share "
            "(shared_local=True); each makes sure of it when it starts.",
        )
    else:
        unknown = facts.shared_local is None
        yield Finding(
            rule=rule,
            level=Level.UNKNOWN if unknown else Level.BREAKS,
            evidence=f"The catalog {facts.catalog_local} is a local path, but Spark runs on "
            f"{master}: every executor would see another disk. The operator refuses it, unless "
            "shared_local=True says that it is the same mount on all machines.",
            change="shared_local=True" if unknown else 'catalog="s3://BUCKET/FOLDER"',
            takes=Takes.RESTART,
        )
