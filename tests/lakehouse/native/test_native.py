"""What the connectors' own sinks do when Spark runs a micro-batch again, and what ours do.

Three micro-batches of 50 records, of which the operator lets 130 pass; the last one runs again.
These are the numbers of the table in ``dedup/sinks/lakehouse/README.md``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import dedup
from dedup import DedupListener
from dedup.sinks import delta_once, delta_sink, iceberg_once, iceberg_sink
from dedup.sinks.figures import SinkMetrics
from tests.lakehouse.lakes import at_point
from tests.support.file_query import FileQuery
from tests.support.spark_query import listening
from tests.support.state_stores import ROCKSDB_V2, configured
from tests.support.waiting import wait_until

RIGHT = 130
LAST = 40


class Native(FileQuery):
    """Numbers through the operator, into a table of Delta Lake and one of Iceberg."""

    def __init__(self, spark: SparkSession, warehouse: Path, folder: Path) -> None:
        super().__init__(spark, "none", folder)
        self.warehouse, self.path = warehouse, str(folder / "delta")
        self.table = f"lake.shop.t{os.getpid()}_{folder.name.replace('-', '_')[-40:]}"
        operator = dedup.dedup_by_id(
            "n", horizon="1 hour", catalog=str(folder / "catalog"), shards=2
        )
        self.change = lambda rows: rows.transform(operator)
        spark.sql(f"DROP TABLE IF EXISTS {self.table}")
        spark.sql(f"CREATE TABLE {self.table} (n BIGINT) USING iceberg")
        spark.sql(f"CREATE TABLE delta.`{self.path}` (n BIGINT) USING delta")
        for begin in (0, 40, 80):
            self.add([{"n": n} for n in range(begin, begin + 50)])

    def catalog(self) -> dict[str, str]:
        """How pyiceberg finds Spark's catalog."""
        return {
            "catalog": "lake",
            "catalog.type": "sql",
            "catalog.uri": f"sqlite:///{self.warehouse}/catalog.db",
            "catalog.warehouse": f"file://{self.warehouse}/warehouse",
        }

    def go(self, start: Callable[[Any], Any]) -> None:
        """Let a query take all that there is."""
        writer = self.rows().writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        start(writer).awaitTermination(200)

    def twice(self, start: Callable[[Any], Any], between: Callable[[], None] | None = None) -> None:
        """Let a query take all that there is, and the last micro-batch again."""
        self.go(start)
        if between is not None:
            between()
        self.forget_commit()
        self.go(start)

    def in_delta(self) -> Counter[int]:
        """How often each number is in the table, as Spark's connector reads it."""
        rows = self.spark.read.format("delta").load(self.path).collect()
        return Counter(row.n for row in rows)

    def in_iceberg(self) -> Counter[int]:
        self.spark.sql(f"REFRESH TABLE {self.table}")
        return Counter(row.n for row in self.spark.table(self.table).collect())

    def expire(self) -> None:
        """Let somebody append a row, and all snapshots but his expire."""
        self.spark.sql(f"INSERT INTO {self.table} VALUES (1000)")
        self.spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{self.table.removeprefix('lake.')}', "
            "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        )
        assert self.spark.sql(f"SELECT * FROM {self.table}.snapshots").count() == 1


@pytest.fixture
def query(spark: SparkSession, warehouse: Path, tmp_path: Path) -> Native:
    return Native(spark, warehouse, tmp_path)


def once() -> Counter[int]:
    return Counter(range(RIGHT))


def replayed() -> Counter[int]:
    """The last micro-batch twice."""
    return once() + Counter(range(RIGHT - LAST, RIGHT))


# --- Delta Lake


def test_the_delta_connector_survives_a_replay(query: Native) -> None:
    query.twice(lambda writer: writer.format("delta").start(query.path))
    assert query.in_delta() == once()


def test_the_delta_connector_fails_a_replay_with_rocksdb_format_2(
    spark: SparkSession, query: Native
) -> None:
    with (
        configured(spark, ROCKSDB_V2),
        pytest.raises(StreamingQueryException, match="assertion failed"),
    ):
        query.twice(lambda writer: writer.format("delta").start(query.path))
    assert query.in_delta() == once()


def test_a_plain_delta_append_in_foreach_batch_repeats_rows(query: Native) -> None:
    def append(rows: DataFrame, batch_id: int) -> None:
        rows.write.format("delta").mode("append").save(query.path)

    query.twice(lambda writer: writer.foreachBatch(append).start())
    assert query.in_delta() == replayed()


def recipe(query: Native) -> Callable[[DataFrame, int], None]:
    """Delta's documented recipe, with an application ID that never changes."""

    def append(rows: DataFrame, batch_id: int) -> None:
        writer = rows.write.format("delta").mode("append").option("txnAppId", "orders")
        writer.option("txnVersion", batch_id).save(query.path)

    return append


def test_the_delta_recipe_in_foreach_batch_repeats_nothing_but_fails_the_replay(
    query: Native,
) -> None:
    with pytest.raises(StreamingQueryException) as stopped:
        query.twice(lambda writer: writer.foreachBatch(recipe(query)).start())
    causes: list[Any] = [stopped.value]
    while causes[-1] is not None:
        causes.append(getattr(causes[-1], "_cause", None))
    assert "STATE_STORE_COMMIT_VALIDATION_FAILED" in "".join(map(str, causes))
    assert query.in_delta() == once()


def test_the_delta_recipe_loses_rows_after_a_new_checkpoint_and_ours_does_not(
    query: Native,
) -> None:
    """The query has no operator, which would drop old IDs. The recipe loses 50 new records."""
    query.change = lambda rows: rows
    query.go(lambda writer: writer.foreachBatch(recipe(query)).start())
    query.checkpoint = query.checkpoint.with_name("new")
    for path in query.input.iterdir():
        path.unlink()
    query.add([{"n": n} for n in range(200, 250)])
    query.go(lambda writer: writer.foreachBatch(recipe(query)).start())
    assert sum(query.in_delta().values()) == 150
    publish = delta_once(query.path, checkpoint=str(query.checkpoint.with_name("third")))
    query.checkpoint = query.checkpoint.with_name("third")
    query.go(lambda writer: writer.foreachBatch(publish).start())
    assert sum(query.in_delta().values()) == 200


@pytest.mark.parametrize("store", ["default", "rocksdb"])
def test_delta_once_survives_a_replay(spark: SparkSession, query: Native, store: str) -> None:
    publish = delta_once(query.path, checkpoint=str(query.checkpoint))
    if store == "default":
        query.twice(lambda writer: writer.foreachBatch(publish).start())
    else:
        with configured(spark, ROCKSDB_V2):
            query.twice(lambda writer: writer.foreachBatch(publish).start())
    assert query.in_delta() == once()


def test_dedup_delta_survives_a_replay_beside_writes_of_the_connector(query: Native) -> None:
    def between() -> None:
        query.spark.sql(f"INSERT INTO delta.`{query.path}` VALUES (1000)")
        query.spark.sql(f"OPTIMIZE delta.`{query.path}`")

    query.twice(lambda writer: writer.format("dedup_delta").start(query.path), between)
    assert query.in_delta() == once() + Counter([1000])


@pytest.mark.parametrize("feature", ["DeletionVectors", "ChangeDataFeed"])
def test_dedup_delta_writes_into_tables_with_features(query: Native, feature: str) -> None:
    """Some rows were deleted in place before the query starts."""
    target = f"delta.`{query.path}`"
    query.spark.sql(
        f"ALTER TABLE {target} SET TBLPROPERTIES ('delta.enable{feature}' = 'true', "
        "'delta.checkpointInterval' = '2')"
    )
    query.spark.sql(f"INSERT INTO {target} SELECT id + 1000 FROM range(10)")
    query.spark.sql(f"DELETE FROM {target} WHERE n > 1004")
    query.twice(lambda writer: writer.format("dedup_delta").start(query.path))
    assert query.in_delta() == once() + Counter(range(1000, 1005))


# --- Iceberg


def test_the_iceberg_connector_survives_a_replay(query: Native) -> None:
    query.twice(lambda writer: writer.toTable(query.table))
    assert query.in_iceberg() == once()


def test_the_iceberg_connector_repeats_rows_after_its_snapshots_expired(query: Native) -> None:
    query.twice(lambda writer: writer.toTable(query.table), query.expire)
    assert query.in_iceberg() == replayed() + Counter([1000])


def test_the_iceberg_connector_survives_a_replay_with_rocksdb_format_2(
    spark: SparkSession, query: Native
) -> None:
    with configured(spark, ROCKSDB_V2):
        query.twice(lambda writer: writer.toTable(query.table))
    assert query.in_iceberg() == once()


def test_a_plain_iceberg_append_in_foreach_batch_repeats_rows(query: Native) -> None:
    def append(rows: DataFrame, batch_id: int) -> None:
        rows.writeTo(query.table).append()

    query.twice(lambda writer: writer.foreachBatch(append).start())
    assert query.in_iceberg() == replayed()


@pytest.mark.parametrize("expires", [False, True], ids=["", "expired"])
def test_iceberg_once_survives_a_replay(query: Native, expires: bool) -> None:
    publish = iceberg_once(query.table, checkpoint=str(query.checkpoint))
    between = query.expire if expires else None
    query.twice(lambda writer: writer.foreachBatch(publish).start(), between)
    assert query.in_iceberg() == once() + (Counter([1000]) if expires else Counter())


@pytest.mark.parametrize("expires", [False, True], ids=["", "expired"])
def test_dedup_iceberg_survives_a_replay_beside_writes_of_the_connector(
    query: Native, expires: bool
) -> None:
    options = {"table": query.table.removeprefix("lake."), **query.catalog()}
    between = query.expire if expires else None
    query.twice(lambda w: w.format("dedup_iceberg").options(**options).start(), between)
    assert query.in_iceberg() == once() + (Counter([1000]) if expires else Counter())


# --- figures


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_the_metrics_are_those_of_the_commits(
    query: Native, warehouse: Path, tmp_path: Path, table: str
) -> None:
    """Another writer commits beside the last commit, whose counts Delta Lake does not show then."""
    checkpoint, files = str(query.checkpoint), tmp_path / "delta"
    publish: Any = delta_once(query.path, checkpoint=checkpoint)
    if table == "iceberg":
        publish = iceberg_once(query.table, checkpoint=checkpoint)
        files = warehouse / "warehouse/shop" / query.table.rpartition(".")[2] / "data"
    heard: list[SinkMetrics] = []

    def theirs() -> None:
        query.spark.sql(f"INSERT INTO delta.`{query.path}` VALUES (1000)")

    def go() -> None:
        query.go(lambda writer: writer.foreachBatch(publish).start())

    with listening(query.spark, DedupListener(on_sink=heard.append)):
        go()
        written = sum(path.stat().st_size for path in files.glob("*.parquet"))
        query.forget_commit()
        go()
        query.add([{"n": 200}])
        with at_point("lakehouse.commit.after", theirs):
            go()
        wait_until(lambda: len(heard) == 5)
    again, beside = (None, None) if table == "delta" else (40, 1)
    assert [one.rows for one in heard] == [50, 40, 40, again, beside]
    assert sum(one.bytes or 0 for one in heard[:3]) == written
    assert [one.bytes is None for one in heard] == [one.rows is None for one in heard]
    assert {(one.sink, one.retries, one.fenced, one.task_us) for one in heard} == {
        (table, None, None, None)
    }
    assert all(one.driver_us > 0 and one.query_id and one.run_id for one in heard)


# --- both in one micro-batch


@pytest.mark.parametrize("jars", [True, False], ids=["connectors", "without jars"])
def test_a_failure_between_two_tables_loses_and_repeats_nothing(query: Native, jars: bool) -> None:
    checkpoint = str(query.checkpoint)
    options = query.catalog()
    catalog = options.pop("catalog")
    first: Callable[[DataFrame, int], None]
    second: Callable[[DataFrame, int], None]
    if jars:
        first = delta_once(query.path, checkpoint=checkpoint)
        second = iceberg_once(query.table, checkpoint=checkpoint)
    else:
        table = query.table.removeprefix("lake.")
        first = delta_sink(query.path, checkpoint=checkpoint)
        second = iceberg_sink(table, checkpoint=checkpoint, catalog=catalog, options=options)
    deaths: list[int] = []

    def both(rows: DataFrame, batch_id: int) -> None:
        kept = rows.persist()
        kept.count()
        first(kept, batch_id)
        if batch_id and batch_id not in deaths:
            deaths.append(batch_id)
            raise RuntimeError("made to fail")
        second(kept, batch_id)
        kept.unpersist()

    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="made to fail"):
            query.go(lambda writer: writer.foreachBatch(both).start())
    query.go(lambda writer: writer.foreachBatch(both).start())
    query.twice(lambda writer: writer.foreachBatch(both).start())
    assert deaths == [1, 2]
    assert query.in_delta() == once()
    assert query.in_iceberg() == once()
