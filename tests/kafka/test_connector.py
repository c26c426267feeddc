"""`format("kafka")` comes to a session that runs, with the jars that the other tests start with."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from dedup.errors import ConfigError
from dedup.sources.kafka import connector, kafka_jars
from tests.kafka.broker import CONNECTOR, connector_jars, fetch_jars
from tests.kafka.records import make_topic, send
from tests.support.processes import run_python

_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from dedup.sources.kafka import add_kafka_connector, kafka_packages
from dedup.sources.kafka.connector import has_connector

address, topic, ivy, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.jars.ivy", ivy).getOrCreate()
before = has_connector(spark)
add_kafka_connector(spark)
jars = len(spark.sql("LIST JARS").collect())
add_kafka_connector(spark)
options = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}
stream = spark.readStream.format("kafka").options(**options).load()
query = (
    stream.selectExpr("CAST(value AS STRING)").writeStream.format("memory").queryName("seen")
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
print(json.dumps({
    "before": before,
    "after": has_connector(spark),
    "jars": jars,
    "again": len(spark.sql("LIST JARS").collect()),
    "seen": sorted(row.value for row in spark.table("seen").collect()),
    "packages": kafka_packages(spark),
}))
"""


@pytest.mark.slow
def test_the_connector_is_added_to_a_session_once(broker: str, tmp_path: Path) -> None:
    topic = make_topic(broker, "connector", partitions=2)
    send(broker, topic, [(None, b"a"), (None, b"b")])
    found = run_python(_PROGRAM, broker, topic, fetch_jars().parent, tmp_path / "checkpoint")
    assert not found["before"]
    assert found["after"]
    assert found["jars"] == found["again"] == 4
    assert found["seen"] == ["a", "b"]
    assert tuple(found["packages"]) == CONNECTOR


def test_jars_are_fetched_once_for_later_sessions(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Path(file) for file in kafka_jars(tmp_path).split(",")]
    assert [file.name for file in found] == [Path(f).name for f in connector_jars().split(",")]
    assert all(zipfile.is_zipfile(file) for file in found)
    assert sorted(tmp_path.iterdir()) == sorted(found)
    monkeypatch.setattr(connector, "_fetch", None)
    kafka_jars(tmp_path)


def test_a_jar_that_cannot_be_found_is_named(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = ("org.apache.kafka:kafka-clients:0.0.0",)
    monkeypatch.setattr(connector, "kafka_packages", lambda: none)
    with pytest.raises(ConfigError, match=r"kafka-clients;0\.0\.0: not found"):
        kafka_jars(tmp_path)
    assert list(tmp_path.iterdir()) == []
