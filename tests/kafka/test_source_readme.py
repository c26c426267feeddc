"""Every snippet of the source's page runs, in the order in which a reader meets them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import dedup
from tests.kafka.broker import connector_jars
from tests.kafka.records import delete_topic, make_topic, read_topic, send
from tests.support.processes import python
from tests.support.schema_registry import running_registry

PAGE = Path(dedup.__file__).parent / "kafka" / "source" / "README.md"
_UNTIL_SEEN = """
query.processAllAvailable()
print("poison", poison_counts(query.lastProgress) or poison_counts(query.recentProgress[0]))
query.stop()
dead = quarantined_records(spark, "orders/quarantine").collect()
print("dead", [(row.offset, bytes(row.value)) for row in dead])
letters.processAllAvailable()
letters.stop()
print("payments", payments.columns[:2])
"""
SCHEMA = {"type": "record", "name": "P", "fields": [{"name": "id", "type": "string"},
                                                    {"name": "cents", "type": "long"}]}  # fmt: skip


def test_python(broker: str, tmp_path: Path) -> None:
    orders = [{"order_id": f"o{n % 3}", "amount": 1.5, "placed_at": None} for n in range(6)]
    for name in ("orders", "payments", "dead-letters"):
        make_topic(broker, name, 2)
    send(broker, "orders", [(None, json.dumps(one).encode()) for one in orders])
    send(broker, "orders", [{"value": b"{broken", "partition": 1}])
    with running_registry() as registry:
        registry.require("reader", "secret")
        registry.add(1, json.dumps(SCHEMA), "payments-value")
        program = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
        for given, real in [
            ("localhost:9092", broker),
            ("http://localhost:8081", registry.url),
            # What it would fetch is there.
            ("connector_jars())", f"{connector_jars()!r})"),
        ]:
            assert given in program
            program = program.replace(given, real)
        done = python(
            "-c", program + _UNTIL_SEEN, cwd=tmp_path, env={"PYSPARK_PYTHON": sys.executable}
        )
    assert done.returncode == 0, done.stderr[-3000:]
    ids = re.findall(r"\| *(o\d)\| *1\.50", done.stdout)
    assert sorted(ids) == ["o0", "o1", "o2"], done.stdout[-3000:]
    assert "poison {'orders': {1: 1}}" in done.stdout
    assert "b'{broken'" in done.stdout
    assert "payments ['id', 'cents']" in done.stdout
    assert [record.value for record in read_topic(broker, "dead-letters")] == [b"{broken"]
    delete_topic(broker, "orders")  # other pages use the name as well
