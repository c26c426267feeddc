"""Batch DataFrames, arrival order inside a micro-batch, and where Spark places slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import dedup_by_id
from dedup.core.sharding import slot_keys, spark_hash_int
from dedup.spark.versions import to_arrow
from tests.support.needs import needs_spark_4
from tests.support.spark_query import ARROW, SCHEMA, Query, daily, finish, records, row_set, seeded


@pytest.mark.slow
def test_the_winner_does_not_depend_on_partitions(spark: SparkSession) -> None:
    """Content defines the order: time, then order columns, then a hash of the row."""
    rows = [
        (f"id{n % 50}", n % 3, n, {"k": [float(n)], "z": None}, [(n, str(n))]) for n in range(600)
    ]
    frame = spark.createDataFrame(
        rows,
        "id string, at int, n int, m map<string,array<double>>, a array<struct<i:int,s:string>>",
    ).withColumn("ts", F.timestamp_seconds("at"))
    seen = []
    for order in (frame.repartition(5), frame.coalesce(1), frame.orderBy(F.desc("n"))):
        by_hash = order.transform(daily("id", timestamp="ts"))
        by_column = order.transform(daily("id", timestamp="ts", order_by=[F.col("n") % 7, "n"]))
        seen.append(
            (
                sorted(r.n for r in by_hash.collect()),
                sorted((r.id, r.n) for r in by_column.collect()),
            )
        )
    assert seen[0] == seen[1] == seen[2]
    best: dict[str, tuple[int, int, int]] = {}
    for name, at, n, *_ in rows:
        best[name] = min(best.get(name, (9, 9, 9)), (at, n % 7, n))
    assert seen[0][1] == sorted((name, n) for name, (_, _, n) in best.items())
    # The hash does not follow a column: neither the first nor the last row always wins.
    by_time = [
        [n for name, at, n, *_ in rows if name == key and at == best[key][0]] for key in best
    ]
    winners = set(seen[0][0])
    assert not winners >= {max(group) for group in by_time}
    assert not winners >= {min(group) for group in by_time}


@pytest.mark.slow
def test_order_by_accepts_every_type_that_has_an_order(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 3), ("a", 1), ("a", 2)], "id string, n int")
    for order in (
        "n", "-n", "cast(n as double)", "cast(n as decimal(38,9))", "cast(n as string)",
        "cast(cast(n as string) as binary)", "n = 1", "timestamp_seconds(n)",
        "date_add(date'2024-01-01', n)", "make_dt_interval(n)", "make_time(n, 0, 0)",
        "cast(timestamp_seconds(n) as timestamp_ntz)",
    ):  # fmt: skip
        (kept,) = frame.transform(daily("id", order_by=F.expr(order))).collect()
        wanted = {"-n": 3, "n = 1": None}.get(order, 1)
        assert kept.n == wanted or (wanted is None and kept.n in (2, 3)), order


@needs_spark_4
def test_ties_are_settled_for_any_nested_times(spark: SparkSession) -> None:
    """A hash of all columns settles them, even of times that Python's datetime cannot hold."""
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    frame = spark.sql(
        """SELECT 'a' AS id, n, array(timestamp_micros(-62135596800000000 + n)) AS first,
                  map('far', timestamp_micros(253402300799999999 - n)) AS last,
                  struct(interval 1 day AS d, time'12:00:00' AS t) AS others
           FROM VALUES (1), (2), (3) AS t(n)"""
    )
    winners = {frame.repartition(n).transform(daily("id")).select("n").first().n for n in (1, 3)}
    assert len(winners) == 1


def test_a_batch_gives_the_rows_of_one_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "timestamp": "ts", "horizon": "100 seconds", "lateness": "10 seconds", "order_by": "n",
        "verdict": "verdict",
    }  # fmt: skip
    (table,) = seeded(batches=1, rows=1000, ids=200, step_s=150)
    table = pa.concat_tables([table, records(["-@3", "-@3", "a@0", "a@900"], 1000)]).cast(ARROW)
    stream = Query(spark, tmp_path, options).add_table(table).run()
    assert stream.metrics[0].null_id == 2
    assert stream.metrics[0].duplicate > 100
    frame = spark.read.schema(SCHEMA).parquet(str(tmp_path / "input"))
    batch = frame.transform(dedup_by_id("id", **options))
    assert row_set(to_arrow(batch).to_pylist()) == row_set(stream.all_rows())
    # Neither state nor catalog, though one may be named.
    named = frame.transform(dedup_by_id("id", catalog=str(tmp_path / "unused"), **options))
    assert named.count() == batch.count()
    assert not (tmp_path / "unused").exists()


def test_an_empty_batch_stays_empty(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    kept = frame.transform(daily("id", timestamp="ts", verdict="v"))
    assert kept.collect() == []
    assert kept.columns == [*frame.columns, "v"]


def test_a_batch_inside_foreach_batch_is_deduplicated_on_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The task carries the stream's identity, which the batch must ignore."""
    seen = []

    def sink(df: Any, batch: int) -> None:
        kept = df.transform(dedup_by_id("id", horizon="60 seconds", timestamp="ts"))
        seen.append(sorted(row.id for row in kept.collect()))

    query = Query(spark, tmp_path, {}).add("a@0", "a@1", "b@0").add("a@0", "a@100")
    finish(
        query.source()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(query.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert seen == [["a", "b"], ["a", "a"]]


def test_the_id_may_be_the_only_column(spark: SparkSession) -> None:
    for kind in ("bigint", "string"):
        ids = spark.range(5).selectExpr(f"CAST(id AS {kind}) AS id")
        once = ids.unionAll(ids).transform(daily("id"))
        assert sorted(int(row.id) for row in once.collect()) == [0, 1, 2, 3, 4]


def test_more_rows_than_the_buffers_hold_are_deduplicated(spark: SparkSession) -> None:
    """They exceed the buffers of pack and the blobs of a shard."""
    frame = spark.range(200_000, numPartitions=2).selectExpr("id % 150000 AS id", "id AS n")
    kept = frame.transform(daily("id", order_by="n"))
    assert kept.agg(F.count("*"), F.countDistinct("id"), F.max("n")).first() == (
        150_000, 150_000, 149_999,
    )  # fmt: skip


def test_our_hash_equals_sparks(spark: SparkSession) -> None:
    values = [*range(300), -1, -(2**31), 2**31 - 1, 123_456_789]
    rows = spark.createDataFrame([(v,) for v in values], "k int")
    for row in rows.select("k", F.hash("k").alias("h")).collect():
        assert spark_hash_int(row.k & 0xFFFFFFFF) == row.h & 0xFFFFFFFF


@pytest.mark.parametrize(("shards", "partitions"), [(4, 4), (7, 3)])
def test_spark_places_each_shard_in_the_computed_partition(
    spark: SparkSession, shards: int, partitions: int
) -> None:
    keys = slot_keys(shards, partitions)
    rows = spark.createDataFrame(list(enumerate(keys)), "shard int, k int")
    placed = rows.repartition(partitions, "k").select("shard", F.spark_partition_id().alias("p"))
    assert {row.shard: row.p for row in placed.collect()} == {
        i: i % partitions for i in range(shards)
    }
