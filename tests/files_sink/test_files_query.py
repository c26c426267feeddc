"""Spark queries into folders: each micro-batch once, despite replays and kills."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import dedup
from dedup import DedupListener, dedup_by_id, split
from dedup.errors import ConfigError, DataError, cause
from dedup.sinks import files_sink
from dedup.sinks.figures import SinkMetrics
from dedup.sinks.files.options import OPTIONS
from dedup.tools.watch.query_log import read_logs
from tests.files_sink.campaign import DRIVER, POINTS, TASK
from tests.files_sink.folder_sink import once, seen
from tests.support.file_query import FileQuery
from tests.support.needs import long
from tests.support.query_contract import QueryContract
from tests.support.spark_query import listening
from tests.support.waiting import wait_until


class FilesQuery(FileQuery):
    """Files of numbers to an output of rows ``(n bigint, day string)``, one file a micro-batch.

    `options` are of the sink, with underscores for dots.
    """

    def __init__(self, spark: SparkSession, path: str, folder: Path, **options: Any) -> None:
        super().__init__(spark, "dedup_files", folder)
        self.path = path
        self.options |= {"path": path}
        self.options |= {name.replace("_", "."): value for name, value in options.items()}
        self.change = lambda rows: rows.repartition(2, "n")
        self.row = lambda n: {"n": n, "day": f"d{n % 3}"}

    def found(self) -> Counter[int]:
        """How often each number is seen by a plain reader."""
        kind = self.options.get("file.format", "parquet")
        return sum((seen(path, kind) for path in {self.path, self.options["path"]}), Counter())

    def begin_again(self, checkpoint: Path) -> None:
        super().begin_again(checkpoint)
        place, question, parameters = self.path.partition("?")
        self.options["path"] = f"{place}-again{question}{parameters}"


class TestQuery(QueryContract):
    @pytest.fixture(
        params=[
            ("local", {"partition_by": "day"}), long(("local", {"file_format": "json"})),
            long(("local", {"file_format": "csv", "header": "true"})),
            long(("s3", {"partition_by": "day"})),
        ],
        ids=lambda given: "-".join([given[0], *given[1].values()]),
    )  # fmt: skip
    def query(
        self, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
    ) -> FilesQuery:
        where, options = request.param
        path = str(tmp_path / "out")
        if where == "s3":
            path = request.getfixturevalue("store").uri(f"query-{tmp_path.name}")
        query = FilesQuery(spark, path, tmp_path, **options)
        query.steps = POINTS if where == "s3" else (*TASK, *DRIVER)
        return query


def test_each_verdict_goes_to_its_own_folder(spark: SparkSession, tmp_path: Path) -> None:
    query = FilesQuery(spark, str(tmp_path / "out"), tmp_path)
    operator = dedup_by_id(
        "n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2, verdict="verdict"
    )
    query.change = lambda rows: rows.transform(operator)
    query.numbers(range(30), range(20, 50))
    checkpoint = str(query.checkpoint)

    def start() -> None:
        unique = files_sink(tmp_path / "unique", checkpoint=checkpoint, partition_by=["day"])
        copies = files_sink(tmp_path / "copies", checkpoint=checkpoint, file_format="json",
                            options={"name": "copies"})  # fmt: skip
        writer = split(query.rows(), unique=unique, duplicate=copies).trigger(availableNow=True)
        writer.start().awaitTermination(120)

    heard: list[SinkMetrics] = []
    listener = DedupListener(log=tmp_path / "log", on_sink=heard.append)
    with listening(spark, listener):
        start()
        query.forget_commit()
        start()
        wait_until(lambda: len(heard) == 6)
    # Both sinks get the second micro-batch again.
    assert [(one.batch_id, one.sink, one.rows) for one in heard] == [
        (0, "copies", 0), (0, "files", 30), *[(1, "copies", 10), (1, "files", 20)] * 2,
    ]  # fmt: skip
    [log] = read_logs(tmp_path / "log")
    assert {one.sink for one in log.sinks} == {"copies", "files"}
    assert seen(str(tmp_path / "unique")) == once(50)
    assert seen(str(tmp_path / "copies"), "json") == Counter(range(20, 30))


def test_options_that_cannot_work_are_rejected_before_the_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = FilesQuery(spark, str(tmp_path / "out"), tmp_path)
    query.numbers(range(3))
    for options, why in (({"partition.by": "nope"}, "names 'nope', which the stream lacks"),
                         ({"compresion": "zstd"}, "Did you mean compression"),
                         ({"path": "dbfs:/x"}, "cannot be used")):  # fmt: skip
        with pytest.raises(Exception, match=why) as refused:
            query.run(**options)
        assert isinstance(cause(refused.value), ConfigError)


def test_a_value_that_text_cannot_hold_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    query = FilesQuery(spark, str(tmp_path / "out"), tmp_path, file_format="json")
    query.change = lambda rows: rows.withColumn("at", F.timestamp_seconds(F.col("n") * 10**10))
    query.numbers(range(3), range(99, 100))
    with pytest.raises(StreamingQueryException) as stopped:
        query.run()
    found = cause(stopped.value)
    assert isinstance(found, DataError)
    assert "Column 'at' has a date or time outside the years 1 to 9999" in str(found)
    assert query.found() == once(3)


def test_the_page_runs_and_lists_every_option(spark: SparkSession, tmp_path: Path) -> None:
    page = Path(dedup.__file__).with_name("sinks") / "files/README.md"
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(snippets) == 3  # the last one is of `dedup_folder`
    query = FilesQuery(spark, "unused", tmp_path)
    query.numbers(range(30))
    given = {"spark": spark, "orders": query.rows()}
    started, looked = (each.replace('"orders/', f'"{tmp_path}/') for each in snippets[:2])
    exec(started, given)
    given["query"].processAllAvailable()  # type: ignore[attr-defined]
    given["query"].stop()  # type: ignore[attr-defined]
    exec(looked, given)
    rows = given["whole"].to_table()  # type: ignore[attr-defined]
    assert Counter(rows["n"].to_pylist()) == once(30)
    assert set(rows.column_names) == {"n", "day", "batch"}
    named = set(re.findall(r"^\| `([a-z.]+)` \|", page.read_text(), re.MULTILINE))
    assert named == {option.name for option in OPTIONS}
