"""The operator through Spark Connect: nothing in it needs the JVM of a classic session."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyarrow import dataset
from pyspark.errors import PySparkPicklingError, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import BatchMetrics, DedupListener, dedup_by_id, dedup_by_sequence, record_id, split
from dedup.errors import ConfigError, DataError, cause
from dedup.sinks import files_sink, once_per_batch, stable
from dedup.spark.job_tag import JobTag
from dedup.testing import faults
from dedup.tools import live
from tests.spark.definitions import NESTED, differences, mistaken
from tests.support.processes import run_python
from tests.support.spark_query import SCHEMA, Query, finish, seeded
from tests.support.waiting import wait_until

JARS = Path(pyspark.__file__).parent / "jars"


def why_not() -> str | None:
    modules = ("grpc", "grpc_status", "google.rpc", "zstandard")
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        return f"Spark Connect needs {', '.join(missing)}: pip install 'pyspark[connect]'"
    if not any(JARS.glob("spark-connect_*.jar")):
        return f"{JARS} has no spark-connect jar"
    return None


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.slow
def test_stream_and_batch_run_through_spark_connect(tmp_path: Path) -> None:
    """The process has no classic session."""
    code = (
        "import sys\nfrom tests.spark.test_operator_connect import through_connect\n"
        "through_connect(sys.argv[1])\nprint('true')"
    )
    armed = tmp_path / "faults"
    armed.mkdir()
    assert run_python(code, tmp_path, timeout_s=280, **{faults.VARIABLE: str(armed)})


def through_connect(place: str) -> None:
    # Two attempts a task, because tests make tasks fail once.
    builder = SparkSession.builder.remote("local[2,2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "OFF").getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    query = Query(
        spark, Path(place), {"timestamp": "ts", "horizon": "1 hour", "lateness": "1 hour",
                             "verdict": "verdict", "state_budget_bytes": 1 << 14,
                             "order_by": F.col("n") + 0, "source_partition": "src"},
    )  # fmt: skip
    streams(query)
    source = query.spark.read.schema(SCHEMA).parquet(str(query.input))
    batches(source)
    errors(query, source)
    sinks_that_are_killed(spark, Path(place, "sinks"), Path(place, "faults"))
    tags_of_other_micro_batches(spark, Path(place, "tags"))
    refusals(query, source)
    assert differences(source) == [], "as in a classic session"
    assert mistaken(spark.createDataFrame([], NESTED)) == []
    spark.stop()


def run(query: Query) -> list[BatchMetrics]:
    running = query.writer().format("parquet").start(str(query.folder / "out"))
    measured = finish(running)
    with redirect_stdout(StringIO()) as printed:
        live(running)
    *lines, end = printed.getvalue().splitlines()
    starts = [f": batch {m.batch_id}: {m.records_in} in, {m.unique} unique," for m in measured]
    assert all(start in line for start, line in zip(starts, lines, strict=True))
    assert end.endswith("STOPPED: the run has ended")
    return measured


def streams(query: Query) -> None:
    heard: list[BatchMetrics] = []
    listener = DedupListener(heard.append)
    query.spark.streams.addListener(listener)
    for table in seeded(batches=3, rows=900, ids=1200, step_s=60, spread_s=60):
        query.add_table(table)
    first = run(query)
    assert [(m.batch_id, m.records_in) for m in first] == [(0, 900), (1, 900), (2, 900)]
    assert all(m.records_in == m.unique + m.duplicate for m in first)
    assert any(m.segments_written for m in first)
    (again,) = run(query.add("new.id@200", "new.id@201"))
    assert (again.batch_id, again.records_in, again.unique, again.duplicate) == (3, 2, 1, 1)
    assert wait_until(lambda: len(heard) == 4, 60)
    query.spark.streams.removeListener(listener)
    assert [m.batch_id for m in heard] == [0, 1, 2, 3]


def batches(source: DataFrame) -> None:
    ids, rows = source.select("id").distinct().count(), source.count()
    recipe = record_id.from_columns("id")
    assert source.select(recipe.of(source)).distinct().count() == ids
    for given in ("id", F.col("id"), ["id"], F.lower("id"), recipe):
        assert source.transform(dedup_by_id(given, horizon="1 hour", timestamp="ts")).count() == ids
    numbered = dedup_by_sequence(F.lit("p"), F.col("n"), expire_after="1 hour", verdict="v")
    numbers = source.select("n").distinct().count()
    told = Counter(row.v for row in source.union(source).transform(numbered).collect())
    assert told == {"accept": numbers, "duplicate": 2 * rows - numbers}
    dotted = source.withColumnRenamed("id", "user.id")
    kept = dotted.transform(dedup_by_id("user.id", horizon="1 hour"))
    assert (kept.count(), kept.columns) == (ids, ["user.id", "at", "ts", "src", "n"])


def errors(query: Query, source: DataFrame) -> None:
    """Errors of tasks, and of a function that reads micro-batches, are found below Spark's own."""
    nulls = source.withColumn("id", F.lit(None).cast("string"))
    failing = dedup_by_id("id", horizon="1 hour", null_ids="error")
    query.options["null_ids"] = "error"
    query.add("-@300")
    in_a_batch: Callable[[], object] = nulls.transform(failing).count
    for act in (in_a_batch, lambda: run(query)):
        with pytest.raises(Exception, match="null_ids") as stopped:
            act()
        assert not type(stopped.value).__module__.startswith("dedup")
        ours = cause(stopped.value)
        assert isinstance(ours, DataError)
        text, *rest = str(ours).split("\n")
        assert 'records have a null ID (id) and null_ids="error"' in text
        assert rest == ["Remedies: dedup remedies bad-records"]
    query.options["null_ids"] = "emit"
    writer = query.result().writeStream.foreachBatch(lambda rows, batch: rows.count())
    writer = writer.option("checkpointLocation", str(query.folder / "foreach"))
    with pytest.raises(StreamingQueryException) as refused:
        writer.trigger(availableNow=True).start().awaitTermination(120)
    told = cause(refused.value)
    assert isinstance(told, ConfigError)
    assert "does not know its query and micro-batch" in str(told)
    assert "Under Spark Connect only the sinks of this package" in str(told)
    with pytest.raises(ConfigError, match="give it at least one sink of this package"):
        split(query.result(), unique=print)
    for function in (stable(print, at="any"), once_per_batch(print, at="any")):
        with pytest.raises(PySparkPicklingError) as refused:
            query.result().writeStream.foreachBatch(function)
        assert "needs a classic session" in str(refused.value.__context__)
        assert "dedup remedies foreach-batch-threads" in str(refused.value.__context__)


def ids_in(folder: str) -> Counter[str]:
    return Counter(dataset.dataset(folder).to_table(["id"])["id"].to_pylist())


def sinks_that_are_killed(spark: SparkSession, folder: Path, armed: Path) -> None:
    """Tasks, and the process of the function, are killed between any two steps of two sinks."""
    query = Query(spark, folder, {"timestamp": "ts", "horizon": "1 hour", "verdict": "verdict"})
    for number in range(4):
        query.add(*(f"{name}@{number}" for name in range(20 * number, 20 * number + 40)))
    out = {name: str(folder / name) for name in ("unique", "duplicate")}
    sinks = {
        name: files_sink(path, checkpoint=str(folder / "checkpoint"), options={"name": name})
        for name, path in out.items()
    }
    steps = (
        "group.end",
        "files.task.end",
        "files.planned",
        "files.published",
        "files.driver.after",
    )
    for number, step in enumerate(steps):
        faults.arm(armed, step, "kill", number)
    starts, metrics = 0, list[BatchMetrics]()
    while not metrics:
        assert (starts := starts + 1) < 10
        started = split(query.result(), **sinks).trigger(availableNow=True).start()
        with suppress(StreamingQueryException):
            metrics = finish(started)
    assert len(faults.fired(armed)) == len(steps)
    assert starts > 2, "the process of the function was killed, and not only tasks"
    assert ids_in(out["unique"]) == Counter(str(name) for name in range(100))
    assert ids_in(out["duplicate"]) == Counter(str(name) for name in range(20, 80))
    assert {m.records_in for m in metrics} == {40}, "the operator judges a micro-batch once"


def tags_of_other_micro_batches(spark: SparkSession, folder: Path) -> None:
    """A tag that a thread keeps, or that names another query, never passes for the right one."""
    query = Query(spark, folder, {"timestamp": "ts", "horizon": "1 hour"})
    query.add("a@1").add("b@2")

    def left_over(rows: DataFrame, batch_id: int) -> None:
        query_id = json.loads((folder / "checkpoint" / "metadata").read_text())["id"]
        rows.sparkSession.addTag(str(JobTag(query_id, 0)))
        rows.write.mode("append").parquet(str(folder / "out"))

    def two(rows: DataFrame, batch_id: int) -> None:
        rows.sparkSession.addTag(str(JobTag("another", batch_id)))
        left_over(rows, batch_id)

    def of_another(rows: DataFrame, batch_id: int) -> None:
        rows.sparkSession.addTag(str(JobTag(str(uuid.uuid4()), batch_id)))
        rows.count()

    for function, message in (
        (left_over, "belongs to micro-batch 0 by its thread, but micro-batch 0 is already"),
        (two, "names several micro-batches"),
        (of_another, "is missing"),
    ):
        with pytest.raises(StreamingQueryException) as stopped:
            query.writer().foreachBatch(function).start().awaitTermination(120)
        assert message in str(cause(stopped.value))
    assert ids_in(str(folder / "out")) == {"a": 1}, "nothing else passed"


def refusals(query: Query, source: DataFrame) -> None:
    def refused(frame: DataFrame, message: str, given: Any = "id", **options: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            _ = frame.transform(dedup_by_id(given, horizon="1 hour", **options)).schema
        assert message in str(caught.value)
        assert "\tat " not in str(caught.value), "no stack of the JVM's"

    stream, catalog = query.source(), {"catalog": str(query.folder / "other")}
    chance = F.udf(lambda n: n, "long").asNondeterministic()("n")
    once = stream.transform(dedup_by_id("id", horizon="1 hour", **catalog))
    today = record_id.from_columns("id", F.current_date())
    interval = source.withColumn("x", F.make_interval(F.lit(1)))
    refused(source, "id='idd': there is no such column. Did you mean 'id'", "idd")
    refused(source, "id cannot be resolved against the columns", F.col("nope"))
    refused(source, "timestamp column 'id' is string", timestamp="id")
    refused(interval, "Column 'x' is interval, which Spark cannot pass to Python")
    refused(stream, "A stream needs catalog=")
    marked = stream.withWatermark("ts", "1 hour")
    refused(marked, "withWatermark('ts', ...) stands before dedup_by_id", **catalog)
    refused(once, "This query already has a dedup_by_id", "n", **catalog)
    clock = "id='record_id 1(id, current_date())' is made of the current time (current_date)"
    refused(stream, clock, today, **catalog)
    several = F.explode(F.array("n", "at"))
    refused(stream, "adds a step to Spark's plan (Generate)", order_by=several, **catalog)
    refused(source, "adds a step to Spark's plan (Aggregate)", F.max("id"))
    refused(source, "computes a record again (rand)", order_by=F.rand())
    refused(source, "computes a record again (<lambda>)", order_by=chance)
    settings = stream.sparkSession.conf
    for length in (20, 200):
        settings.set("spark.sql.maxPlanStringLength", length)
        refused(stream, "spark.sql.maxPlanStringLength is so small", **catalog)
    settings.unset("spark.sql.maxPlanStringLength")
    settings.set("spark.sql.streaming.unsupportedOperationCheck", "false")
    refused(stream, "spark.sql.streaming.unsupportedOperationCheck=false", **catalog)
