"""What users put after the operator works, and jobs that their threads start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import InheritableThread, inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import dedup_by_id, dedup_by_sequence, record_id
from dedup.errors import cause
from tests.support.needs import long
from tests.support.spark_query import Query, collected, daily, finish, seeded

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
def test_a_windowed_aggregation_counts_the_unique_records(query: Query) -> None:
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


def test_a_stream_static_join_gives_each_id_once(query: Query) -> None:
    static = query.spark.range(1200).select(F.col("id").alias("n"), (F.col("id") % 7).alias("m"))
    query.then = lambda df: df.join(F.broadcast(static), "n").select("id", "m", "n")
    run = query.run()
    rows = run.all_rows()
    assert len(run.rows) == 3
    assert sorted(row["id"] for row in rows) == sorted(distinct_ids(query))
    assert all(row["m"] == row["n"] % 7 for row in rows)


@pytest.mark.parametrize("file_format", ["parquet", long("json")])
def test_sparks_file_sink_gets_each_id_once(query: Query, file_format: str) -> None:
    out = str(query.folder / "out")

    def run() -> int:
        return len(finish(query.writer().format(file_format).start(out)))

    assert run() == 3
    query.add("new@179", "new@179")
    assert run() == 1
    frame = query.spark.read.schema(query.schema).format(file_format).load(out)
    assert sorted(row.id for row in frame.collect()) == sorted(distinct_ids(query))


@pytest.mark.slow
def test_drop_duplicates_works_after_the_operator(query: Query) -> None:
    """Its key is not the ID. The rows go straight into its exchange."""
    query.then = lambda df: (
        df.withColumn("m", F.crc32("id") % 30)
        .withWatermark("ts", "1 hour")
        .dropDuplicatesWithinWatermark(["m"])
    )
    run = query.run()
    assert len(run.rows) >= 3
    told = [row["m"] for row in run.all_rows()]
    assert len(told) == len(set(told)) == 30


def test_filters_and_columns_work_before_and_after_the_operator(query: Query) -> None:
    """Filters after the operator see only emitted rows, even if Spark pushes them down."""
    query.options["verdict"] = "verdict"
    query.before = lambda df: df.where("n % 2 = 0").withColumn("twice", F.col("n") * 2)
    query.then = lambda df: df.where("verdict = 'duplicate'").select("n", "twice", "verdict")
    run = query.run()
    assert [m.records_in for m in run.metrics] == [150] * 3
    assert [len(rows) for rows in run.rows.values()] == [m.duplicate for m in run.metrics]
    assert min(m.duplicate for m in run.metrics) > 10
    assert all(row["twice"] == 2 * row["n"] for row in run.all_rows())


@pytest.mark.slow
def test_arrow_batches_of_one_row_give_each_id_once(query: Query) -> None:
    """Spark cuts input, groups and output as it likes."""
    query.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    run = query.run()
    assert sorted(row["id"] for row in run.all_rows()) == sorted(distinct_ids(query))


def test_a_memory_sink_gets_each_id_once_and_metrics_the_query_name(query: Query) -> None:
    metrics = finish(query.writer().format("memory").queryName("kept").start())
    assert {m.query_name for m in metrics} == {"kept"}
    assert len(metrics) == 3
    rows = query.spark.table("kept").collect()
    assert sorted(row.id for row in rows) == sorted(distinct_ids(query))


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
            # A sink may name its job group as it likes.
            rows.sparkSession.sparkContext.setJobGroup("orders", "named by the sink")
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
    assert folders == [], "there is no catalog yet"
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
    assert "belongs to micro-batch 0 by its thread, but micro-batch 0 is already" in told
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
    """They do not belong to a query, whether in a thread or within a micro-batch."""
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


_CLEANER = "spark.sql.streaming.fileSource.cleaner.numThreads"


def test_lines_of_files_that_spark_deletes_are_emitted_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Three files of three lines, one a micro-batch; the task that processes b fails once."""
    landing, struck = tmp_path / "landing", str(tmp_path / "struck")
    landing.mkdir()
    for name in "abc":
        (landing / name).write_text("".join(f"{name}{line}\n" for line in range(3)))

    def process(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column("file").to_pylist():
                if name.endswith("b") and not Path(struck).exists():
                    Path(struck).touch()
                    raise RuntimeError("made to fail")
            yield batch

    operator = dedup_by_id(
        record_id.from_file("file", "line"), horizon="1 day", shards=2,
        catalog=str(tmp_path / "catalog"),
    )  # fmt: skip
    spark.conf.set(_CLEANER, 0)  # in the query's own thread
    try:
        reader = spark.readStream.option("cleanSource", "delete").option("maxFilesPerTrigger", 1)
        lines = record_id.read_lines(reader, str(landing))
        unique = lines.mapInArrow(process, lines.schema).transform(operator)
        emitted = collected(unique, tmp_path / "checkpoint")
    finally:
        spark.conf.unset(_CLEANER)
    assert Path(struck).exists()
    assert sorted(row.value for row in emitted) == [
        f"{n}{line}" for n in "abc" for line in range(3)
    ]
    left = [path.name for path in landing.iterdir()]
    assert len(left) <= 1, "files of committed micro-batches are deleted"
