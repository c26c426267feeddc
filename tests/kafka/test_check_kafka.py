"""`check_query` asks real brokers how long they keep a topic, and how many partitions it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import check_query, dedup_by_id, dedup_by_sequence, kafka_records, record_id
from dedup.errors import ConfigError
from dedup.tools.check import kafka_topics
from dedup.tools.check.findings import Finding
from tests.kafka.records import make_topic

_DAY_MS = 86_400_000


def test_check_query_takes_retention_and_partitions_from_the_broker(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(broker, "day", 3, retention_ms=_DAY_MS)
    make_topic(broker, "week", 3, retention_ms=7 * _DAY_MS)
    make_topic(broker, "ever", 3, retention_ms=-1)
    make_topic(broker, "compacted", 1, retention_ms=1000, cleanup_policy="compact")

    def findings(address: str = broker, **options: str) -> dict[str, Finding]:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
        operator = dedup_by_id(
            "key", horizon="2 days", timestamp="timestamp", catalog=str(tmp_path / "catalog")
        )
        stream = reader.options(**options).load()
        return {finding.rule: finding for finding in check_query(stream, operator)}

    day, both = findings(subscribe="day"), findings(subscribe="day,week")
    assert day["horizon-retention"].level == "fine"
    assert "keeps topic day for 1 day" in day["horizon-retention"].evidence
    assert day["source-clocks"].level == "breaks the guarantee"
    assert both["horizon-retention"].level == "breaks the guarantee"
    assert "for 7 days" in both["horizon-retention"].evidence
    assert both["horizon-retention"].change == 'horizon="7 days"'
    pattern = findings(subscribePattern="(day|wee).?")
    assert "keeps topics day, week for 7 days" in pattern["horizon-retention"].evidence
    for name in ("ever", "compacted"):
        found = findings(subscribe=name)["horizon-retention"]
        assert found.level == "breaks the guarantee"
        assert "for ever" in found.evidence
    # One partition has one clock.
    for single in (findings(assign='{"week": [0]}'), findings(subscribe="compacted")):
        assert "source-clocks" not in single
    # Not before: a busy broker may need longer.
    monkeypatch.setattr(kafka_topics, "TIMEOUT_MS", 1000)
    for untold in (
        findings(subscribePattern="da"),
        findings(subscribe="nowhere"),
        findings("127.0.0.1:9", subscribe="day"),
    ):
        assert untold["horizon-retention"].level == "cannot be told"


def test_two_clusters_with_one_topic_name_need_a_column_that_distinguishes_them(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Options tell clusters apart. Here one broker has two addresses and passes for two."""
    for name in ("orders", "payments"):
        make_topic(broker, name, 1)
    port = broker.rpartition(":")[2]
    here, there = f"127.0.0.1:{port}", f"localhost:{port}"

    def read(servers: str, topics: str = "orders", **given: Any) -> DataFrame:
        return kafka_records(spark, servers, topics=topics, **given)

    def refused(stream: DataFrame, id: Any, by: Any = (), *, sequence: bool = False) -> str | None:  # noqa: A002
        time = next(name for name in stream.columns if name.endswith("timestamp"))
        options = {"timestamp": time, "source_partition": by}
        operator: Any = (
            dedup_by_sequence("key", "offset", expire_after="1 day", partition=id, **options)
            if sequence
            else dedup_by_id(id, horizon="1 day", catalog=str(tmp_path / "catalog"), **options)
        )
        try:
            stream.transform(operator)
        except ConfigError as error:
            return str(error)
        return None

    place, clock = ["topic", "partition", "offset"], ["topic", "partition"]
    one, other = read(here, record_id="offset"), read(there, record_id="offset")
    both = one.union(other)
    ids = ["record_id", F.col("record_id"), place, record_id.from_kafka(), ["record_id", "offset"]]
    for given in (*ids, record_id.from_columns(*place), F.concat_ws("-", *place)):
        told = refused(both, given)
        assert told is not None
        assert f"two Kafka clusters ({here} and {there}), and id= does not" in told
        assert "withColumn('cluster', F.lit('one'))" in told
    assert "source_partition= does not distinguish" in str(refused(both, "key", clock))
    assert "partition= does not distinguish" in str(refused(both, clock, sequence=True))
    prefixed = [read(server, metadata="k_") for server in (here, there)]
    assert refused(prefixed[0].union(prefixed[1]), "k_key", ["k_topic", "k_partition"]) is not None
    assert refused(both, "key", "key") is None
    named = one.withColumn("cluster", F.lit("one")).union(other.withColumn("cluster", F.lit("two")))
    assert refused(named, ["cluster", "record_id"], ["cluster", *clock]) is None
    assert refused(named, record_id.from_columns("cluster", *place)) is None
    assert refused(one, "record_id", clock) is None
    same = one.union(read(f"{there.upper()}, {here}", record_id="offset"))
    assert refused(same, "record_id", clock) is None
    elsewhere = one.union(read(there, "payments", record_id="offset"))
    assert refused(elsewhere, "record_id", clock) is None
    by_pattern = kafka_records(spark, there, pattern="pay.*", record_id="offset")
    assert refused(one.union(by_pattern), "record_id") is not None
