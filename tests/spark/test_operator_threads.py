"""Jobs of a micro-batch that threads start: under the query's own identity, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread, inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id, dedup_by_sequence
from dedup.errors import cause
from tests.support.needs import long
from tests.support.spark_query import Query, daily

Act = Callable[[], None]


def in_a_pool(act: Act) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()


def in_a_pool_that_inherits(act: Act) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(inheritable_thread_target(act)).result()


def in_an_inheriting_thread(act: Act) -> None:
    thread = InheritableThread(target=act)
    thread.start()
    thread.join()


def ids_of(query: Query, start: Callable[[Act], None]) -> dict[int, list[str]]:
    """Run the query with a function that reads each micro-batch by a thread; return its IDs."""
    got: dict[int, list[str]] = {}

    def sink(rows: DataFrame, batch: int) -> None:
        def act() -> None:
            got[batch] = sorted(row.id for row in rows.collect())

        start(act)

    started = query.writer().foreachBatch(sink).start()
    try:
        assert started.awaitTermination(120)
    finally:
        started.stop()
    return got


def refusal(query: Query, start: Callable[[Act], None]) -> str:
    with pytest.raises(StreamingQueryException) as stopped:
        ids_of(query, start)
    return str(cause(stopped.value))


def by_sequence(frame: DataFrame) -> DataFrame:
    return frame.transform(dedup_by_sequence("id", "n", expire_after="1 day"))


class Numbered(Query):
    def result(self) -> DataFrame:
        return by_sequence(self.source())


@pytest.mark.parametrize("kind", [long(Query), Numbered])
def test_a_thread_without_the_query_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, kind: type[Query]
) -> None:
    query = kind(spark, tmp_path, {"horizon": "1 day"})
    query.add("a@1", "b@2").add("a@3", "c@4")
    told = refusal(query, in_a_pool)
    assert "pyspark.InheritableThread" in told
    assert "dedup remedies foreach-batch-threads" in told
    folders = list(query.catalog.iterdir()) if query.catalog.exists() else []
    assert folders == [], "nobody's catalog was begun"
    first = ids_of(query, in_a_pool_that_inherits)
    assert first[0] == ["a", "b"]
    assert first[1] == (["c"] if kind is Query else ["a", "c"])
    query.add("d@5", "b@6")
    assert ids_of(query, in_an_inheriting_thread)[2] == (["d"] if kind is Query else ["b", "d"])


@pytest.mark.slow
def test_a_thread_that_keeps_an_earlier_micro_batch_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = daily_query(spark, tmp_path).add("a@1").add("a@2", "b@2")
    kept: list[Any] = []

    def in_the_first_properties(act: Act) -> None:
        if not kept:
            kept.append(inheritable_thread_target(lambda work: work()))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(kept[0], act).result()

    told = refusal(query, in_the_first_properties)
    assert "is of micro-batch 0, but micro-batch 0 is already" in told
    assert ids_of(query, lambda act: act()) == {1: ["b"]}


@pytest.mark.parametrize(
    ("kind", "told"), [(Query, "is missing"), long(Numbered, "names another query")]
)
@pytest.mark.slow
def test_a_thread_that_keeps_the_properties_of_another_query_is_refused(
    spark: SparkSession, tmp_path: Path, kind: type[Query], told: str
) -> None:
    query, other = (kind(spark, tmp_path / name, {"horizon": "1 day"}) for name in "ab")
    query.add(*(f"{name}@1" for name in range(20)))
    ids_of(query, lambda act: act())
    with ThreadPoolExecutor(1) as pool:
        run = lambda act: act()  # noqa: E731
        ids_of(
            other.add("a@1").add("a@2").add("a@3"),
            lambda act: pool.submit(inheritable_thread_target(run), act).result(),
        )
        query.add("e@2")
        assert told in refusal(query, lambda act: pool.submit(run, act).result())
    assert ids_of(query, lambda act: act()) == {1: ["e"]}


def test_batches_need_no_identity(spark: SparkSession, tmp_path: Path) -> None:
    """Neither in a thread nor within a micro-batch, because they do not belong to its query."""
    rows = spark.createDataFrame([("a", 1), ("b", 1), ("a", 2)], "id string, n long")
    kept = rows.transform(daily("id"))
    counts: list[int] = []
    in_a_pool(lambda: counts.append(kept.count()))
    query = daily_query(spark, tmp_path).add("a@1", "a@2", "b@2")
    query.before = lambda frame: frame

    def sink(batch: DataFrame, _: int) -> None:
        once = batch.transform(dedup_by_id("n", horizon="1 day"))
        counts.append(once.count())
        once = batch.sparkSession.createDataFrame(batch.collect() * 2, batch.schema)
        in_a_pool(lambda: counts.append(once.transform(daily("id")).count()))

    started = query.writer().foreachBatch(sink).start()
    assert started.awaitTermination(120)
    assert counts == [2, 2, 2]


def daily_query(spark: SparkSession, folder: Path) -> Query:
    return Query(spark, folder, {"horizon": "1 day"})
