"""A real query under a restart strategy: it ends complete, or at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from dedup.errors import DataError, SourceError, cause
from dedup.sinks import files_sink
from dedup.spark.driver.fail_query import fail_query
from dedup.tools import FixedDelay, run_with_restarts
from tests.support.pages import snippets
from tests.support.processes import run_python
from tests.support.spark_query import Query
from tests.support.waiting import wait_until


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


# --- queries that the package ends itself

WHY = SourceError("Topic t is another one.\nIts ID differs.", remedy="topic-made-anew")
WAITERS: dict[str, Callable[[StreamingQuery, SparkSession], object]] = {
    "awaitTermination": lambda query, _: query.awaitTermination(),
    "awaitTermination with a time": lambda query, _: query.awaitTermination(60),
    "awaitAnyTermination": lambda _, spark: spark.streams.awaitAnyTermination(),
    "run_with_restarts": lambda query, _: run_with_restarts(lambda: query, FixedDelay(3)),
}


def idle(spark: SparkSession, folder: Path) -> StreamingQuery:
    """Start a query that waits for files in vain."""
    (folder / "input").mkdir(parents=True)
    rows = spark.readStream.schema("a string").csv(str(folder / "input"))
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.format("noop").start()
    assert wait_until(lambda: "Waiting" in query.status["message"], 60)
    return query


@pytest.mark.parametrize("waiter", WAITERS)
def test_every_caller_that_awaits_an_idle_query_gets_the_error_that_ends_it(
    spark: SparkSession, tmp_path: Path, waiter: str
) -> None:
    other, query = idle(spark, tmp_path / "other"), idle(spark, tmp_path / "ended")
    spark.streams.resetTerminated()
    # A guard finds its query by the ID, and holds another object for it than the user.
    ended = Timer(0.3, fail_query, [spark.streams.get(str(query.id)), WHY])
    ended.start()
    with pytest.raises(Exception, match="Topic t is another one") as caught:
        WAITERS[waiter](query, spark)
    ended.join()
    for error in (cause(caught.value), cause(query.exception())):
        assert (type(error), str(error)) == (SourceError, str(WHY))
    assert not query.isActive
    assert other.isActive, "the session's other queries continue"


def test_a_micro_batch_during_which_we_end_the_query_is_not_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    query, begun = Query(spark, tmp_path, {}).add("a@1"), Event()

    def wait(rows: DataFrame, batch_id: int) -> None:
        begun.set()
        time.sleep(2)
        rows.count()

    writer = query.source().writeStream.option("checkpointLocation", str(query.checkpoint))
    running = writer.foreachBatch(wait).start()
    assert begun.wait(60)
    fail_query(running, WHY)
    assert (type(cause(running.exception())), running.isActive) == (SourceError, False)
    assert not list((query.checkpoint / "commits").glob("[0-9]*"))


CONNECT = """
import json, sys
from pyspark.sql import SparkSession
from dedup.tools import FixedDelay, run_with_restarts
from dedup.errors import SourceError
from tests.spark.test_restarts import WHY, fail_query, idle
from pathlib import Path

spark = (SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF").getOrCreate())

def start():
    query = idle(spark, Path(sys.argv[1]))
    fail_query(spark.streams.get(str(query.id)), WHY)
    return query

try:
    run_with_restarts(start, FixedDelay(3))
except SourceError as error:
    print(json.dumps([type(spark).__module__, error.remedy]))
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("grpc") is None, reason="needs grpcio (pip install grpcio)")
def test_run_with_restarts_gets_the_error_over_spark_connect_too(tmp_path: Path) -> None:
    module, remedy = run_python(CONNECT, tmp_path)
    assert module.startswith("pyspark.sql.connect")
    assert remedy == WHY.remedy
