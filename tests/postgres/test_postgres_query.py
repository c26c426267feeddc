"""Spark queries into a table: each micro-batch once, despite replays and kills."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id
from dedup.errors import ConfigError, cause
from dedup.sinks import postgres_sink
from dedup.testing import faults
from tests.postgres.tables import once, run
from tests.support.file_query import FileQuery
from tests.support.query_contract import QueryContract
from tests.support.sink_campaign import transactional_steps

MODES = [{}, {"mode": "atomic"}, {"mode": "upsert", "key": "n"}]


class PostgresQuery(FileQuery):
    """Files of numbers to a table ``numbers(n bigint, text text)``, one file a micro-batch."""

    def __init__(self, spark: SparkSession, dsn: str, folder: Path, **options: Any) -> None:
        super().__init__(spark, "dedup_postgres", folder)
        key = ", PRIMARY KEY (n)" if options.get("key") else ""
        run(dsn, f"CREATE TABLE IF NOT EXISTS numbers (n bigint, text text{key})")
        self.dsn = dsn
        self.options |= {"dsn": dsn, "table": "numbers", "timeout.seconds": "20"} | options
        self.change = lambda rows: rows.repartition(2, "n")

    def found(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in run(self.dsn, "SELECT n FROM numbers"))


class TestQuery(QueryContract):
    @pytest.fixture(params=MODES, ids=lambda options: options.get("mode", "append"))
    def query(
        self, request: pytest.FixtureRequest, spark: SparkSession, dsn: str, tmp_path: Path
    ) -> PostgresQuery:
        made = PostgresQuery(spark, dsn, tmp_path, **request.param)
        made.steps = transactional_steps(whole=request.param.get("mode") == "atomic")
        return made

    @pytest.mark.parametrize("query", [{}], indirect=True, ids=["append"])
    def test_kills_at_some_steps_lose_and_repeat_nothing(
        self, query: PostgresQuery, fault_folder: Path
    ) -> None:
        """The kills hit a task that publishes and one that stages."""
        self.kill(query, fault_folder, ("kit.rows.sent", "kit.stage.after"))


@pytest.mark.parametrize(
    "point", [pytest.param("kit.begun", marks=pytest.mark.slow), "kit.commit.after"]
)
@pytest.mark.slow
def test_a_killed_query_continues_with_another_number_of_cores(
    spark: SparkSession, dsn: str, tmp_path: Path, fault_folder: Path, point: str
) -> None:
    """A half published micro-batch continues with as many map tasks as other cores would make."""
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
    more = {
        "spark.sql.shuffle.partitions": "5",
        "spark.sql.leafNodeDefaultParallelism": "7",
        "spark.sql.files.maxPartitionBytes": "256",
    }
    before = {name: spark.conf.get(name, None) for name in more}
    for name, value in more.items():
        spark.conf.set(name, value)
    query.run_to_the_end()
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    assert [name for name, _, _ in faults.fired(fault_folder)] == [point] * 3
    assert query.found() == once(90)


def test_two_sinks_in_foreach_batch_survive_a_replay(
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

    query.numbers(range(30), range(30, 60))
    query.run_with(both)
    query.forget_commit()
    query.run_with(both)
    assert query.found() == once(60)
    assert run(dsn, "SELECT count(*) FROM copies") == [(60,)]


def test_a_missing_table_is_rejected_before_the_query_starts(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    query = PostgresQuery(spark, dsn, tmp_path)
    query.numbers(range(3))
    with pytest.raises(Exception, match="Table nowhere does not exist") as refused:
        query.run(table="nowhere")
    assert isinstance(cause(refused.value), ConfigError)


def test_a_record_that_the_table_rejects_is_named(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
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


def test_a_restart_with_the_same_function_checks_the_tables_again(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    query = PostgresQuery(spark, dsn, tmp_path)
    publish = postgres_sink(dsn, "numbers", checkpoint=str(query.checkpoint))
    query.numbers(range(5))
    query.run_with(publish)
    run(dsn, "ALTER TABLE numbers SET UNLOGGED")
    query.numbers(range(5, 10))
    with pytest.raises(StreamingQueryException) as stopped:
        query.run_with(publish)
    assert "Table numbers is UNLOGGED" in str(cause(stopped.value))
    run(dsn, "ALTER TABLE numbers SET LOGGED")
    query.run_with(publish)
    assert query.found() == once(10)
