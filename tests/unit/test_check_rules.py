"""Every rule of `dedup check`: when it fires, when it does not, what it says for want of facts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from dedup.checks.facts import FOREVER_MS, OTHER, Facts, Source, cores_of, size_bytes, whole_number
from dedup.checks.findings import Finding, Level, Takes
from dedup.checks.guarantee_rules import HDFS_STORE, ROCKSDB_STORE
from dedup.checks.rules import RULES, advise

BREAKS, COSTS, UNKNOWN, FINE = Level.BREAKS, Level.COSTS, Level.UNKNOWN, Level.FINE
HOUR_MS, DAY_MS, MIB = 3_600_000, 86_400_000, 1 << 20
STATE = "spark.sql.streaming.stateStore."
PROVIDER, FORMAT = STATE + "providerClass", STATE + "checkpointFormatVersion"
CHANGELOG = STATE + "rocksdb.changelogCheckpointing.enabled"
STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
CHECKED = "spark.sql.streaming.unsupportedOperationCheck"
VALIDATION = STATE + "commitValidation.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"
ARROW = "spark.sql.execution.arrow.maxBytesPerBatch"
KAFKA = Source(kind="kafka", topics=("orders",), partitions=6)


def kafka(**fields: Any) -> Source:
    return Source(**{"kind": "kafka", "topics": ("orders",), "partitions": 6, **fields})


def settings(**facts: Any) -> Any:
    """Facts with settings of which all are known."""
    return {"complete": True, **facts}


def rule(name: str, facts: Facts) -> list[Finding]:
    return [finding for finding in advise(facts) if finding.rule == name]


@dataclass
class Case:
    """What a rule makes of facts: nothing, or one finding of a level that says something."""

    rule: str
    facts: dict[str, Any]
    level: Level | None
    says: str = ""
    change: str | None = None
    takes: Takes | None = None


HORIZON = {"horizon_ms": 7 * DAY_MS, "lateness_ms": HOUR_MS, "late": "emit", "event_time": True}
CASES = [
    # --- settings that the operator refuses
    Case("safety-settings", {}, UNKNOWN, "--properties"),
    Case("safety-settings", {"settings": {STRICT: "true"}}, UNKNOWN, f"Not known: {CHECKED}."),
    Case("safety-settings", {"settings": {STRICT: "true", CHECKED: "TRUE"}}, FINE),
    Case("safety-settings", settings(), FINE),
    Case("safety-settings", settings(settings={CHECKED: "false"}), BREAKS, "refuses",
         f"{CHECKED}=true", Takes.RESTART),
    Case("safety-settings", settings(pinned={STRICT: "false"}), BREAKS, "another partition",
         f"{STRICT}=true", Takes.BEGINNING),
    Case("commit-validation", {}, UNKNOWN, "--conf"),
    Case("commit-validation", settings(), FINE),
    Case("commit-validation", settings(settings={VALIDATION: "false"}), BREAKS, "limit, take, head",
         f"{VALIDATION}=true", Takes.RESTART),
    Case("commit-validation", settings(spark_version="4.0.1"), UNKNOWN, "Spark 4.0.1",
         "pip install 'pyspark>=4.1'", Takes.RESTART),
    Case("commit-validation", settings(spark_version="4.1.0"), FINE),
    # --- the checkpoint
    Case("checkpoint-format", {}, UNKNOWN, FORMAT),
    Case("checkpoint-format", {"checkpoint_format": 1}, FINE, "format 1"),
    Case("checkpoint-format", settings(), FINE, "format 1"),
    Case("checkpoint-format", settings(settings={FORMAT: "2"}), BREAKS, "HDFS-backed",
         f"{FORMAT}=1", Takes.RESTART),
    Case("checkpoint-format", settings(settings={FORMAT: "2", PROVIDER: ROCKSDB_STORE}), FINE,
         "format 2"),
    # Spark goes on in the format that it finds.
    Case("checkpoint-format", settings(checkpoint_format=2, pinned={PROVIDER: ROCKSDB_STORE}),
         FINE, f"{FORMAT}=1 changes nothing"),
    Case("checkpoint-format", settings(checkpoint_format=1, settings={FORMAT: "2"},
                                       pinned={PROVIDER: ROCKSDB_STORE}),
         FINE, f"{FORMAT}=2 changes nothing"),
    # --- the catalog's place
    Case("catalog-place", {"settings": {"spark.master": "yarn"}}, None),
    Case("catalog-place", {"catalog_local": "/c"}, None),
    Case("catalog-place", {"catalog_local": "/c", "settings": {"spark.master": "local[4]"}}, FINE),
    Case("catalog-place", {"catalog_local": "/c", "settings": {"spark.master": "yarn"},
                           "shared_local": False},
         BREAKS, "another disk", 'catalog="s3://BUCKET/FOLDER"', Takes.RESTART),
    Case("catalog-place", {"catalog_local": "/c", "settings": {"spark.master": "yarn"},
                           "shared_local": True}, FINE, "shared_local=True"),
    Case("catalog-place", {"catalog_local": "/c",
                           "settings": {"spark.master": "local-cluster[2,1,1024]"}},
         UNKNOWN, "another disk", "shared_local=True", Takes.RESTART),
    # --- horizon and retention
    Case("horizon-retention", {}, UNKNOWN, "sources"),
    Case("horizon-retention", {"sources": (Source(kind="file"),)}, None),
    Case("horizon-retention", {"sources": (kafka(topics=("a", "b")),), **HORIZON}, UNKNOWN,
         "topics a, b",
         "kafka-configs.sh --bootstrap-server HOST:9092 --entity-type topics --entity-name a "
         "--describe --all\n"
         "kafka-configs.sh --bootstrap-server HOST:9092 --entity-type topics --entity-name b "
         "--describe --all"),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": DAY_MS}, UNKNOWN,
         "--horizon"),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 7 * DAY_MS, **HORIZON},
         FINE, "7 days"),
    # The GC watermark is behind by horizon and lateness together.
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 7 * DAY_MS + HOUR_MS,
                               **HORIZON}, FINE),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 7 * DAY_MS + HOUR_MS + 1,
                               **HORIZON},
         BREAKS, "oldest 1 millisecond of it pass again", 'horizon="8 days"', Takes.RESTART),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 7 * DAY_MS,
                               **HORIZON, "horizon_ms": 6 * HOUR_MS},
         BREAKS, "oldest 161 hours of it pass again", 'horizon="7 days"', Takes.RESTART),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 90 * 60_000,
                               "horizon_ms": HOUR_MS, "event_time": False, "lateness_ms": 0},
         BREAKS, "oldest 30 minutes of it pass again", 'horizon="2 hours"', Takes.RESTART),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 30 * DAY_MS,
                               **HORIZON, "late": "drop"}, FINE, "dropped as late"),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 30 * DAY_MS,
                               **HORIZON, "late": None},
         BREAKS, 'late taken to be "emit"', 'horizon="30 days"', Takes.RESTART),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 30 * DAY_MS,
                               **HORIZON, "late": None},
         BREAKS, 'late="drop" lets none pass: give --late drop.', 'horizon="30 days"',
         Takes.RESTART),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": FOREVER_MS,
                               **HORIZON, "late": None},
         BREAKS, "give --late drop.", '.option("startingTimestamp", MILLISECONDS)',
         Takes.BEGINNING),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 30 * DAY_MS,
                               **HORIZON, "late": "drop", "event_time": None},
         BREAKS, "event time only: give --catalog ROOT, which tells", 'horizon="30 days"',
         Takes.RESTART),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": 30 * DAY_MS,
                               **HORIZON, "late": None, "event_time": None},
         BREAKS, "give --late drop, and --catalog ROOT", 'horizon="30 days"', Takes.RESTART),
    Case("horizon-retention", {"sources": (KAFKA,), "kafka_retention_ms": FOREVER_MS, **HORIZON},
         BREAKS, "for ever", '.option("startingTimestamp", MILLISECONDS)', Takes.BEGINNING),
    # --- clocks of the partitions
    Case("source-clocks", {"sources": (Source(kind="file"),), **HORIZON}, None),
    Case("source-clocks", {"sources": (KAFKA,), "event_time": False}, None),
    Case("source-clocks", {"sources": (kafka(partitions=1),), **HORIZON}, None),
    Case("source-clocks", {"sources": (KAFKA,), **HORIZON}, UNKNOWN, "--log"),
    Case("source-clocks", {"sources": (KAFKA,), **HORIZON, "by_source": True}, FINE),
    Case("source-clocks", {"sources": (KAFKA,), **HORIZON, "by_source": False}, BREAKS,
         "more than 1 hour behind", 'source_partition=["topic", "partition"]', Takes.RESTART),
    Case("source-clocks", {"sources": (KAFKA,), **HORIZON, "by_source": False, "lateness_ms": 0},
         BREAKS, "partition that is behind the others",
         'source_partition=["topic", "partition"]', Takes.RESTART),
    Case("source-clocks", {"sources": (KAFKA,), **HORIZON, "by_source": False, "late": "drop",
                           "records": 5000, "late_records": 1200},
         BREAKS, 'dropped (late="drop"). 1,200 of the last 5,000 records were late.',
         'source_partition=["topic", "partition"]', Takes.RESTART),
    Case("source-clocks", {"sources": (KAFKA,), **HORIZON, "by_source": False, "late": None},
         BREAKS, '(late taken to be "emit", the default; else give --late drop)',
         'source_partition=["topic", "partition"]', Takes.RESTART),
    # --- data that Kafka deletes unread
    Case("kafka-data-loss", {"sources": (Source(kind="file"),)}, None),
    Case("kafka-data-loss", {"sources": (KAFKA,)}, UNKNOWN, "--source-option failOnDataLoss=true"),
    Case("kafka-data-loss", {"sources": (kafka(complete=True),)}, FINE),
    Case("kafka-data-loss", {"sources": (kafka(options={"failondataloss": "False"}),)}, BREAKS,
         "topic orders", '.option("failOnDataLoss", "true")', Takes.RESTART),
    # --- partitions, shards, cores
    Case("shuffle-partitions", {"cores": 4}, UNKNOWN, "--properties"),
    Case("shuffle-partitions", {"state_partitions": 8}, UNKNOWN, "spark.executor.instances"),
    Case("shuffle-partitions", settings(cores=2), COSTS, f"{PARTITIONS} is 200, 100 for each of 2",
         f"{PARTITIONS}=2", Takes.BEGINNING),
    Case("shuffle-partitions", settings(cores=2, state_partitions=9, pinned={}), COSTS,
         "This query keeps it", f"{PARTITIONS}=2", Takes.BEGINNING),
    Case("shuffle-partitions", settings(cores=2, state_partitions=8, pinned={}), FINE),
    Case("shuffle-partitions", settings(cores=8, state_partitions=8, pinned={}), FINE),
    Case("shuffle-partitions", settings(cores=8, state_partitions=2, pinned={}), COSTS,
         "6 of 8 cores", f"{PARTITIONS}=8", Takes.BEGINNING),
    Case("shuffle-partitions",
         settings(cores=2, state_partitions=2, pinned={}, settings={PARTITIONS: "16"}), FINE,
         f"{PARTITIONS}=16 changes nothing"),
    Case("shard-layout", {"state_partitions": 4}, UNKNOWN, "--catalog"),
    Case("shard-layout", {"shards": 4}, None),
    Case("shard-layout", {"shards": 4, "state_partitions": 4}, FINE, "1 on each"),
    Case("shard-layout", {"shards": 8, "state_partitions": 4}, FINE, "2 on each"),
    Case("shard-layout", {"shards": 6, "state_partitions": 4}, COSTS, "some tasks have 2",
         "shards=8", Takes.BEGINNING),
    Case("shard-layout", {"shards": 2, "state_partitions": 4}, COSTS, "2 tasks",
         f"{PARTITIONS}=2", Takes.BEGINNING),
    # --- the limit of a micro-batch
    Case("trigger-limit", {}, UNKNOWN, "sources"),
    Case("trigger-limit", {"sources": (Source(kind="rate"),)}, None),
    Case("trigger-limit", {"sources": (Source(kind=OTHER),)}, UNKNOWN, "neither Kafka nor files"),
    Case("trigger-limit", {"sources": (kafka(batch_max=1234),)}, UNKNOWN, "1,234 records"),
    Case("trigger-limit", {"sources": (kafka(options={"maxoffsetspertrigger": "5"}),)}, FINE,
         "maxOffsetsPerTrigger is 5"),
    Case("trigger-limit", {"sources": (kafka(complete=True, batch_max=123_456),)}, COSTS,
         "1,024 MiB", '.option("maxOffsetsPerTrigger", 250000)', Takes.RESTART),
    Case("trigger-limit", {"sources": (kafka(complete=True),), "cores": 8,
                           "max_shard_batch_bytes": 64 * MIB},
         COSTS, "64 MiB", '.option("maxOffsetsPerTrigger", 4000000)', Takes.RESTART),
    Case("trigger-limit", {"sources": (Source(kind="file", complete=True),)}, COSTS, "",
         '.option("maxFilesPerTrigger", 10)', Takes.RESTART),
    Case("trigger-limit", {"sources": (Source(kind="file", complete=True, batch_max=7),)}, COSTS,
         "7 files", '.option("maxFilesPerTrigger", 14)', Takes.RESTART),
    Case("trigger-limit", {"sources": (Source(kind="file", complete=True, batch_max=1),)}, COSTS,
         "had 1 file.", '.option("maxFilesPerTrigger", 2)', Takes.RESTART),
    Case("trigger-limit",
         {"sources": (Source(kind="file", options={"maxbytespertrigger": "1g"}),)}, FINE),
    # --- memory
    Case("batch-memory", {}, UNKNOWN, "spark.executor.memoryOverhead"),
    Case("batch-memory", {"settings": {"spark.master": "local[2]"}, "cores": 2}, UNKNOWN,
         "spark.driver.memory"),
    Case("batch-memory", settings(settings={"spark.master": "local[2]"}, cores=2,
                                  machine_bytes=16 << 30), FINE, "15,360 MiB"),
    # (4096 - 1024) / 2 cores - 240 MiB, and a third of it.
    Case("batch-memory", settings(settings={"spark.master": "local[2]"}, cores=2,
                                  machine_bytes=4 << 30),
         COSTS, "3,072 MiB beside", f"max_shard_batch_bytes={432 * MIB}", Takes.RESTART),
    Case("batch-memory", settings(settings={"spark.master": "yarn"}), COSTS, "384 MiB outside",
         f"spark.executor.memoryOverhead=624m\nmax_shard_batch_bytes={128 * MIB}", Takes.RESTART),
    Case("batch-memory", settings(settings={"spark.master": "k8s://https://h",
                                            "spark.executor.memory": "10g"}),
         FINE, "4,096 MiB outside"),
    Case("batch-memory", settings(settings={"spark.master": "yarn", "spark.executor.cores": "4",
                                            "spark.executor.memoryOverhead": "4g"}),
         COSTS, "4 Python workers", f"max_shard_batch_bytes={261 * MIB}", Takes.RESTART),
    Case("batch-memory", settings(settings={"spark.master": "yarn", "spark.executor.cores": "4",
                                            "spark.executor.memoryOverhead": "2048",
                                            "spark.executor.pyspark.memory": "2g"},
                                  max_shard_batch_bytes=256 * MIB), FINE, "4,096 MiB outside"),
    Case("batch-memory", settings(settings={"spark.master": "yarn", "spark.executor.memory": "20g",
                                            "spark.executor.memoryOverheadFactor": "0.2"}),
         FINE, "4,096 MiB outside"),
    Case("batch-memory", settings(settings={"spark.master": "yarn", "spark.executor.cores": "4",
                                            "spark.executor.memoryOverhead": "4g"},
                                  batch_records_max=2_000_000, shards=4),
         COSTS, f"500,000 records a shard; there is room for {261 * MIB // 500_000} bytes of each",
         f"max_shard_batch_bytes={261 * MIB}", Takes.RESTART),
    Case("pyspark-memory", {}, None),
    Case("pyspark-memory", {"settings": {"spark.executor.pyspark.memory": "4g"}}, None),
    Case("pyspark-memory", settings(settings={"spark.executor.pyspark.memory": "4g"}), FINE),
    Case("pyspark-memory", settings(settings={"spark.executor.pyspark.memory": "512m"}), COSTS,
         "fails at once",
         f"spark.executor.pyspark.memory=1152m\nmax_shard_batch_bytes={128 * MIB}", Takes.RESTART),
    Case("pyspark-memory", settings(settings={"spark.executor.pyspark.memory": "8g",
                                              "spark.executor.cores": "4"}),
         COSTS, "more than 426 MiB", f"max_shard_batch_bytes={426 * MIB}", Takes.RESTART),
    # --- reading Kafka
    Case("kafka-partitions", {"sources": (Source(kind="file"),), "cores": 8}, None),
    Case("kafka-partitions", {"sources": (KAFKA,)}, UNKNOWN, "cores there are is not known"),
    Case("kafka-partitions", {"sources": (kafka(partitions=None),), "cores": 8}, UNKNOWN,
         "partitions of Kafka there are"),
    Case("kafka-partitions", {"sources": (KAFKA,), "cores": 6}, FINE, "6 tasks"),
    Case("kafka-partitions", {"sources": (KAFKA,), "cores": 8}, COSTS, "6 of 8 cores",
         '.option("minPartitions", 8)', Takes.RESTART),
    Case("kafka-partitions", {"sources": (kafka(options={"minpartitions": "8"}),), "cores": 8},
         FINE, "8 tasks"),
    # --- the state store
    Case("state-store", {}, UNKNOWN, PROVIDER),
    Case("state-store", settings(), FINE, "HDFS-backed"),
    Case("state-store", {"pinned": {PROVIDER: HDFS_STORE}}, FINE, "HDFS-backed"),
    Case("state-store", {"pinned": {PROVIDER: ROCKSDB_STORE}}, UNKNOWN, CHANGELOG),
    Case("state-store", settings(settings={PROVIDER: ROCKSDB_STORE}), COSTS, "without a changelog",
         f"{CHANGELOG}=true", Takes.RESTART),
    Case("state-store", settings(settings={PROVIDER: ROCKSDB_STORE, CHANGELOG: "true"}), FINE),
    Case("state-store", settings(settings={PROVIDER: "com.acme.Store"}), UNKNOWN, "com.acme.Store"),
    # --- Python and Arrow
    Case("worker-reuse", {}, UNKNOWN, "spark.python.worker.reuse"),
    Case("worker-reuse", settings(), FINE),
    Case("worker-reuse", settings(settings={"spark.python.worker.reuse": "false"}), COSTS, "pandas",
         "spark.python.worker.reuse=true", Takes.RESTART),
    Case("arrow-batch-bytes", {}, UNKNOWN, ARROW),
    Case("arrow-batch-bytes", settings(), COSTS, "5 to 45 %", f"{ARROW}=2147483647", Takes.RESTART),
    Case("arrow-batch-bytes", settings(settings={ARROW: "67108864b"}), COSTS, "67108864",
         f"{ARROW}=2147483647", Takes.RESTART),
    Case("arrow-batch-bytes", settings(settings={ARROW: "2147483647"}), FINE),
    Case("arrow-batch-bytes", settings(settings={ARROW: "2147483647b"}), FINE),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{n}-{case.rule}-{case.level and case.level.name}" for n, case in
                        enumerate(CASES)]
)  # fmt: skip
def test_a_rule(case: Case) -> None:
    found = rule(case.rule, Facts(**case.facts))
    if case.level is None:
        assert found == []
        return
    (finding,) = found
    assert finding.level is case.level, finding
    assert case.says in finding.evidence
    assert finding.change == case.change
    assert finding.takes == case.takes


def test_every_rule_has_its_cases() -> None:
    named = {finding.rule for case in CASES for finding in advise(Facts(**case.facts))}
    assert named == {case.rule for case in CASES}
    assert len(named) == len(RULES)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", name) for name in named)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_findings_are_whole_sentences_with_a_remedy(case: Case) -> None:
    for finding in advise(Facts(**case.facts)):
        assert re.match(r"[A-Za-z0-9].*[.)]$", finding.evidence), finding.evidence
        assert "None" not in finding.evidence
        wants_change = finding.level in (BREAKS, COSTS)
        assert (finding.change is not None and finding.takes is not None) or not wants_change
        assert finding.change is None or finding.level is not FINE


def test_what_matters_most_comes_first() -> None:
    levels = [f.level for f in advise(Facts(**settings(cores=2, settings={STRICT: "false"})))]
    assert levels == sorted(levels, key=list(Level).index)
    assert levels[0] is BREAKS
    assert levels[-1] is FINE


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        # By memory 346, 773 and 176 MiB, by address space 85, 426 and 426; advice ends at 128.
        ({"spark.master": "yarn", "spark.executor.memoryOverhead": "1g"}, 128 * MIB),
        ({"spark.master": "yarn", "spark.executor.memoryOverhead": "2g",
          "spark.executor.pyspark.memory": "8g"}, 426 * MIB),
        ({"spark.master": "local[4]", "spark.driver.memory": "1g",
          "spark.executor.pyspark.memory": "8g"}, 176 * MIB),
    ],
)  # fmt: skip
def test_one_report_advises_one_share(settings: dict[str, str], share: int) -> None:
    given = {"spark.executor.cores": "4", "spark.executor.pyspark.memory": "4g"} | settings
    facts = Facts(settings=given, complete=True, cores=4, machine_bytes=4 << 30)
    changes = [f.change for name in ("batch-memory", "pyspark-memory") for f in rule(name, facts)]
    assert len(changes) == 2
    for change in changes:
        assert change is not None
        assert change.splitlines()[-1] == f"max_shard_batch_bytes={share}"


def test_several_sources_are_judged_each() -> None:
    facts = Facts(sources=(kafka(complete=True), Source(kind="file", complete=True)))
    assert [finding.change for finding in rule("trigger-limit", facts)] == [
        '.option("maxOffsetsPerTrigger", 1000000)',
        '.option("maxFilesPerTrigger", 10)',
    ]


@pytest.mark.parametrize(
    ("text", "unit", "size"),
    [
        ("4g", "b", 4 << 30),
        ("1024", "b", 1024),
        ("512", "m", 512 << 20),
        ("1.5g", "b", 3 << 29),
        ("64MiB", "b", 64 << 20),
        ("2147483647b", "b", (1 << 31) - 1),
        ("8 gb", "b", 8 << 30),
        ("much", "b", None),
        ("", "b", None),
        (None, "b", None),
    ],
)
def test_sizes(text: str | None, unit: str, size: int | None) -> None:
    assert size_bytes(text, unit=unit) == size


def test_whole_numbers() -> None:
    assert [whole_number(text) for text in ("8", " 8 ", "8.5", "-8", "", None)] == [8, 8] + [
        None
    ] * 4


@pytest.mark.parametrize(
    ("given", "cores"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[*]"}, 16),
        ({"spark.master": "local[2,4]"}, 2),
        ({"spark.master": "yarn"}, None),
        ({}, None),
        ({"spark.executor.instances": "4", "spark.executor.cores": "2"}, 8),
        ({"spark.executor.instances": "4"}, None),
        ({"spark.executor.instances": "4", "spark.executor.cores": "4", "spark.task.cpus": "2"}, 8),
        ({"spark.cores.max": "12", "spark.executor.cores": "4"}, 12),
        (
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.executor.instances": "1",
                "spark.dynamicAllocation.maxExecutors": "10",
                "spark.executor.cores": "2",
            },
            20,
        ),
    ],
)
def test_cores(given: dict[str, str], cores: int | None) -> None:
    assert cores_of(given, 16) == cores
