"""`dedup_folder` on real Spark: a folder in, a folder out, for one query."""

from __future__ import annotations

import logging
import re
from datetime import date
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

import dedup
from dedup import DedupListener, dedup_by_id
from dedup.errors import ConfigError
from dedup.sinks import dedup_folder
from dedup.sinks.figures import SinkMetrics
from dedup.sinks.files.task_files import TaskFiles
from dedup.tools.watch.query_log import read_logs
from tests.support.cli_job import FileDrop
from tests.support.spark_query import listening
from tests.support.waiting import wait_until

DAY = date(2024, 5, 1)


@pytest.fixture
def run(spark: SparkSession, files: FileDrop, tmp_path: Path) -> Any:
    """Runs a query until all files are read; what the output holds then."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")

    def run(checkpoint: str = "checkpoint", **options: Any) -> list[tuple[Any, ...]]:
        given, folder = options.pop("operator", {}), options.pop("folder", "out")
        operator = dedup_by_id(
            given.pop("id", "id"), horizon="1 day", catalog=tmp_path / f"{folder}-catalog", **given
        )
        output = tmp_path / folder
        writer = dedup_folder(spark, files.folder, operator, output=output, **options)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()
        frame = spark.read.format(options.get("output_format", "parquet")).load(str(output))
        frame = frame.drop("batch")
        return sorted((tuple(row) for row in frame.collect()), key=repr)

    return run


@pytest.mark.parametrize("source_format", ["parquet", "orc"])
def test_each_start_takes_the_new_files(
    run: Any, files: FileDrop, tmp_path: Path, source_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = {"source_format": source_format}
    (files.folder / "day=1").mkdir()
    files.table(f"day=1/1.{source_format}", pa.table({"id": ["a", "b"], "n": [1, 2]}))
    assert run(**given) == [("a", 1, 1), ("b", 2, 1)]
    files.table(f"day=1/2.{source_format}", pa.table({"id": ["b", "c"], "n": [3, 4]}))
    given["options"] = {"maxFilesPerTrigger": "1"}
    assert run(**given) == [("a", 1, 1), ("b", 2, 1), ("c", 4, 1)]
    by_spark = any("Spark itself reads the files" in message for message in caplog.messages)
    assert by_spark == (source_format == "orc")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "_dedup.query", "_staging", "batch=0", "batch=1",
    ]  # fmt: skip


def test_a_file_that_is_emptied_after_it_was_listed_stops_the_query(
    run: Any, files: FileDrop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may overwrite it in place, and its new content would never be read."""
    path = files.folder / "1.parquet"
    files.table(path.name, pa.table({"id": ["a"]}))
    write, emptied = TaskFiles.write, list[Path]()

    def write_of_an_emptied_one(self: TaskFiles, *given: Any) -> None:
        path.write_bytes(b"")
        emptied.append(path)
        write(self, *given)

    monkeypatch.setattr(TaskFiles, "write", write_of_an_emptied_one)
    with pytest.raises(Exception, match=rf"{path} was overwritten while its micro-batch was"):
        run()
    assert emptied
    monkeypatch.undo()
    files.table(path.name, pa.table({"id": ["a", "b"]}))
    assert run() == [("a",), ("b",)]


def test_duplicates_go_to_their_own_folder(
    run: Any, files: FileDrop, spark: SparkSession, tmp_path: Path
) -> None:
    files.table("1.parquet", pa.table({"id": ["a", "a", None]}))
    assert run(duplicates=tmp_path / "dup", operator={"null_ids": "drop"}) == [("a",)]
    told = spark.read.parquet(str(tmp_path / "dup")).drop("batch").collect()
    assert sorted(map(tuple, told), key=repr) == [("a", "duplicate"), (None, "null_id")]


@pytest.mark.parametrize("by_spark", [False, True])
def test_metrics_count_the_written_rows_and_bytes(
    run: Any, files: FileDrop, spark: SparkSession, tmp_path: Path, by_spark: bool
) -> None:
    files.table("1.parquet", pa.table({"id": ["a", "a", "b"]}))
    files.table("2.parquet", pa.table({"id": ["b", "c"]}))
    heard: list[SinkMetrics] = []
    codec = "lz4_raw" if by_spark else "zstd"  # only Spark writes the first
    spark.conf.set("spark.sql.parquet.compression.codec", codec)
    with listening(spark, DedupListener(on_sink=heard.append, log=tmp_path / "log")):
        run(options={"maxFilesPerTrigger": "1"}, duplicates=tmp_path / "dup")
        wait_until(lambda: len(heard) == 2)
        # The listener writes its log after the callback.
        wait_until(lambda: read_logs(tmp_path / "log")[0].sinks == heard)
    spark.conf.unset("spark.sql.parquet.compression.codec")
    for one in heard:
        written = [*tmp_path.glob(f"*/batch={one.batch_id}/**/*.parquet")]
        assert one.bytes == sum(path.stat().st_size for path in written)
    counts = [(one.sink, one.rows, one.retries, one.fenced, one.task_us) for one in heard]
    assert counts == [("files", 3, None, None, None), ("files", 2, None, None, None)]
    assert all(one.driver_us > 0 for one in heard)


def test_times_without_a_zone_are_read_in_javas_zone_if_the_session_has_none(
    run: Any, files: FileDrop, spark: SparkSession, tmp_path: Path
) -> None:
    files.text("1.csv", "id,t\na,1970-01-01 09:00:00\n")
    zones = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    spark.conf.unset("spark.sql.session.timeZone")
    zones.setDefault(zones.getTimeZone("Asia/Tokyo"))
    try:
        run(source_format="csv", schema="id STRING, t TIMESTAMP")
        read = spark.read.parquet(str(tmp_path / "out")).select(fn.unix_seconds("t")).collect()
    finally:
        zones.setDefault(before)
    assert [seconds for (seconds,) in read] == [0]


def test_spark_reads_the_files_if_the_id_is_an_expression(
    run: Any, files: FileDrop, caplog: pytest.LogCaptureFixture
) -> None:
    files.table("1.parquet", pa.table({"id": ["a", "A"]}))
    with caplog.at_level(logging.WARNING, "dedup"):
        assert len(run(operator={"id": fn.lower("id")})) == 1
    assert (
        "Spark itself reads the files, which takes longer: the record ID, timestamp or order is an "
        "expression."
    ) in caplog.messages


@pytest.mark.parametrize(
    ("source_format", "lines", "schema"),
    [
        ("csv", ["id,n", '"a\nb",1', "A,2", "a,3"], None),
        ("json", ['{"id":"a\\nb","n":"1"}', '{"n":"2","id":"A"}', '{"id":"a","n":"3"}'],
         "id STRING, n STRING, day DATE"),
    ],
)  # fmt: skip
def test_tasks_read_and_write_text(
    run: Any,
    files: FileDrop,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    source_format: str,
    lines: list[str],
    schema: str | None,
) -> None:
    """They do so even if the record ID is an expression, which only Spark computes."""
    (files.folder / "day=2024-05-01").mkdir()
    files.text(f"day=2024-05-01/1.{source_format}", "\n".join(lines) + "\n")
    # Patterns are for the text in files, and not for the names of folders.
    options = {"dateFormat": "dd/MM/yyyy"}
    given = {"source_format": source_format, "schema": schema, "options": options}
    with caplog.at_level(logging.WARNING, "dedup"):
        found = run(**given)
        run("other", **given, operator={"id": fn.lower("id")}, folder="lower")
    assert found == [("A", "2", DAY), ("a", "3", DAY), ("a\nb", "1", DAY)]
    assert caplog.messages == []
    run("third", **given, folder="text", output_format="csv")
    texts = [path.read_text() for path in (tmp_path / "text").glob("batch=0/*.csv")]
    assert all(text.startswith("id,n,day\n") for text in texts)
    lines = ['"a', 'b",1,2024-05-01', "A,2,2024-05-01", "a,3,2024-05-01"]
    assert sorted("".join(text[9:] for text in texts).splitlines()) == sorted(lines)


def test_bad_text_is_reported_with_its_line(run: Any, files: FileDrop) -> None:
    files.text("1.csv", "id,n\na,1\nb\n")
    with pytest.raises(Exception, match=r"1.csv cannot be read: .*It is line 3: b"):
        run(source_format="csv")
    with pytest.raises(ConfigError, match="Option mode=PERMISSIVE has no meaning for CSV"):
        run(source_format="csv", options={"mode": "PERMISSIVE"})
    files.text("1.csv", "id,n\na,1\n")
    (files.folder / "p=1.005").mkdir()
    files.text("p=1.005/2.csv", "id,n\na,1\n")
    with pytest.raises(Exception, match=r"its folder p=1.005 does not fit decimal\(3,2\)"):
        run(source_format="csv", schema="id STRING, n INT, p DECIMAL(3,2)")
    with pytest.raises(ConfigError, match="source_format='json' needs schema="):
        run(source_format="json")
    with pytest.raises(ConfigError, match="has no text for the column 'a'"):
        run(schema="id STRING, a ARRAY<INT>", output_format="csv")


def test_an_output_belongs_to_one_query(run: Any, files: FileDrop, tmp_path: Path) -> None:
    files.table("1.parquet", pa.table({"id": ["a"]}))
    run()
    with pytest.raises(Exception, match=r"holds micro-batches of query .*, and this is query"):
        run("another")
    (tmp_path / "out" / "batch=1").mkdir()
    (tmp_path / "out" / "batch=2").mkdir()
    files.table("2.parquet", pa.table({"id": ["b"]}))
    with pytest.raises(Exception, match="holds micro-batches 2 to 2, and the query is at 1"):
        run()


def test_an_output_of_another_program_is_left_untouched(
    run: Any, files: FileDrop, tmp_path: Path
) -> None:
    files.table("1.parquet", pa.table({"id": ["a"]}))
    staged = tmp_path / "out" / "_staging" / "of a run"
    staged.mkdir(parents=True)
    (tmp_path / "out" / "_dedup.json").write_text("{}")
    with pytest.raises(Exception, match="holds micro-batches of `dedup run`"):
        run()
    assert staged.exists()


def test_a_side_output_that_is_ahead_is_refused(run: Any, files: FileDrop, tmp_path: Path) -> None:
    (tmp_path / "dup" / "batch=3").mkdir(parents=True)
    files.table("1.parquet", pa.table({"id": ["a"]}))
    with pytest.raises(Exception, match="dup holds micro-batches 3 to 3, and the query is at"):
        run(duplicates=tmp_path / "dup")


def test_options_that_cannot_work_are_rejected_before_the_start(
    run: Any, files: FileDrop, tmp_path: Path
) -> None:
    files.table("1.parquet", pa.table({"id": ["a"]}))
    with pytest.raises(ConfigError, match="overlap; give each its own folder"):
        run(duplicates=tmp_path / "out" / "dup")
    with pytest.raises(ConfigError, match="verdict= lets every row pass"):
        run(duplicates=tmp_path / "dup", operator={"verdict": "v"})
    with pytest.raises(ConfigError, match="is a URI, but must be the path of a folder"):
        run(duplicates="s3://bucket/dup")


def test_the_example_of_the_page_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(dedup.__file__).with_name("sinks").joinpath("files/README.md").read_text()
    *_, snippet = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    ts = pa.array([0, 1, 2], pa.timestamp("us", "UTC"))
    FileDrop(tmp_path / "landing").table("1.parquet", pa.table({"id": ["a", "b", "a"], "ts": ts}))
    given = {"spark": spark}
    # Java stays where it was started.
    place = '"checkpointLocation", "'
    assert place in snippet
    exec(snippet.replace(place, f"{place}{tmp_path}/"), given)
    given["query"].awaitTermination()  # type: ignore[attr-defined]
    assert sorted(spark.read.parquet(str(tmp_path / "unique")).toPandas()["id"]) == ["a", "b"]
    assert spark.read.parquet(str(tmp_path / "repeated")).count() == 1


def test_a_session_of_spark_connect_is_refused() -> None:
    class Connect:
        @property
        def sparkContext(self) -> Any:  # noqa: N802
            raise PySparkAttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED]")

    operator = dedup_by_id("id", horizon="1 day", catalog="catalog")
    with pytest.raises(ConfigError, match="needs a classic session"):
        dedup_folder(cast(Any, Connect()), "in", operator, output="out")
