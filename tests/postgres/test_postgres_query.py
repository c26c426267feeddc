"""Spark queries into a table: each micro-batch once, despite replays and kills."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id, postgres_sink
from dedup.errors import ConfigError, cause
from dedup.testing import faults
from tests.postgres.postgres_query import PostgresQuery
from tests.postgres.tables import once, run
from tests.support.needs import some_long

MODES = [{}, {"mode": "atomic"}, {"mode": "upsert", "key": "n"}]
#: Of a task that publishes, of one that stages, and of the driver's in the test's own process.
TASK = (
    "postgres.task.begin", "postgres.begun", "postgres.rows.sent", "postgres.marker.before",
    "postgres.marker.after", "postgres.commit.before", "postgres.commit.after", "postgres.task.end",
)  # fmt: skip
STAGE = ("postgres.own.before", "postgres.own.after", "postgres.stage.before",
         "postgres.stage.after")  # fmt: skip


def run_to_the_end(query: PostgresQuery) -> int:
    """Start the query until it has taken all that there is; return how often it failed."""
    for failures in range(6):
        try:
            query.run()
        except StreamingQueryException:
            continue
        return failures
    raise AssertionError("it fails again and again")


@pytest.mark.parametrize("options", MODES, ids=lambda o: o.get("mode", "append"))
def test_every_micro_batch_is_there_once(
    spark: SparkSession, dsn: str, tmp_path: Path, options: dict[str, str]
) -> None:
    query = PostgresQuery(spark, dsn, tmp_path, **options)
    query.numbers(range(30), range(30, 60))
    query.run()
    assert query.found() == once(60)
    query.numbers(range(60, 90))
    query.run()
    query.forget_commit()  # Spark runs the last micro-batch again
    query.run()
    query.numbers(range(90, 120))
    query.run()
    assert query.found() == once(120)


def test_behind_the_operator(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """A replay reads the stateful plan to its end, although what it gives is there already."""
    query = PostgresQuery(spark, dsn, tmp_path)
    operator = dedup_by_id("n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2)
    query.change = lambda rows: rows.transform(operator)
    query.numbers(range(30), range(20, 50))
    query.run()
    query.forget_commit()
    query.numbers(range(40, 60))
    query.run()
    assert query.found() == once(60)


@pytest.mark.parametrize(
    "point", [pytest.param("postgres.begun", marks=pytest.mark.slow), "postgres.commit.after"]
)
@pytest.mark.slow
def test_the_query_goes_on_with_other_cores_after_a_kill(
    spark: SparkSession, dsn: str, tmp_path: Path, fault_folder: Path, point: str
) -> None:
    """Half published, then continued by as many map tasks as other cores would make."""
    query = PostgresQuery(spark, dsn, tmp_path)
    operator = dedup_by_id("n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2)
    query.change = lambda rows: rows.transform(operator)
    query.numbers(range(30))
    query.run()
    # Of three kills at least two meet the same task, which Spark gives up then.
    for number in range(3):
        faults.arm(fault_folder, point, "kill", number)
    query.numbers(range(20, 60), range(50, 90))
    with pytest.raises(StreamingQueryException):
        query.run()
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", "7")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "256")
    run_to_the_end(query)
    assert [name for name, _, _ in faults.fired(fault_folder)] == [point] * 3
    assert query.found() == once(90)


@pytest.mark.parametrize("point", some_long(TASK, "postgres.rows.sent", "postgres.commit.after"))
def test_a_task_that_publishes_is_killed(
    spark: SparkSession, dsn: str, tmp_path: Path, fault_folder: Path, point: str
) -> None:
    query = PostgresQuery(spark, dsn, tmp_path)
    query.numbers(range(30))
    writer = query.rows().writeStream.format("dedup_postgres").options(**query.options)
    started = writer.start()
    started.processAllAvailable()
    faults.arm(fault_folder, point, "kill")
    query.numbers(range(30, 60), range(60, 90))
    started.processAllAvailable()
    started.stop()
    assert [(name, kind) for name, kind, _ in faults.fired(fault_folder)] == [(point, "kill")]
    assert query.found() == once(90)


@pytest.mark.parametrize("point", some_long(STAGE, "postgres.stage.after"))
def test_a_task_that_stages_is_killed(
    spark: SparkSession, dsn: str, tmp_path: Path, fault_folder: Path, point: str
) -> None:
    query = PostgresQuery(spark, dsn, tmp_path)
    query.numbers(range(30), range(30, 60))
    faults.arm(fault_folder, point, "kill")
    run_to_the_end(query)
    assert [(name, kind) for name, kind, _ in faults.fired(fault_folder)] == [(point, "kill")]
    assert query.found() == once(60)


def test_in_foreach_batch_beside_another_sink(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    query = PostgresQuery(spark, dsn, tmp_path)
    run(dsn, "CREATE TABLE copies (n bigint PRIMARY KEY, text text)")
    checkpoint = str(query.checkpoint)
    publish = postgres_sink(dsn, "numbers", checkpoint=checkpoint)
    copies = postgres_sink(
        dsn, "copies", checkpoint=checkpoint, mode="upsert", key=["n"], options={"name": "copies"}
    )

    def both(rows: DataFrame, batch_id: int) -> None:
        publish(rows, batch_id)
        copies(rows, batch_id)

    def start() -> None:
        writer = query.rows().writeStream.foreachBatch(both).trigger(availableNow=True)
        writer.option("checkpointLocation", checkpoint).start().awaitTermination(120)

    query.numbers(range(30), range(30, 60))
    start()
    query.forget_commit()
    start()
    assert query.found() == once(60)
    assert run(dsn, "SELECT count(*) FROM copies") == [(60,)]


def test_what_cannot_be_is_refused_before_the_query_starts(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    query = PostgresQuery(spark, dsn, tmp_path)
    query.numbers(range(3))
    with pytest.raises(Exception, match="Table nowhere does not exist") as refused:
        query.run(table="nowhere")
    assert isinstance(cause(refused.value), ConfigError)
    with pytest.raises(Exception, match="Format dedup_postgres publishes the micro-batches"):
        query.spark.range(3).write.format("dedup_postgres").mode("append").save()
    with pytest.raises(Exception, match='use format\\("jdbc"\\)'):
        query.spark.read.format("dedup_postgres").load()


def test_a_record_that_does_not_fit_is_named(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    query = PostgresQuery(spark, dsn, tmp_path, mode="atomic")
    run(dsn, "ALTER TABLE numbers ADD CHECK (text <> 'v7')")
    query.numbers(range(5), range(5, 10))
    with pytest.raises(StreamingQueryException) as stopped:
        query.run()
    found = cause(stopped.value)
    assert found is not None
    assert "(7, v7)" in str(found)
    assert query.found() == once(5)
    run(dsn, "ALTER TABLE numbers DROP CONSTRAINT numbers_text_check")
    query.run()
    assert query.found() == once(10)
