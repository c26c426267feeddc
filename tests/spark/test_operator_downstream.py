"""What users put after the operator works, over several micro-batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.support.needs import long
from tests.support.spark_query import Query, finish, seeded

OPTIONS: dict[str, Any] = {"timestamp": "ts", "horizon": "1 hour", "lateness": "1 hour"}


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    """Three micro-batches of a minute each, in which every ID comes about three times."""
    made = Query(spark, tmp_path, dict(OPTIONS))
    for table in seeded(batches=3, rows=300, ids=300, step_s=60, spread_s=60):
        made.add_table(table)
    return made


def distinct_ids(query: Query) -> set[str]:
    frame = query.spark.read.schema(query.schema).parquet(str(query.input))
    return {row.id for row in frame.select("id").distinct().collect()}


@pytest.mark.slow
def test_a_windowed_aggregation(query: Query) -> None:
    """The user's own watermark, declared after the operator, closes windows."""
    query.then = lambda df: (
        df.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute"))
        .agg(F.count("*").alias("n"))
        .select(F.unix_timestamp("window.start").alias("start"), "n")
    )
    run = query.run()
    kept = [(row["start"], row["n"]) for row in run.all_rows()]
    assert len(run.rows) >= 3
    assert len(kept) == len({start for start, _ in kept}) == 2, "the last window stays open"
    # The same windows over the operator's output alone.
    plain = Query(query.spark, query.folder / "plain", dict(OPTIONS))
    plain.input = query.input
    unique = Counter(int(row["ts"].timestamp()) // 60 * 60 for row in plain.run().all_rows())
    assert dict(kept) == {start: unique[start] for start in sorted(unique)[:2]}
    batches = [m.batch_id for m in run.metrics]
    assert len(batches) == len(set(batches)), "no-data micro-batches report nothing twice"


def test_a_stream_static_join(query: Query) -> None:
    static = query.spark.range(1200).select(F.col("id").alias("n"), (F.col("id") % 7).alias("m"))
    query.then = lambda df: df.join(F.broadcast(static), "n").select("id", "m", "n")
    run = query.run()
    rows = run.all_rows()
    assert len(run.rows) == 3
    assert sorted(row["id"] for row in rows) == sorted(distinct_ids(query))
    assert all(row["m"] == row["n"] % 7 for row in rows)


@pytest.mark.slow
def test_a_shuffled_join_and_an_aggregation_in_foreach_batch(query: Query) -> None:
    """The operator's rows go straight into exchanges: a join without broadcast, a group-by."""
    query.spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    static = query.spark.range(1200).select(F.col("id").alias("n"), (F.col("id") % 7).alias("m"))

    def read(df: DataFrame) -> list[Any]:
        joined = df.join(static, "n").groupBy("m").agg(F.count("*").alias("c"))
        return [row.asDict() for row in joined.collect()]

    run = query.run(read)
    assert len(run.rows) == 3
    assert sum(row["c"] for row in run.all_rows()) == len(distinct_ids(query))


@pytest.mark.parametrize("file_format", ["parquet", long("json")])
def test_a_file_sink(query: Query, file_format: str) -> None:
    out = str(query.folder / "out")

    def run() -> int:
        return len(finish(query.writer().format(file_format).start(out)))

    assert run() == 3
    query.add("new@179", "new@179")
    assert run() == 1
    frame = query.spark.read.schema(query.schema).format(file_format).load(out)
    assert sorted(row.id for row in frame.collect()) == sorted(distinct_ids(query))


@pytest.mark.slow
def test_drop_duplicates_after_it(query: Query) -> None:
    """By another key than the ID; the rows go straight into its exchange."""
    query.then = lambda df: (
        df.withColumn("m", F.crc32("id") % 30)
        .withWatermark("ts", "1 hour")
        .dropDuplicatesWithinWatermark(["m"])
    )
    run = query.run()
    assert len(run.rows) >= 3
    told = [row["m"] for row in run.all_rows()]
    assert len(told) == len(set(told)) == 30


def test_filters_and_columns_after_it(query: Query) -> None:
    """Pushed down or not, they see only what passed; verdicts are a filter away."""
    query.options["verdict"] = "verdict"
    query.then = lambda df: df.where("verdict = 'duplicate'").select("n", "verdict")
    run = query.run()
    assert len(run.rows) == 3
    assert [len(rows) for rows in run.rows.values()] == [m.duplicate for m in run.metrics]
    assert sum(m.unique for m in run.metrics) == len(distinct_ids(query))


def test_filters_before_it(query: Query) -> None:
    query.before = lambda df: df.where("n % 2 = 0").withColumn("twice", F.col("n") * 2)
    run = query.run()
    assert [m.records_in for m in run.metrics] == [150] * 3
    assert all(row["twice"] == 2 * row["n"] for row in run.all_rows())


@pytest.mark.slow
def test_small_arrow_batches(query: Query) -> None:
    """Spark cuts input, groups and output as it likes."""
    query.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    run = query.run()
    assert sorted(row["id"] for row in run.all_rows()) == sorted(distinct_ids(query))


def test_a_memory_sink_and_a_query_name(query: Query) -> None:
    metrics = finish(query.writer().format("memory").queryName("kept").start())
    assert {m.query_name for m in metrics} == {"kept"}
    assert len(metrics) == 3
    rows = query.spark.table("kept").collect()
    assert sorted(row.id for row in rows) == sorted(distinct_ids(query))
