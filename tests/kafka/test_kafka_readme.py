"""The snippets that need a broker run, page by page as a reader meets them, in one program."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.kafka.broker import connector_jars
from tests.kafka.records import make_topic, read_topic, send
from tests.support.pages import snippets
from tests.support.processes import python
from tests.support.schema_registry import running_registry

_BEFORE = "from pyspark.sql import SparkSession\nfrom dedup import dedup_by_id\n"
_BETWEEN = """
query.processAllAvailable()
query.stop()
records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "localhost:9092")
records = records.option("subscribe", "orders").option("startingOffsets", "earliest").load()
records = records.selectExpr("key", "value")
"""
_AFTER = """
for each in (query, again, counting):
    each.processAllAvailable()
    each.stop()
"""
#: The next page stands alone.
_NEXT_PAGE = "\ndel SparkSession, dedup, dedup_by_id, spark, records, query\n"
_UNTIL_SEEN = """
query.processAllAvailable()
print("poison", poison_counts(query.lastProgress) or poison_counts(query.recentProgress[0]))
query.stop()
dead = quarantined_records(spark, "orders/quarantine").collect()
print("dead", [(row.offset, bytes(row.value)) for row in dead])
letters.processAllAvailable()
letters.stop()
print("payments", payments.columns[:2])
print("readings", readings.columns[:3])
"""
SCHEMA = {"type": "record", "name": "P", "fields": [{"name": "id", "type": "string"},
                                                    {"name": "cents", "type": "long"}]}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_program_of_the_pages_runs(broker: str, tmp_path: Path) -> None:
    """It joins the examples of the sinks' README, of the sink's page and of the source's page."""
    made = "orders", "orders-once", "orders-again", "word-counts"
    for name in (*made, "sales", "payments", "readings", "dead-letters"):
        make_topic(broker, name, 2)
    lines = [
        json.dumps({"order_id": f"o{n % 3}", "amount": 1.5, "placed_at": None}).encode()
        for n in range(6)
    ]
    send(broker, "orders", [(b"o%d" % (n % 3), line) for n, line in enumerate(lines)])
    send(broker, "sales", [(None, line) for line in lines])
    send(broker, "sales", [{"value": b"{broken", "partition": 1}])
    [readme] = snippets("sinks/README.md")
    sink = "".join(snippets("sinks/kafka/README.md"))
    source = "".join(snippets("sources/kafka/README.md")) + _UNTIL_SEEN
    # The program's own topic and folders.
    pages = _BEFORE + readme + _BETWEEN + sink + _AFTER
    program = pages + _NEXT_PAGE + source.replace("orders", "sales")
    with running_registry() as registry:
        registry.require("reader", "secret")
        registry.add(1, json.dumps(SCHEMA), "payments-value")
        for given, real in [
            ("localhost:9092", broker),
            ("http://localhost:8081", registry.url),
            # What it would fetch is there.
            ("kafka_jars())", f"{connector_jars()!r})"),
        ]:
            assert given in program
            program = program.replace(given, real)
        ran = python("-c", program, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    once = [json.loads(record.value or b"") for record in read_topic(broker, "orders-once")]
    # The README's query, which de-duplicates, then the page's, which does not.
    assert len(once) == 3 + 6
    assert {one["order_id"] for one in once} == {"o0", "o1", "o2"}
    assert len(read_topic(broker, "orders-again")) == 6
    assert (b"1.5,", b"6") in {(one.key, one.value) for one in read_topic(broker, "word-counts")}
    ids = re.findall(r"\| *(o\d)\| *1\.50", ran.stdout)
    assert sorted(ids) == ["o0", "o1", "o2"], ran.stdout[-3000:]
    assert "poison {'sales': {1: 1}}" in ran.stdout
    assert "b'{broken'" in ran.stdout
    assert "payments ['id', 'cents']" in ran.stdout
    assert [record.value for record in read_topic(broker, "dead-letters")] == [b"{broken"]
