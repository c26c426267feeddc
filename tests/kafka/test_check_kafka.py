"""`check_query` asks real brokers how long they keep a topic, and how many partitions it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dedup import check_query, dedup_by_id
from dedup.checks.findings import Finding
from dedup.spark.driver import kafka_topics
from tests.kafka.records import make_topic

_DAY_MS = 86_400_000


def test_retention_and_partitions_are_those_of_the_broker(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(broker, "day", 3, retention_ms=_DAY_MS)
    make_topic(broker, "week", 3, retention_ms=7 * _DAY_MS)
    make_topic(broker, "ever", 3, retention_ms=-1)
    make_topic(broker, "compacted", 3, retention_ms=1000, cleanup_policy="compact")

    def findings(address: str = broker, **options: str) -> dict[str, Finding]:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
        operator = dedup_by_id(
            "key", horizon="2 days", timestamp="timestamp", catalog=str(tmp_path / "catalog")
        )
        stream = reader.options(**options).load()
        return {finding.rule: finding for finding in check_query(stream, operator)}

    def partitions(found: dict[str, Finding]) -> str:
        return found["kafka-partitions"].evidence

    day, both = findings(subscribe="day"), findings(subscribe="day,week")
    assert day["horizon-retention"].level == "fine"
    assert "keeps topic day for 1 day" in day["horizon-retention"].evidence
    assert "3 tasks read for 2 cores" in partitions(day)
    assert both["horizon-retention"].level == "breaks the guarantee"
    assert "for 7 days" in both["horizon-retention"].evidence
    assert both["horizon-retention"].change == 'horizon="7 days"'
    assert "6 tasks read for 2 cores" in partitions(both)
    pattern = findings(subscribePattern="(day|wee).?")
    assert "keeps topics day, week for 7 days" in pattern["horizon-retention"].evidence
    assert "6 tasks read for 2 cores" in partitions(pattern)
    for name in ("ever", "compacted"):
        found = findings(subscribe=name)["horizon-retention"]
        assert found.level == "breaks the guarantee"
        assert "for ever" in found.evidence
    assert "1 partitions are read" in partitions(findings(assign='{"week": [0]}'))
    # Not before: a busy broker may need longer.
    monkeypatch.setattr(kafka_topics, "TIMEOUT_MS", 1000)
    for untold in (
        findings(subscribePattern="da"),
        findings(subscribe="nowhere"),
        findings("127.0.0.1:9", subscribe="day"),
    ):
        assert untold["horizon-retention"].level == "cannot be told"
        assert untold["kafka-partitions"].level == "cannot be told"
