"""The operator through Spark Connect: nothing in it needs the JVM of a classic session."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.support.processes import run_python

JARS = Path(pyspark.__file__).parent / "jars"

CODE = """
import json, sys, time
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
from dedup import DedupListener, dedup_by_id, dedup_by_sequence, record_id, split
from dedup.errors import ConfigError, cause
from dedup.spark.observations import from_progress
from tests.spark.definitions import NESTED, differences, mistaken
from tests.support.spark_query import SCHEMA, Query, seeded

folder = Path(sys.argv[1])
spark = (SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF").getOrCreate())
spark.conf.set("spark.sql.shuffle.partitions", "2")
spark.conf.set("spark.sql.session.timeZone", "UTC")
told = {"module": type(spark).__module__}

query = Query(spark, folder, {"timestamp": "ts", "horizon": "1 hour", "lateness": "1 hour",
                              "verdict": "verdict", "state_budget_bytes": 1 << 14,
                              "order_by": F.col("n") + 0, "source_partition": "src"})

def run():
    writer = query.result().writeStream.format("parquet").trigger(availableNow=True)
    running = writer.option("checkpointLocation", str(query.checkpoint)).start(str(folder / "out"))
    try:
        assert running.awaitTermination(120)
    finally:
        global stopped
        stopped = running.exception()
        assert stopped is not None or cause(stopped) is None
    found = [from_progress(p) for p in running.recentProgress]
    return [[m.batch_id, m.records_in, m.unique, m.duplicate, m.segments_written > 0]
            for m in found if m]

heard = []
listener = DedupListener(lambda m: heard.append([m.batch_id, m.records_in]))
spark.streams.addListener(listener)
for table in seeded(batches=3, rows=900, ids=1200, step_s=60, spread_s=60):
    query.add_table(table)
told["stream"] = run()
query.add("new.id@200", "new.id@201")
told["restart"] = run()
deadline = time.monotonic() + 60
while len(heard) < 4 and time.monotonic() < deadline:
    time.sleep(0.1)
spark.streams.removeListener(listener)
told["heard"] = heard
rows = spark.read.parquet(str(folder / "out")).groupBy("verdict").count().collect()
told["verdicts"] = {row["verdict"]: row["count"] for row in rows}
source = spark.read.schema(SCHEMA).parquet(str(query.input))
told["distinct"] = source.select("id").distinct().count()
told["rows"] = source.count()
recipe = record_id.from_columns("id")
told["made"] = source.select(recipe.of(source)).distinct().count()
for given in ("id", F.col("id"), ["id"], F.lower("id"), recipe):
    kept = source.transform(dedup_by_id(given, horizon="1 hour", timestamp="ts"))
    told.setdefault("batch", []).append(kept.count())
numbered = dedup_by_sequence(F.lit("p"), F.col("n"), expire_after="1 hour", verdict="v")
told["numbers"] = source.select("n").distinct().count()
twice = source.union(source).transform(numbered).groupBy("v").count()
told["numbered"] = {row["v"]: row["count"] for row in twice.collect()}
dotted = source.withColumnRenamed("id", "user.id")
told["dotted"] = dotted.transform(dedup_by_id("user.id", horizon="1 hour")).count()
told["columns"] = dotted.transform(dedup_by_id("user.id", horizon="1 hour")).columns

def refusal(frame, given="id", **options):
    try:
        frame.transform(dedup_by_id(given, horizon="1 hour", **options)).schema
    except ConfigError as error:
        return str(error)

def what_stopped(act):
    try:
        act()
    except Exception as error:
        ours = cause(error)
        return [type(error).__module__.startswith("dedup"), type(ours).__name__, str(ours)]

nulls = source.withColumn("id", F.lit(None).cast("string"))
failing = dedup_by_id("id", horizon="1 hour", null_ids="error")
query.options["null_ids"] = "error"
query.add("-@300")
told["causes"] = [
    what_stopped(nulls.transform(failing).count),
    what_stopped(run),
]
told["causes"].append([False, *[f(cause(stopped)) for f in (lambda e: type(e).__name__, str)]])
query.options["null_ids"] = "emit"

def in_foreach_batch():
    writer = query.result().writeStream.foreachBatch(lambda rows, batch: rows.count())
    place = str(folder / "foreach")
    running = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
    running.awaitTermination(120)

told["foreach"] = what_stopped(in_foreach_batch)
try:
    split(query.result(), unique=print)
except ConfigError as error:
    told["split"] = str(error)
stream = query.source()
catalog = {"catalog": str(folder / "other")}
told["refusals"] = [
    refusal(source, "idd"),
    refusal(source, F.col("nope")),
    refusal(source, timestamp="id"),
    refusal(source.withColumn("x", F.make_interval(F.lit(1)))),
    refusal(stream),
    refusal(stream.withWatermark("ts", "1 hour"), **catalog),
    refusal(stream.transform(dedup_by_id("id", horizon="1 hour", **catalog)), "n", **catalog),
    refusal(stream, record_id.from_columns("id", F.current_date()), **catalog),
    refusal(stream, order_by=F.explode(F.array("n", "at")), **catalog),
    refusal(source, F.max("id")),
    refusal(source, order_by=F.rand()),
    refusal(source, order_by=F.udf(lambda n: n, "long").asNondeterministic()("n")),
]
told["definitions"] = differences(source)
told["definitions"] += mistaken(spark.createDataFrame([], NESTED))
spark.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
told["refusals"].append(refusal(stream, **catalog))
print(json.dumps(told))
spark.stop()
"""


def why_not() -> str | None:
    missing = [
        name
        for name in ("grpc", "grpc_status", "google.rpc", "zstandard")
        if find_spec(name) is None
    ]
    if missing:
        return f"Spark Connect needs {', '.join(missing)}: pip install 'pyspark[connect]'"
    if not any(JARS.glob("spark-connect_*.jar")):
        return f"{JARS} has no spark-connect jar"
    return None


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.slow
def test_stream_and_batch_through_connect(tmp_path: Path) -> None:
    told: dict[str, Any] = run_python(CODE, tmp_path, timeout_s=280)
    assert told["module"].startswith("pyspark.sql.connect")
    assert [batch[:2] for batch in told["stream"]] == [[0, 900], [1, 900], [2, 900]]
    assert all(n == unique + duplicate for _, n, unique, duplicate, _ in told["stream"])
    assert any(wrote for *_, wrote in told["stream"])
    assert [batch[:4] for batch in told["restart"]] == [[3, 2, 1, 1]]
    assert told["heard"] == [batch[:2] for batch in told["stream"] + told["restart"]]
    assert told["verdicts"] == {
        "unique": told["distinct"],
        "duplicate": told["rows"] - told["distinct"],
    }
    assert told["batch"] == [told["distinct"]] * 5
    assert told["made"] == told["distinct"]
    assert told["numbered"] == {
        "accept": told["numbers"],
        "duplicate": 2 * told["rows"] - told["numbers"],
    }
    assert told["dotted"] == told["distinct"]
    assert told["definitions"] == [], "as in a classic session"
    assert told["columns"] == ["user.id", "at", "ts", "src", "n"]
    for is_ours, kind, text in told["causes"]:
        assert (is_ours, kind) == (False, "DataError")
        assert 'records have a null ID (id) and null_ids="error"' in text.split("\n")[0]
        assert text.split("\n")[1:] == ["Remedies: dedup remedies bad-records"]
    assert len(told["causes"]) == 3
    assert told["foreach"][1] == "ConfigError"
    assert "does not know its query and micro-batch" in told["foreach"][2]
    assert "dedup_kafka, dedup_postgres, dedup_files" in told["foreach"][2]
    assert "split works on classic Spark alone" in told["split"]
    for refusal, message in zip(
        told["refusals"],
        (
            "id='idd': there is no such column. Did you mean 'id'",
            "id cannot be resolved against the columns",
            "timestamp column 'id' is string",
            "Column 'x' is interval, which Spark cannot pass to Python",
            "A stream needs catalog=",
            "withWatermark('ts', ...) stands before dedup_by_id",
            "This query already has a dedup_by_id",
            "id='record_id 1(id, current_date())' is made of the current time (current_date)",
            "adds a step to Spark's plan (Generate)",
            "adds a step to Spark's plan (Aggregate)",
            "computes a record again (rand)",
            "computes a record again (<lambda>)",
            "spark.sql.streaming.unsupportedOperationCheck=false",
        ),
        strict=True,
    ):
        assert message in str(refusal)
        assert "\tat " not in refusal, "no stack of the JVM's"
