"""The snippets of the README and of the sink's page that need a broker run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import dedup
from tests.kafka.broker import connector_jars
from tests.kafka.records import delete_topic, make_topic, read_topic, send
from tests.support.processes import python

PACKAGE = Path(dedup.__file__).parent
_BEFORE = "from pyspark.sql import SparkSession\nfrom dedup import dedup_by_id\n"
_BETWEEN = """
query.processAllAvailable()
query.stop()
records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "localhost:9092")
records = records.option("subscribe", "orders").option("startingOffsets", "earliest").load()
records = records.selectExpr("key", "value")
"""
_AFTER = """
for each in (query, again):
    each.processAllAvailable()
    each.stop()
"""


@pytest.mark.timeout(400)
def test_python(broker: str, tmp_path: Path) -> None:
    for name in ("orders", "orders-once", "orders-again"):
        make_topic(broker, name, 2)
    sent = [{"order_id": f"o{n % 3}", "amount": 1.5} for n in range(6)]
    send(broker, "orders", [(one["order_id"].encode(), json.dumps(one).encode()) for one in sent])
    [first] = [part for part in snippets(PACKAGE.parent / "README.md") if "localhost" in part]
    page = "".join(snippets(PACKAGE / "kafka" / "sink" / "README.md"))
    program = _BEFORE + first + _BETWEEN + page + _AFTER
    for given, real in (
        ("localhost:9092", broker),
        ('config("spark.jars", connector_jars())', f'config("spark.jars", {connector_jars()!r})'),
    ):
        assert given in program
        program = program.replace(given, real)
    done = python("-c", program, cwd=tmp_path, env={"PYSPARK_PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr[-3000:]
    once = [json.loads(record.value or b"") for record in read_topic(broker, "orders-once")]
    # The README's query, which de-duplicates, then the page's, which does not.
    assert len(once) == 3 + 6
    assert {one["order_id"] for one in once} == {"o0", "o1", "o2"}
    assert len(read_topic(broker, "orders-again")) == 6
    delete_topic(broker, "orders")  # other pages use the name as well


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
