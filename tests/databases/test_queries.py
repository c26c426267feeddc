"""Spark queries into a table: each micro-batch once, despite replays and kills."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import check_query, dedup_by_id
from dedup.errors import ConfigError, cause
from dedup.testing import faults
from dedup.testing.sinks import once
from tests.databases.database import MODES, Database, mode_name
from tests.databases.mysql import Mysql
from tests.support.file_query import FileQuery
from tests.support.needs import long, needs_spark_4
from tests.support.query_contract import QueryContract
from tests.support.sink_campaign import transactional_steps

BOTH = pytest.mark.parametrize("server", ["postgres", long("mysql")], indirect=True)
APPEND, ATOMIC, UPSERT = MODES[:3]


class DatabaseQuery(FileQuery):
    """Files of numbers to a table ``numbers(n bigint, text text)``, one file a micro-batch."""

    def __init__(self, spark: SparkSession, db: Database, **options: str) -> None:
        super().__init__(spark, db.kind.format_name, db.folder)
        key = ", PRIMARY KEY (n)" if options.get("key") else ""
        db.run(f"CREATE TABLE numbers (n bigint, text text{key})")
        self.db, self.steps = db, transactional_steps(whole=options.get("mode") == "atomic")
        fixed = {"table": "numbers", "timeout.seconds": "20"}
        self.options |= db.address | fixed | options
        self.change = lambda rows: rows.repartition(2, "n")

    def found(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in self.db.run("SELECT n FROM numbers"))


class TestQuery(QueryContract):
    @pytest.fixture(
        params=[("postgres", APPEND), long(("postgres", ATOMIC)), long(("postgres", UPSERT)),
                long(("mysql", APPEND)), long(("mysql", ATOMIC)), ("mysql", UPSERT)],
        ids=lambda param: f"{param[0]}-{mode_name(param[1])}",
    )  # fmt: skip
    def query(self, request: pytest.FixtureRequest, spark: SparkSession) -> DatabaseQuery:
        name, mode = request.param
        return DatabaseQuery(spark, request.getfixturevalue(name), **mode)

    @pytest.mark.parametrize("query", [("postgres", APPEND)], indirect=True, ids=["postgres"])
    def test_kills_at_some_steps_lose_and_repeat_nothing(
        self, query: DatabaseQuery, fault_folder: Path
    ) -> None:
        """The kills hit a task that publishes and one that stages."""
        self.kill(query, fault_folder, ("kit.rows.sent", "kit.stage.after"))


@pytest.mark.parametrize("point", ["kit.begun", "kit.commit.after"])
@pytest.mark.slow
def test_a_killed_query_continues_with_another_number_of_cores(
    spark: SparkSession, db: Database, tmp_path: Path, fault_folder: Path, point: str
) -> None:
    """A half published micro-batch continues with as many map tasks as other cores would make."""
    query = DatabaseQuery(spark, db)
    query.dedup(tmp_path / "catalog", shards=2)
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


@BOTH
def test_two_sinks_in_foreach_batch_survive_a_replay(spark: SparkSession, db: Database) -> None:
    query = DatabaseQuery(spark, db)
    db.run("CREATE TABLE copies (n bigint PRIMARY KEY, text text)")
    publish = db.function("numbers")
    copies = db.function("copies", **UPSERT, options={"name": "copies"})

    def both(rows: DataFrame, batch_id: int) -> None:
        publish(rows, batch_id)
        copies(rows, batch_id)

    query.numbers(range(30), range(30, 60))
    query.run_with(both)
    query.forget_commit()
    query.run_with(both)
    assert query.found() == once(60)
    assert db.run("SELECT count(*) FROM copies") == [(60,)]


@BOTH
def test_a_missing_table_and_a_rejected_record_are_named(spark: SparkSession, db: Database) -> None:
    query = DatabaseQuery(spark, db, mode="atomic")
    db.run("ALTER TABLE numbers ADD CONSTRAINT no_v7 CHECK (text <> 'v7')")
    query.numbers(range(5), range(5, 10))
    with pytest.raises(Exception, match="Table nowhere does not exist") as rejected:
        query.run(table="nowhere")
    assert isinstance(cause(rejected.value), ConfigError)
    with pytest.raises(StreamingQueryException) as stopped:
        query.run()
    record = db.own(postgres="(7, v7)", mysql='"n": 7, "text": "v7"')
    assert record in str(cause(stopped.value))
    assert query.found() == once(5)
    db.run("ALTER TABLE numbers DROP CONSTRAINT no_v7")
    query.run()
    assert query.found() == once(10)


def test_a_restart_with_the_same_function_checks_the_table_again(
    spark: SparkSession, db: Database
) -> None:
    """It does so even if the numbers of micro-batches have no gap."""
    query = DatabaseQuery(spark, db)
    publish = db.function("numbers")
    change = db.own(postgres="ALTER n TYPE numeric", mysql="MODIFY text mediumtext")
    unsafe = db.own(postgres="SET UNLOGGED", mysql="ENGINE = Aria")
    for numbers, alter in ((range(3), change), (range(3, 8), unsafe)):
        query.numbers(numbers)
        query.run_with(publish)
        db.run(f"ALTER TABLE numbers {alter}")
    query.numbers(range(8, 9))
    with pytest.raises(StreamingQueryException) as stopped:
        query.run_with(publish)
    assert f"numbers is {db.own(postgres='UNLOGGED', mysql='of the engine Aria')}" in str(
        cause(stopped.value)
    )
    db.run(f"ALTER TABLE numbers {db.own(postgres='SET LOGGED', mysql='ENGINE = InnoDB')}")
    query.run_with(publish)
    assert query.found() == once(9)


@needs_spark_4
def test_check_query_reports_commits_that_a_crash_can_lose(
    spark: SparkSession, mysql: Mysql, tmp_path: Path
) -> None:
    """The server of the tests does not wait for the disk."""
    query = DatabaseQuery(spark, mysql)
    query.numbers(range(3))
    operator = dedup_by_id("n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2)
    sink = ("dedup_mysql", {k: v for k, v in query.options.items() if k != "checkpointLocation"})
    for value in (0, 1):
        with mysql.setting(back=2, innodb_flush_log_at_trx_commit=value):
            found = check_query(query.rows(), operator, checkpoint=str(query.checkpoint), sink=sink)
        crashes = [each for each in found if each.rule == "sink-crashes"]
        assert bool(crashes) == (value == 0)
        if crashes:
            assert "innodb_flush_log_at_trx_commit=0" in crashes[0].evidence
            assert crashes[0].change == "innodb_flush_log_at_trx_commit=1"
