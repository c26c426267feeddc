"""Every rule of `dedup check`: when it fires, when it does not, what it says for want of facts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from dedup.spark import machine
from dedup.spark.driver.checkpoint_log import Source
from dedup.tools.check.facts import FOREVER_MS, Facts, cores_of, whole_number
from dedup.tools.check.findings import Finding, Level, Takes
from dedup.tools.check.rules import RULES, SEQUENCE_RULES, advise
from dedup.values.duration import size_bytes

BREAKS, COSTS, UNKNOWN, FINE = Level.BREAKS, Level.COSTS, Level.UNKNOWN, Level.FINE
HOUR_MS, DAY_MS, MIB = 3_600_000, 86_400_000, 1 << 20
STATE = "spark.sql.streaming.stateStore."
STRICT = "spark.sql.streaming.statefulOperator.useStrictDistribution"
CHECKED = "spark.sql.streaming.unsupportedOperationCheck"
VALIDATION = STATE + "commitValidation.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"
OVERHEAD, CORES = "spark.executor.memoryOverhead", "spark.executor.cores"
PYSPARK = "spark.executor.pyspark.memory"
ARROW = "spark.sql.execution.arrow.maxBytesPerBatch"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
YARN, LOCAL = {"spark.master": "yarn"}, {"spark.master": "local[2]"}
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

    facts: dict[str, Any]
    level: Level | None
    says: str = ""
    change: str | None = None
    #: Of the change, where there is one.
    takes: Takes | None = Takes.RESTART


def producers(**known: int) -> dict[str, Any]:
    """Facts of a query of `dedup_by_sequence`."""
    return {"expire_after_ms": DAY_MS, **known}


HORIZON = {"horizon_ms": 7 * DAY_MS, "lateness_ms": HOUR_MS, "late": "emit", "event_time": True}
KAFKA_CONFIGS = "kafka-configs.sh --bootstrap-server HOST:9092 --entity-type topics --entity-name"
WEEK = {"sources": (KAFKA,), **HORIZON}
CASES = {
    "safety-settings": [
        Case({}, UNKNOWN, "--properties"),
        Case({"settings": {STRICT: "true"}}, UNKNOWN, f"Not known: {CHECKED}."),
        Case({"settings": {STRICT: "true", CHECKED: "TRUE"}}, FINE),
        Case(settings(), FINE),
        Case(settings(settings={CHECKED: "false"}), BREAKS, "refuses", f"{CHECKED}=true"),
        Case(settings(pinned={STRICT: "false"}), BREAKS, "another partition", f"{STRICT}=true",
             Takes.BEGINNING),
    ],
    "commit-validation": [
        Case({}, UNKNOWN, "--conf"),
        Case(settings(), FINE),
        Case(settings(settings={VALIDATION: "false"}), BREAKS, "limit, take, head",
             f"{VALIDATION}=true"),
        Case(settings(spark_version="4.0.1"), UNKNOWN, "Spark 4.0.1", "pip install 'pyspark>=4.1'"),
        Case(settings(spark_version="4.1.0"), FINE),
    ],
    "catalog-place": [
        Case({"settings": YARN}, None),
        Case({"catalog_local": "/c"}, None),
        Case({"catalog_local": "/c", "settings": {"spark.master": "local[4]"}}, FINE),
        Case({"catalog_local": "/c", "settings": YARN, "shared_local": False},
             BREAKS, "another disk", 'catalog="s3://BUCKET/FOLDER"'),
        Case({"catalog_local": "/c", "settings": YARN, "shared_local": True},
             FINE, "shared_local=True"),
        Case({"catalog_local": "/c", "settings": {"spark.master": "local-cluster[2,1,1024]"}},
             UNKNOWN, "another disk", "shared_local=True"),
    ],
    "guarantee": [
        Case({}, None),
        Case({"guarantee": "exactly-once"}, None),
        Case({"guarantee": "at-most-once"}, BREAKS, "of up to fpr", 'guarantee="exactly-once"'),
        Case({"guarantee": "at-least-once"}, BREAKS, "duplicates as well",
             'guarantee="exactly-once"'),
    ],
    "recent-batches": [
        Case({}, None),
        Case({"concerns": ()}, FINE),
        Case({"concerns": (("FUTURE", "it is"),)}, COSTS, "FUTURE in the last",
             "dedup remedies future", Takes.OUTSIDE),
        Case({"concerns": (("LATE", "it is"),)}, BREAKS, "it is.",
             "dedup remedies late", Takes.OUTSIDE),
        Case({"concerns": (("REWOUND", "it is"),)}, BREAKS, "it is.",
             "dedup remedies damaged-state", Takes.OUTSIDE),
        Case({"concerns": (("LATE", "it is"),), "late": "drop"}, COSTS, "it is.",
             "dedup remedies late", Takes.OUTSIDE),
    ],
    "fallbacks": [
        Case({}, None),
        Case({"fallbacks": ()}, None),
        Case({"fallbacks": ("numpy judged 4 of 4 shards",)}, COSTS,
             "In the log's last micro-batch numpy judged 4 of 4 shards.", "dedup doctor",
             Takes.OUTSIDE),
    ],
    "lasting-id": [
        Case({}, None),
        Case({"unstable_id": "id='u' is made by uuid."}, BREAKS, "by uuid. The operator refuses",
             'id="COLUMN"'),
        Case({"unstable_id": "timestamp='t' is made by rand."}, BREAKS, "", 'timestamp="COLUMN"'),
    ],
    "horizon-retention": [
        Case({}, UNKNOWN, "sources"),
        Case({"sources": (Source(kind="file"),)}, None),
        Case({"sources": (kafka(topics=("a", "b")),), **HORIZON}, UNKNOWN, "topics a, b",
             f"{KAFKA_CONFIGS} a --describe --all\n{KAFKA_CONFIGS} b --describe --all", None),
        Case({"sources": (KAFKA,), "kafka_retention_ms": DAY_MS}, UNKNOWN, "--horizon"),
        Case({**WEEK, "kafka_retention_ms": 7 * DAY_MS}, FINE, "7 days"),
        # The GC watermark is behind by horizon and lateness together.
        Case({**WEEK, "kafka_retention_ms": 7 * DAY_MS + HOUR_MS}, FINE),
        Case({**WEEK, "kafka_retention_ms": 7 * DAY_MS + HOUR_MS + 1}, BREAKS,
             "oldest 1 millisecond of it pass again", 'horizon="8 days"'),
        Case({**WEEK, "kafka_retention_ms": 7 * DAY_MS, "horizon_ms": 6 * HOUR_MS}, BREAKS,
             "oldest 161 hours of it pass again", 'horizon="7 days"'),
        Case({"sources": (KAFKA,), "kafka_retention_ms": 90 * 60_000, "horizon_ms": HOUR_MS,
             "event_time": False, "lateness_ms": 0}, BREAKS, "oldest 30 minutes of it pass again",
             'horizon="2 hours"'),
        Case({**WEEK, "kafka_retention_ms": 30 * DAY_MS, "late": "drop"}, FINE, "dropped as late"),
        Case({**WEEK, "kafka_retention_ms": 30 * DAY_MS, "late": None}, BREAKS,
             'assuming late="emit"', 'horizon="30 days"'),
        Case({**WEEK, "kafka_retention_ms": 30 * DAY_MS, "late": None}, BREAKS,
             'late="drop" lets none pass: give --late drop.', 'horizon="30 days"'),
        Case({**WEEK, "kafka_retention_ms": FOREVER_MS, "late": None}, BREAKS, "give --late drop.",
             '.option("startingTimestamp", MILLISECONDS)', Takes.BEGINNING),
        Case({**WEEK, "kafka_retention_ms": 30 * DAY_MS, "late": "drop", "event_time": None},
             BREAKS, "event time only: give --catalog ROOT, which shows", 'horizon="30 days"'),
        Case({**WEEK, "kafka_retention_ms": 30 * DAY_MS, "late": None, "event_time": None}, BREAKS,
             "give --late drop, and --catalog ROOT", 'horizon="30 days"'),
        Case({**WEEK, "kafka_retention_ms": FOREVER_MS}, BREAKS, "for ever",
             '.option("startingTimestamp", MILLISECONDS)', Takes.BEGINNING),
    ],
    "windows-after": [
        Case(WEEK, None),
        Case({**WEEK, "by_source": False}, None),
        Case({**WEEK, "by_source": True}, UNKNOWN, "the same delay as window_delay."),
        Case({**WEEK, "by_source": True, "window_delay_ms": 600_000}, FINE, "of 10 minutes or"),
    ],
    "source-clocks": [
        Case({"sources": (Source(kind="file"),), **HORIZON}, None),
        Case({"sources": (KAFKA,), "event_time": False}, None),
        Case({"sources": (kafka(partitions=1),), **HORIZON}, None),
        Case(WEEK, UNKNOWN, "--log"),
        Case({**WEEK, "by_source": True}, FINE),
        Case({**WEEK, "by_source": False}, BREAKS, "more than 1 hour behind",
             'source_partition=["topic", "partition"]'),
        Case({**WEEK, "by_source": False, "lateness_ms": 0}, BREAKS,
             "partition is behind the others", 'source_partition=["topic", "partition"]'),
        Case({**WEEK, "by_source": False, "late": "drop"}, BREAKS, 'dropped (late="drop").',
             'source_partition=["topic", "partition"]'),
        Case({**WEEK, "by_source": False, "late": None}, BREAKS,
             '(assuming late="emit", the default; otherwise give --late drop)',
             'source_partition=["topic", "partition"]'),
    ],
    "kafka-data-loss": [
        Case({"sources": (Source(kind="file"),)}, None),
        Case({"sources": (KAFKA,)}, UNKNOWN, "--source-option failOnDataLoss=true"),
        Case({"sources": (kafka(complete=True),)}, FINE),
        Case({"sources": (kafka(options={"failondataloss": "False"}),)}, BREAKS, "topic orders",
             '.option("failOnDataLoss", "true")'),
    ],
    "sink-readers": [
        Case({}, None),
        Case({"kafka_sinks": ("kafka", "audit")}, UNKNOWN, "(sink kafka, audit)",
             "isolation.level=read_committed", Takes.OUTSIDE),
    ],
    "sink-markers": [
        Case({}, None),
        Case({"kafka_sinks": ("kafka",)}, UNKNOWN, "Topic TOPIC-markers",
             f"{KAFKA_CONFIGS} TOPIC-markers --describe --all", Takes.OUTSIDE),
        Case({"kafka_sinks": ("kafka",), "sink_options": {"topic": "out"}}, UNKNOWN, "out-markers",
             f"{KAFKA_CONFIGS} out-markers --describe --all", Takes.OUTSIDE),
        Case({"kafka_sinks": ("kafka",), "sink_options": {"topic": "out", "markers": "m"}}, UNKNOWN,
             "Topic m holds", f"{KAFKA_CONFIGS} m --describe --all", Takes.OUTSIDE),
    ],
    "sink-crashes": [
        Case({}, None),
        Case({"crash_risk": ("It loses commits.", "sync = 1")}, BREAKS, "It loses", "sync = 1",
             Takes.OUTSIDE),
    ],
    "shuffle-partitions": [
        Case({"cores": 4}, UNKNOWN, "--properties"),
        Case({"state_partitions": 8}, UNKNOWN, "spark.executor.instances"),
        Case(settings(cores=4, settings={PARTITIONS: "auto"}), UNKNOWN, f"Not known: {PARTITIONS}"),
        Case(settings(cores=2), COSTS, f"{PARTITIONS} is 200, 100 for each of 2", f"{PARTITIONS}=2",
             Takes.BEGINNING),
        Case(settings(cores=2, state_partitions=9, pinned={}), COSTS, "This query keeps it",
             f"{PARTITIONS}=2", Takes.BEGINNING),
        Case(settings(cores=2, state_partitions=8, pinned={}), FINE),
        Case(settings(cores=8, state_partitions=8, pinned={}), FINE),
        Case(settings(cores=8, state_partitions=2, pinned={}), COSTS, "6 of 8 cores",
             f"{PARTITIONS}=8", Takes.BEGINNING),
        Case(settings(cores=2, state_partitions=2, pinned={}, settings={PARTITIONS: "16"}), FINE,
             f"{PARTITIONS}=16 changes nothing"),
    ],
    "batch-memory": [
        Case({}, UNKNOWN, OVERHEAD),
        Case({"settings": LOCAL, "cores": 2}, UNKNOWN, "spark.driver.memory"),
        Case(settings(settings=LOCAL, cores=2, machine_bytes=16 << 30), FINE, "15,360 MiB"),
        # (4096 - 1024) / 2 cores - 240 MiB, and a third of it.
        Case(settings(settings=LOCAL, cores=2, machine_bytes=4 << 30), COSTS, "3,072 MiB beside",
             f"max_shard_batch_bytes={432 * MIB}"),
        Case(settings(settings=YARN), COSTS, "384 MiB outside",
             f"{OVERHEAD}=624m\nmax_shard_batch_bytes={128 * MIB}"),
        Case(settings(settings={"spark.master": "k8s://https://h", "spark.executor.memory": "10g"}),
             FINE, "4,096 MiB outside"),
        Case(settings(settings={**YARN, CORES: "4", OVERHEAD: "4g"}), COSTS, "4 Python workers",
             f"max_shard_batch_bytes={261 * MIB}"),
        Case(settings(settings={**YARN, CORES: "4", OVERHEAD: "2048", PYSPARK: "2g"},
                      max_shard_batch_bytes=256 * MIB), FINE, "4,096 MiB outside"),
        Case(settings(settings={**YARN, "spark.executor.memory": "20g",
                                OVERHEAD + "Factor": "0.2"}), FINE, "4,096 MiB outside"),
        Case(settings(settings={**YARN, CORES: "4", OVERHEAD: "4g"}, batch_records_max=2_000_000,
                      shards=4), COSTS,
             f"500,000 records per shard. Memory is enough for {261 * MIB // 500_000} bytes",
             f"max_shard_batch_bytes={261 * MIB}"),
    ],
    "arrow-batches": [
        Case({}, None),
        Case(settings(row_bytes=800), COSTS,
             "800 bytes on average: 10,000 of them make a batch of 7.6 MiB",
             f"{ARROW}={2**31 - 1}"),
        Case({"row_bytes": 800}, UNKNOWN, "measure the batch", f"{ARROW}={2**31 - 1}"),
        Case(settings(row_bytes=800, settings={ARROW: str(2**31 - 1)}), FINE),
        Case(settings(row_bytes=8000), FINE),
        Case(settings(row_bytes=8000, settings={ARROW: "256m"}), FINE),
        Case(settings(row_bytes=8000, settings={ARROW: str(2**31 - 1)}), COSTS,
             "76.3 MiB for Python; without a limit of bytes, Java", f"{ARROW}={64 * MIB}"),
        Case(settings(row_bytes=8000, settings={RECORDS: "1000"}), COSTS, "1,000 of them",
             f"{ARROW}={2**31 - 1}"),
        # Large rows among small ones may lie together.
        Case(settings(row_bytes=1000), FINE, "9.5 MiB"),
        # Spark takes these for no limit.
        *(Case(settings(row_bytes=8, settings={RECORDS: none}), FINE) for none in ("0", "-1")),
        Case(settings(row_bytes=8, settings={RECORDS: "0", ARROW: str(2**31 - 1)}), COSTS,
             "without a limit of bytes", f"{ARROW}={64 * MIB}"),
        # On a cluster, all rows of a shard may be in one batch.
        Case(settings(row_bytes=800, batch_records_max=1_000_000, shards=8), FINE, "95.4 MiB"),
        Case(settings(row_bytes=800, batch_records_max=1_000_000, shards=8, settings=LOCAL), COSTS,
             "7.6 MiB", f"{ARROW}={2**31 - 1}"),
    ],
    "pyspark-memory": [
        Case({}, None),
        Case({"settings": {PYSPARK: "4g"}}, None),
        Case(settings(settings={PYSPARK: "4g"}), FINE),
        Case(settings(settings={PYSPARK: "512m"}), COSTS, "fails at once",
             f"{PYSPARK}=1152m\nmax_shard_batch_bytes={128 * MIB}"),
        Case(settings(settings={PYSPARK: "8g", CORES: "4"}), COSTS, "more than 426 MiB",
             f"max_shard_batch_bytes={426 * MIB}"),
    ],
}  # fmt: skip


QUERY_TIME = {"event_time": False}
#: Of `dedup_by_sequence`: its own rules, and those that others of the same name give way to.
SEQUENCE_CASES = {
    "checkpoint-alone": [Case(producers(), UNKNOWN, "in the checkpoint alone")],
    "expire-after": [
        Case(producers(), UNKNOWN, "by timestamps or by query time is not known"),
        Case(producers() | {"event_time": True}, FINE, "silent for 1 day, by the timestamps"),
        Case(producers() | QUERY_TIME, UNKNOWN, "before its second run. Give --log"),
        Case(producers(runs=1, batches=1) | QUERY_TIME, UNKNOWN, "before its second run"),
        Case(producers(runs=2, batches=3) | QUERY_TIME, FINE, "which passed"),
        Case(producers(runs=4, batches=4) | QUERY_TIME, COSTS, "each of the last 4 runs",
             'timestamp="COLUMN"', Takes.BEGINNING),
    ],
    "source-clocks": [
        Case(producers() | {"event_time": True}, None),
        Case(producers() | {"sources": (KAFKA,)} | QUERY_TIME, None),
        Case(producers() | {"sources": (kafka(partitions=1),)}, None),
        Case(producers() | {"sources": (KAFKA,), "event_time": True}, UNKNOWN, "check_query"),
        Case(producers() | {"sources": (KAFKA,), "event_time": True, "by_source": True}, FINE),
        Case(producers() | {"sources": (KAFKA,), "event_time": True, "by_source": False}, BREAKS,
             "before they were silent for 1 day", 'source_partition=["topic", "partition"]'),
    ],
}  # fmt: skip

ALL_CASES = [
    pytest.param(name, case, id=f"{name}-{n}-{case.level and case.level.name}")
    for name, cases in (*CASES.items(), *SEQUENCE_CASES.items()) for n, case in enumerate(cases)
]  # fmt: skip


@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_each_rule_gives_the_expected_finding(name: str, case: Case) -> None:
    found = rule(name, Facts(**case.facts))
    if case.level is None:
        assert found == []
        return
    (finding,) = found
    assert finding.level is case.level, finding
    assert case.says in finding.evidence
    assert finding.change == case.change
    assert finding.takes == (case.takes if case.change else None)


def test_every_rule_has_its_cases() -> None:
    facts = [Facts(**case.facts) for cases in CASES.values() for case in cases]
    assert {finding.rule for each in facts for finding in advise(each)} == set(CASES) == set(RULES)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", name) for name in (*RULES, *SEQUENCE_RULES))
    assert set(SEQUENCE_RULES) - set(RULES) | {"source-clocks"} == set(SEQUENCE_CASES)


def test_numbered_records_get_no_findings_about_ids_or_the_catalog() -> None:
    known = Facts(**producers(), **WEEK, catalog_local="/catalog", guarantee="at-most-once")
    found = advise(known)
    assert not {"horizon-retention", "catalog-place", "guarantee"} & {one.rule for one in found}
    assert not [one for one in found if re.search(r"\bIDs?\b|horizon|catalog", one.evidence)]


@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_findings_are_whole_sentences_with_a_remedy(name: str, case: Case) -> None:
    for finding in advise(Facts(**case.facts)):
        assert re.match(r"[A-Za-z0-9].*[.)]$", finding.evidence), finding.evidence
        assert "None" not in finding.evidence
        wants_change = finding.level in (BREAKS, COSTS)
        assert (finding.change is not None and finding.takes is not None) or not wants_change
        assert finding.change is None or finding.level is not FINE


def test_the_most_severe_findings_come_first() -> None:
    levels = [f.level for f in advise(Facts(**settings(cores=2, settings={STRICT: "false"})))]
    assert levels == sorted(levels, key=list(Level).index)
    assert levels[0] is BREAKS
    assert levels[-1] is FINE


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        # By memory 346, 773 and 176 MiB, by address space 85, 426 and 426; advice ends at 128.
        ({**YARN, OVERHEAD: "1g"}, 128 * MIB),
        ({**YARN, OVERHEAD: "2g", PYSPARK: "8g"}, 426 * MIB),
        ({"spark.master": "local[4]", "spark.driver.memory": "1g", PYSPARK: "8g"}, 176 * MIB),
    ],
)
def test_all_findings_of_a_report_advise_the_same_batch_size(
    settings: dict[str, str], share: int
) -> None:
    given = {CORES: "4", PYSPARK: "4g"} | settings
    facts = Facts(settings=given, complete=True, cores=4, machine_bytes=4 << 30)
    changes = [f.change for name in ("batch-memory", "pyspark-memory") for f in rule(name, facts)]
    assert len(changes) == 2
    for change in changes:
        assert change is not None
        assert change.splitlines()[-1] == f"max_shard_batch_bytes={share}"


@pytest.mark.parametrize(
    ("text", "unit", "size"),
    [("4g", "b", 4 << 30), ("1024", "b", 1024), ("512", "m", 512 << 20), ("1.5g", "b", 3 << 29),
     ("64MiB", "b", 64 << 20), ("2147483647b", "b", (1 << 31) - 1), ("8 gb", "b", 8 << 30),
     ("much", "b", None), ("", "b", None), (None, "b", None)],
)  # fmt: skip
def test_sizes_are_read_in_sparks_spelling(text: str | None, unit: str, size: int | None) -> None:
    assert size_bytes(text, unit=unit) == size


def test_only_whole_numbers_are_read() -> None:
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
def test_the_number_of_cores_follows_from_the_settings(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], cores: int | None
) -> None:
    monkeypatch.setattr(machine, "machine_cores", lambda: 16)
    assert cores_of(given) == cores
