"""`check_query` asks real brokers how long they keep a topic, and how many partitions it has."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.kafka.broker import connector_jars
from tests.support.processes import python

#: Makes topics of 3 partitions, then prints what is found of each stream.
_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from dedup import check_query, dedup_by_id

address, jars, catalog = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.jars", jars)
    .config("spark.sql.shuffle.partitions", 2)
    .getOrCreate()
)
jvm = spark._jvm
settings = jvm.java.util.Properties()
settings.setProperty("bootstrap.servers", address)
admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
made = jvm.java.util.ArrayList()
for name, config in {
    "day": {"retention.ms": "86400000"},
    "week": {"retention.ms": "604800000"},
    "ever": {"retention.ms": "-1"},
    "compacted": {"retention.ms": "1000", "cleanup.policy": "compact"},
}.items():
    topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, 3, 1)
    values = jvm.java.util.HashMap()
    for key, value in config.items():
        values.put(key, value)
    made.add(topic.configs(values))
admin.createTopics(made).all().get()

found = {}
for name, options in {
    "day": {"subscribe": "day"},
    "both": {"subscribe": "day,week"},
    "ever": {"subscribe": "ever"},
    "compacted": {"subscribe": "compacted"},
    "assigned": {"assign": '{"week": [0]}'},
    "pattern": {"subscribePattern": "(day|wee).?"},
    "unmatched": {"subscribePattern": "da"},
    "missing": {"subscribe": "nowhere"},
    "silent": {"subscribe": "day", "kafka.bootstrap.servers": "127.0.0.1:9"},
}.items():
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    operator = dedup_by_id("key", horizon="2 days", timestamp="timestamp", catalog=catalog)
    findings = check_query(reader.options(**options).load(), operator)
    found[name] = {finding.rule: finding.to_json() for finding in findings}
print(json.dumps(found))
"""


def test_retention_and_partitions_are_those_of_the_broker(broker: str, tmp_path: Path) -> None:
    code = ("-c", _PROGRAM, broker, connector_jars(), tmp_path / "catalog")
    done = python(*code, env={"PYSPARK_PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])

    def retention(name: str) -> tuple[str, str]:
        finding = found[name]["horizon-retention"]
        return finding["level"], finding["evidence"]

    assert retention("day")[0] == "fine"
    assert "keeps topic day for 1 day" in retention("day")[1]
    assert retention("both")[0] == "breaks the guarantee"
    assert "for 7 days" in retention("both")[1]
    assert "keeps topics day, week for 7 days" in retention("pattern")[1]
    assert found["both"]["horizon-retention"]["change"] == 'horizon="7 days"'
    for name in ("ever", "compacted"):
        assert retention(name)[0] == "breaks the guarantee"
        assert "for ever" in retention(name)[1]
    assert "3 tasks read for 2 cores" in found["day"]["kafka-partitions"]["evidence"]
    assert "6 tasks read for 2 cores" in found["both"]["kafka-partitions"]["evidence"]
    assert "6 tasks read for 2 cores" in found["pattern"]["kafka-partitions"]["evidence"]
    assert "1 partitions are read" in found["assigned"]["kafka-partitions"]["evidence"]
    for name in ("unmatched", "missing", "silent"):
        assert retention(name)[0] == "cannot be told"
        assert found[name]["kafka-partitions"]["level"] == "cannot be told"
