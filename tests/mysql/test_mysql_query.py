"""Spark queries into a table: each micro-batch once, despite replays and kills."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup import check_query, dedup_by_id, split
from dedup.errors import ConfigError, cause
from dedup.sinks import mysql_sink
from dedup.testing.sinks import once
from tests.mysql.tables import MODES, Where, run
from tests.support.file_query import FileQuery
from tests.support.needs import some_long
from tests.support.query_contract import QueryContract
from tests.support.sink_campaign import transactional_steps


class MysqlQuery(FileQuery):
    """Files of numbers to a table ``numbers(n bigint, text text)``, one file a micro-batch."""

    def __init__(self, spark: SparkSession, where: Where, folder: Path, **options: Any) -> None:
        super().__init__(spark, "dedup_mysql", folder)
        key = ", PRIMARY KEY (n)" if options.get("key") else ""
        run(where, f"CREATE TABLE numbers (n bigint, text text CHARACTER SET utf8mb4{key})")
        self.where, self.steps = where, transactional_steps(whole=options.get("mode") == "atomic")
        self.options |= {f"mysql.{name}": value for name, value in where.items()}
        self.options |= {"table": "numbers", "timeout.seconds": "20"} | options
        self.change = lambda rows: rows.repartition(2, "n")

    def found(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in run(self.where, "SELECT n FROM numbers"))


class TestQuery(QueryContract):
    @pytest.fixture(
        params=some_long(MODES[:3], MODES[2]), ids=lambda options: options.get("mode", "append")
    )
    def query(
        self, request: pytest.FixtureRequest, spark: SparkSession, where: Where, tmp_path: Path
    ) -> MysqlQuery:
        return MysqlQuery(spark, where, tmp_path, **request.param)


def test_a_restart_with_the_same_function_checks_the_table_again(
    spark: SparkSession, where: Where, tmp_path: Path
) -> None:
    """It does so even if the numbers of micro-batches have no gap."""
    query = MysqlQuery(spark, where, tmp_path, mode="upsert", key="n")
    publish = mysql_sink(where, "numbers", checkpoint=str(query.checkpoint), mode="upsert", key="n")
    query.numbers(range(3), range(2, 5))
    query.run_with(publish)
    query.numbers(range(5, 8))
    run(where, "ALTER TABLE numbers MODIFY text mediumtext CHARACTER SET utf8mb4")
    query.run_with(publish)
    query.numbers(range(8, 9))
    run(where, "ALTER TABLE numbers ADD UNIQUE other (text(9))")
    with pytest.raises(StreamingQueryException) as stopped:
        query.run_with(publish)
    assert "has another unique index, other" in str(cause(stopped.value))
    run(where, "ALTER TABLE numbers DROP INDEX other")
    query.run_with(publish)
    assert query.found() == once(9)


def test_check_query_reports_commits_that_a_crash_can_lose(
    spark: SparkSession, where: Where, tmp_path: Path
) -> None:
    """The server of the tests does not wait for the disk."""
    query = MysqlQuery(spark, where, tmp_path)
    query.numbers(range(3))
    operator = dedup_by_id("n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2)
    sink = ("dedup_mysql", {k: v for k, v in query.options.items() if k != "checkpointLocation"})
    checkpoint = str(query.checkpoint)
    try:
        for value in (0, 1):
            run(where, f"SET GLOBAL innodb_flush_log_at_trx_commit = {value}")
            found = check_query(query.rows(), operator, checkpoint=checkpoint, sink=sink)
            crashes = [each for each in found if each.rule == "sink-crashes"]
            assert bool(crashes) == (value == 0)
            if crashes:
                assert "innodb_flush_log_at_trx_commit=0" in crashes[0].evidence
                assert crashes[0].change == "innodb_flush_log_at_trx_commit=1"
    finally:
        run(where, "SET GLOBAL innodb_flush_log_at_trx_commit = 2")


@pytest.mark.slow
def test_a_missing_table_and_a_rejected_record_are_named(
    spark: SparkSession, where: Where, tmp_path: Path
) -> None:
    query = MysqlQuery(spark, where, tmp_path, mode="atomic")
    run(where, "ALTER TABLE numbers ADD CONSTRAINT c CHECK (text <> 'v7')")
    query.numbers(range(5, 10))
    with pytest.raises(Exception, match="Table nowhere does not exist") as refused:
        query.run(table="nowhere")
    assert isinstance(cause(refused.value), ConfigError)
    with pytest.raises(StreamingQueryException) as stopped:
        query.run()
    assert '"n": 7, "text": "v7"' in str(cause(stopped.value))
    assert query.found() == Counter()


def test_each_verdict_goes_to_its_own_table(
    spark: SparkSession, where: Where, tmp_path: Path
) -> None:
    query = MysqlQuery(spark, where, tmp_path)
    run(where, "CREATE TABLE copies (n bigint, text text CHARACTER SET utf8mb4, verdict text "
               "CHARACTER SET utf8mb4)")  # fmt: skip
    operator = dedup_by_id(
        "n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2, verdict="verdict"
    )
    query.change = lambda rows: rows.transform(operator)
    query.numbers(range(5), range(3, 8))
    sinks = {
        verdict: mysql_sink(where, table, checkpoint=str(query.checkpoint), options={"name": table})
        for verdict, table in (("unique", "numbers"), ("duplicate", "copies"))
    }
    split(query.rows(), **sinks).trigger(availableNow=True).start().awaitTermination(120)
    assert query.found() == Counter(range(8))
    assert sorted(run(where, "SELECT n, verdict FROM copies")) == [
        (3, "duplicate"),
        (4, "duplicate"),
    ]
