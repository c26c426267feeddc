"""A real query under a restart strategy: it ends complete, or at once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dedup import FixedDelay, files_sink, run_with_restarts
from dedup.errors import DataError
from tests.support.pages import snippets
from tests.support.spark_query import Query


def test_a_query_whose_code_fails_at_random_ends_with_each_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, {}).add("a@1", "b@1").add("c@1")
    sink = files_sink(str(tmp_path / "out"), checkpoint=str(query.checkpoint))
    luck, failed = random.Random(14), []

    def write(rows: DataFrame, batch_id: int) -> None:
        for step in ("before", "after"):
            if luck.random() < 0.3:
                failed.append(step)
                raise OSError("bad luck")
            if step == "before":
                sink(rows, batch_id)

    def start() -> StreamingQuery:
        writer = query.source().writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(query.checkpoint))
        return writer.foreachBatch(write).start()

    slept: list[float] = []
    done = run_with_restarts(start, FixedDelay(20, "1 second"), sleep=slept.append)
    assert done.exception() is None
    assert failed == ["before", "after", "before"]
    assert slept == [1, 1, 1]
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in found) == ["a", "b", "c"]


def test_the_program_of_the_page_ends_with_the_code_of_its_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, {"horizon": "1 day", "null_ids": "error"}).add("a@1", "-@2")
    (program,) = (text for text in snippets("tools/README.md") if "run_with_restarts" in text)
    assert "orders/checkpoint" in program
    names: dict[str, Any] = {"unique": query.result()}
    exec(program.replace("orders/checkpoint", str(query.checkpoint)), names)
    names["ExponentialDelay"] = lambda **_: FixedDelay(0)
    with pytest.raises(SystemExit) as ended:
        names["main"]()
    assert ended.value.code == 1
    assert isinstance(ended.value.__context__, DataError)
    names["unique"] = None  # an error that is not of this package may pass
    with pytest.raises(SystemExit) as ended:
        names["main"]()
    assert ended.value.code == 75
