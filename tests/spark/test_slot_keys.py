from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup.core.sharding import slot_keys, spark_hash_int


def test_our_hash_is_sparks(spark: SparkSession) -> None:
    values = [*range(300), -1, -(2**31), 2**31 - 1, 123_456_789]
    rows = spark.createDataFrame([(v,) for v in values], "k int")
    for row in rows.select("k", F.hash("k").alias("h")).collect():
        assert spark_hash_int(row.k & 0xFFFFFFFF) == row.h & 0xFFFFFFFF


@pytest.mark.parametrize(("shards", "partitions"), [(4, 4), (7, 3)])
def test_spark_places_slots_where_we_say(spark: SparkSession, shards: int, partitions: int) -> None:
    keys = slot_keys(shards, partitions)
    rows = spark.createDataFrame(list(enumerate(keys)), "shard int, k int")
    placed = rows.repartition(partitions, "k").select("shard", F.spark_partition_id().alias("p"))
    assert {row.shard: row.p for row in placed.collect()} == {
        i: i % partitions for i in range(shards)
    }
