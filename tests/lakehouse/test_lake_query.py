"""Spark queries into tables: each micro-batch once, despite replays and kills."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id, split
from dedup.errors import ConfigError, SinkError, cause
from dedup.sinks import delta_once, delta_sink, iceberg_once, iceberg_sink
from dedup.sinks.lakehouse.options import DELTA, ICEBERG
from tests.lakehouse.lakes import Lake, once
from tests.support.file_query import FileQuery
from tests.support.query_contract import QueryContract
from tests.support.sink_campaign import steps
from tests.support.state_stores import ROCKSDB_V2, configured

#: What the two have in common by then is tested by one of them, elsewhere by both.
BOTH_IF_SLOW = pytest.mark.parametrize(
    "lake", [DELTA, pytest.param(ICEBERG, marks=pytest.mark.slow)], indirect=True
)


class LakeQuery(FileQuery):
    """Files of numbers to a table, one file a micro-batch."""

    steps = steps("lakehouse.")

    def __init__(self, spark: SparkSession, lake: Lake, folder: Path, **options: Any) -> None:
        super().__init__(spark, lake.format, folder)
        self.lake, self.options = lake, self.options | lake.options() | {"create": "true"} | options

    def found(self) -> Counter[int]:
        """How often each number is in the table."""
        return self.lake.found()


class TestQuery(QueryContract):
    @pytest.fixture
    def query(self, spark: SparkSession, lake: Lake, tmp_path: Path) -> LakeQuery:
        return LakeQuery(spark, lake, tmp_path / "query")


@pytest.mark.slow
def test_a_replay_with_rocksdb_and_checkpoint_format_2_repeats_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    query = LakeQuery(spark, lake, tmp_path / "query")
    query.dedup(tmp_path / "catalog", shards=2)
    query.numbers(range(30), range(20, 50))
    with configured(spark, ROCKSDB_V2):
        query.run()
        query.forget_commit()
        query.run()
    assert query.found() == once(50)
    assert '"stateUniqueIds":{' in (query.checkpoint / "commits/1").read_text()


@BOTH_IF_SLOW
@pytest.mark.slow
def test_a_copied_checkpoint_publishes_nothing_twice(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """It has the ID of the original, so it finds the original's micro-batches."""
    query = LakeQuery(spark, lake, tmp_path / "query")
    query.numbers(range(30))
    query.run()
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    query.numbers(range(30, 60))
    query.run()
    copied = {"checkpointLocation": str(tmp_path / "copy")}
    query.run(**copied)
    assert query.found() == once(60)
    query.numbers(range(60, 90))
    query.run(**copied)
    query.forget_commit()
    with pytest.raises(StreamingQueryException) as stopped:
        query.run()
    found = cause(stopped.value)
    assert isinstance(found, SinkError)
    assert found.remedy == "sink-older-checkpoint"
    assert query.found() == once(90)


@pytest.mark.parametrize(
    "fails",
    [
        pytest.param(0, id="before", marks=pytest.mark.slow),
        pytest.param(1, id="between"),
        pytest.param(2, id="after", marks=pytest.mark.slow),
    ],
)
def test_a_failure_before_between_or_after_two_tables_repeats_nothing(
    spark: SparkSession, tmp_path: Path, fails: int
) -> None:
    """Unique records go to Delta Lake, duplicates to Iceberg."""
    delta, iceberg = Lake(DELTA, tmp_path / "delta"), Lake(ICEBERG, tmp_path / "iceberg")
    query = FileQuery(spark, "none", tmp_path / "query")
    checkpoint = str(query.checkpoint)
    operator = dedup_by_id(
        "n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2, verdict="verdict"
    )
    query.change = lambda rows: rows.transform(operator)
    unique = delta_sink(delta.folder / "numbers", checkpoint=checkpoint, create=True)
    settings = {name: value for name, value in iceberg.options().items() if name != "table"}
    copies = iceberg_sink("shop.numbers", checkpoint=checkpoint, create=True, options=settings)
    broken = [fails]

    def fail_at(step: int, batch_id: int) -> None:
        if batch_id == 1 and step in broken:
            broken.remove(step)
            raise RuntimeError("made to fail")

    def to_unique(rows: DataFrame, batch_id: int) -> None:
        fail_at(1, batch_id)
        unique(rows, batch_id)
        fail_at(2, batch_id)

    def to_copies(rows: DataFrame, batch_id: int) -> None:
        fail_at(0, batch_id)
        copies(rows, batch_id)

    def go() -> None:
        writer = split(query.rows(), unique=to_unique, duplicate=to_copies)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination(120)

    query.row = lambda n: {"n": n}
    query.numbers([*range(10), 0, 1])
    query.numbers(range(5, 15))
    with pytest.raises(StreamingQueryException, match="made to fail"):
        go()
    go()
    query.forget_commit()
    go()
    assert not broken
    assert delta.found() == once(15)
    assert sorted(iceberg.found().elements()) == [0, 1, 5, 6, 7, 8, 9]
    assert set(iceberg.read()["verdict"].to_pylist()) == {"duplicate"}


def test_two_sinks_of_one_name_are_rejected(spark: SparkSession, tmp_path: Path) -> None:
    """The second sink would find the marker of the first, and drop its rows."""
    lake = Lake(DELTA, tmp_path / "delta")
    query = FileQuery(spark, "none", tmp_path / "query")
    checkpoint = str(query.checkpoint)
    query.add([{"n": 1}])

    def go(**second: str) -> None:
        where = lake.folder / "numbers"
        one = delta_sink(where, checkpoint=checkpoint, create=True)
        two = delta_sink(where, checkpoint=checkpoint, create=True, options=second)

        def both(rows: DataFrame, batch_id: int) -> None:
            one(rows, batch_id)
            two(rows, batch_id)

        query.run_with(both)

    with pytest.raises(StreamingQueryException, match="Two sinks of the query have the name"):
        go()
    go(name="two")
    assert lake.found() == {1: 2}


def test_split_rejects_sinks_of_different_checkpoints_or_equal_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = FileQuery(spark, "none", tmp_path / "query")
    query.add([{"n": 1}])
    operator = dedup_by_id("n", horizon="1 hour", catalog=str(tmp_path / "c"), verdict="verdict")
    marked = query.rows().transform(operator)
    unique = delta_once("/orders", checkpoint="/a")
    with pytest.raises(ConfigError, match="one checkpoint; these have /a and /b"):
        split(marked, unique=unique, late=iceberg_once("shop.late", checkpoint="/b"))
    with pytest.raises(ConfigError, match="Two sinks of the query have the name 'delta'"):
        split(marked, unique=unique, late=delta_once("/late", checkpoint="/a"))


def test_options_that_cannot_work_are_rejected_before_the_query_starts(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    query = LakeQuery(spark, lake, tmp_path / "query", create="false")
    query.numbers(range(3))
    with pytest.raises(Exception, match="let the option create=true make it") as refused:
        query.run()
    assert isinstance(cause(refused.value), ConfigError)
    with pytest.raises(Exception, match="The option nmae is unknown") as refused:
        query.run(nmae="x")
    assert isinstance(cause(refused.value), ConfigError)
