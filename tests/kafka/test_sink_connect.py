"""The sink through Spark Connect, as a format and in `foreachBatch`."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kafka.records import make_topic, read_topic
from tests.support.processes import run_python

CODE = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import dedup
from dedup.errors import cause
from dedup import DedupListener, dedup_by_id
from dedup.sinks import kafka_sink
from tests.support.waiting import wait_until

servers, folder = sys.argv[1:]
spark = (SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", "2").getOrCreate())
dedup.register(spark)
heard = []
listener = DedupListener(on_sink=lambda one: heard.append((one.batch_id, one.rows)))
spark.streams.addListener(listener)
rows = (spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    .parquet(f"{folder}/input"))

def run(writer, checkpoint):
    query = writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
    assert query.awaitTermination(120)
    return query

once = rows.writeStream.format("dedup_kafka").option("kafka.bootstrap.servers", servers)
run(once.option("topic", "connect-format"), f"{folder}/format")
sink = kafka_sink(servers, topic="connect-function", checkpoint=f"{folder}/function")
unique = rows.transform(dedup_by_id("key", horizon="1 day", catalog=f"{folder}/catalog"))
run(unique.writeStream.foreachBatch(sink), f"{folder}/function")
for kind in ("format", "function"):
    for name in ("2", ".2.crc"):
        Path(folder, kind, "commits", name).unlink()
run(once.option("topic", "connect-format"), f"{folder}/format")
again = kafka_sink(servers, topic="connect-function", checkpoint=f"{folder}/function")
run(unique.writeStream.foreachBatch(again), f"{folder}/function")

wait_until(lambda: len(heard) == 8)
spark.streams.removeListener(listener)

def refusal(writer, checkpoint):
    try:
        run(writer, checkpoint)
    except Exception as error:
        return str(cause(error) or error)

print(json.dumps({
    "module": type(spark).__module__,
    "heard": heard,
    "topic": refusal(once.option("topic", "connect-none"), f"{folder}/none"),
    "checkpoint": refusal(rows.writeStream.foreachBatch(again), f"{folder}/another"),
}))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("grpc") is None, reason="needs grpcio (pip install grpcio)")
def test_a_spark_connect_session_writes_each_record_once(broker: str, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    for n in range(3):
        keys = [str(key) for key in range(50 * n, 50 * (n + 1))]
        pq.write_table(pa.table({"key": keys, "value": keys}), tmp_path / "input" / f"{n}.parquet")
    for name in ("connect-format", "connect-function"):
        make_topic(broker, name, 2)
    told = run_python(CODE, broker, tmp_path)
    assert "connect" in told["module"]
    # The listener runs beside the server, whose processes keep the figures.
    assert sorted(told["heard"]) == [[0, 50]] * 2 + [[1, 50]] * 2 + [[2, 50]] * 4
    assert "Topic 'connect-none' does not exist" in told["topic"]
    assert "is not the one that the query of" in told["checkpoint"]
    everything = Counter(range(150))
    for name in ("connect-format", "connect-function"):
        assert Counter(int(r.key or b"-1") for r in read_topic(broker, name)) == everything
        query = json.loads((tmp_path / name.partition("-")[2] / "metadata").read_text())["id"]
        keys = {json.loads(r.key or b"")[1] for r in read_topic(broker, f"{name}-markers")}
        assert keys == {query}
