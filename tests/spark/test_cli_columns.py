"""Files of `dedup run` whose columns change: no column is lost without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from dedup.cli.failures import USAGE
from dedup.cli.run.work import plan
from dedup.sinks.folder_sink import StagedFiles
from tests.support.cli_job import Job
from tests.support.needs import long, needs_spark_4


def written(job: Job) -> list[dict[str, Any]]:
    """All rows of a JSON output, as text."""
    files = sorted(job.output.glob("batch=*/*.json"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def lines(job: Job, batch: int) -> set[str]:
    files = job.output.glob(f"batch={batch}/*.csv")
    return {line for path in files for line in path.read_text().splitlines()}


def table(job: Job, name: str, **columns: Any) -> Path:
    return job.files.table(name, pa.table(columns))


def test_new_columns_of_json_stop_the_run_or_are_added(job: Job) -> None:
    job.files.text("1.json", '{"id":"a","s":{"x":1}}\n')
    job()
    new = job.files.text(
        "2.json", '{"id":"b","extra":"q","s":{"x":2,"y":[3]}}\n{"id":"c","N":1.5}\n'
    )
    hidden = job.files.text("2b.json", '{"id":"d","batch":1}\n')
    assert "INPUT has a column 'batch'" in job.fails(new_columns="add").message
    hidden.unlink()
    spelled = job.files.text("3.json", '{"ID":"d"}\n')
    failure = job.fails(new_columns="add")
    assert f"{spelled} has 'ID' (string), whose case differs from the output's" in failure.message
    spelled.write_text('{"id":"d"}\n')
    failure = job.fails()
    assert (failure.exit_code, failure.remedy) == (USAGE, "new-columns")
    assert f"{new} has 's.y' (array<bigint>), 'N' (double), 'extra' (string)" in failure.message
    assert "--new-columns add" in failure.message
    assert "--schema" in failure.message
    assert job.visible() == ["batch=0"]
    with pytest.raises(ValueError, match=r"'extra'"):
        plan(job.made(), spark=job.spark)
    job(new_columns="add")
    job.files.text("4.json", '{"id":"e","extra":"r"}\n')
    # What was added stays, without the option.
    job()
    rows = {row["id"]: row for row in written(job)}
    assert rows["a"] == {"id": "a", "s": {"x": 1}}
    assert rows["b"] == {"id": "b", "extra": "q", "s": {"x": 2, "y": [3]}, "N": None}
    assert rows["c"]["N"] == 1.5
    assert rows["e"]["extra"] == "r"
    assert set(rows) == set("abcde")


def test_columns_missing_from_the_schema_stop_the_run_or_are_ignored(job: Job) -> None:
    job.files.text("1.json", '{"id":"a","n":1}\n')
    failure = job.fails(schema="id STRING")
    assert "that --schema lacks: " in failure.message
    assert "1.json has 'n' (bigint)" in failure.message
    assert job.visible() == []
    job(schema="id STRING", new_columns="ignore")
    assert written(job) == [{"id": "a"}]


@needs_spark_4  # Spark 3.5 reads no int as bigint
@pytest.mark.parametrize("ending", ["parquet", long("orc")])
def test_new_and_changed_columns_of_typed_files_are_detected(job: Job, ending: str) -> None:
    table(job, f"1.{ending}", id=["a"], n=pa.array([1], pa.int32()))
    job()
    new = table(job, f"2.{ending}", id=["b"], n=pa.array([2], pa.int32()), extra=["q"])
    wide = table(job, f"3.{ending}", id=["c"], n=pa.array([1 << 40], pa.int64()))
    failure = job.fails()
    assert f"{wide}: the column 'n' is bigint there, and int in the output" in failure.message
    wide.rename(wide.with_suffix(".away"))
    failure = job.fails()
    assert f"{new} has 'extra' (string)" in failure.message
    assert job.visible() == ["batch=0"]
    job(new_columns="add")
    frame = job.spark.read.parquet(str(job.output / "batch=1"))
    rows = [tuple(row) for row in frame.select("id", "n", "extra").collect()]
    assert rows == [("b", 2, "q")]
    wide.with_suffix(".away").rename(wide)
    failure = job.fails(new_columns="add")
    assert f"{wide}: the column 'n' is bigint there, and int in the output" in failure.message
    assert "Or give a new --output, and --schema" in failure.message
    assert job.fails(schema="id STRING, n BIGINT, extra STRING").remedy == "changed-settings"
    other = job.output.with_name("other")
    job(schema="id STRING, n BIGINT, extra STRING", output=other)
    frame = job.spark.read.parquet(str(other / "batch=*"))
    assert sorted(tuple(row) for row in frame.select("id", "n").collect()) == [
        ("a", 1), ("b", 2), ("c", 1 << 40),
    ]  # fmt: skip
    wide.unlink()
    one = table(job, f"4.{ending}", id=["d"], new=pa.array([1], pa.int32()))
    two = table(job, f"4b.{ending}", id=["e"], new=pa.array([1 << 40], pa.int64()))
    failure = job.fails(new_columns="add")
    assert f"{two}: the column 'new' is bigint there, and int in the output" in failure.message
    one.unlink()
    two.unlink()
    key = table(job, f"5.{ending}", id=[7])
    assert "'id' is bigint there" in job.fails(new_columns="add").message
    key.write_bytes(b"PAR1 nonsense PAR1")
    failure = job.fails()
    assert failure.message.startswith(f"{key} cannot be read: ")
    assert job.visible() == ["batch=0", "batch=1"]
    # It was not planned, so that it can go.
    key.unlink()
    job()


@pytest.mark.slow
def test_new_and_missing_columns_of_csv_are_detected(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\n")
    job()
    new = job.files.text("2.csv", "id,y,x\nb,q,2\n")
    job.files.text("3.csv", "id,x\nc,3\n")
    assert f"{new} has 'y' (string)" in job.fails().message
    job(new_columns="ignore")
    assert job.rows() == [("a", "1"), ("b", "2"), ("c", "3")]
    job.files.text("4.csv", "y,ID,x\nq,d,4\n")
    old = job.files.text("5.csv", "id,x\ne,5\n")
    assert f"{old} lacks the columns 'y'" in job.fails(new_columns="add").message
    old.unlink()
    job(new_columns="add")
    # A task without rows leaves a header.
    assert lines(job, 3) == {"id,x,y", "d,4,q"}
    less = job.files.text("5.csv", "id,y\ne,q\n")
    failure = job.fails()
    assert f"{less} lacks the columns 'x'" in failure.message
    job(schema="id STRING, y STRING")
    assert lines(job, 4) == {"id,y", "e,q"}


def test_a_column_named_by_a_later_folder_is_refused_or_ignored(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\n")
    job()
    job.files.text("day=1/2.csv", "id,x\nb,1\n")
    assert "day=1/2.csv has 'day'" in job.fails().message
    assert "is named by a folder" in job.fails(new_columns="add").message
    job(new_columns="ignore")
    assert job.rows() == [("a", "1"), ("b", "1")]


@pytest.mark.slow
def test_a_column_that_appears_while_the_run_starts_is_not_lost(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It appears after the check and before Spark lists the folder."""
    job.files.text("1.json", '{"id":"a"}\n')
    job.files.text("2.json", '{"id":"b"}\n')
    opened = StagedFiles.open

    def late(sink: StagedFiles) -> None:
        opened(sink)
        job.files.text("2.json", '{"id":"b","extra":1}\n')
        # A file that comes now waits for the next run.
        job.files.text("3.json", '{"id":"c","other":1}\n')

    monkeypatch.setattr(StagedFiles, "open", late)
    failure = job.fails()
    monkeypatch.undo()
    assert "2.json has 'extra' (bigint)" in failure.message
    assert job.visible() == ["batch=0"]
    (job.files.folder / "3.json").unlink()
    # It is planned now, and still not lost.
    assert "2.json has 'extra' (bigint)" in job.fails().message
    job(new_columns="add")
    assert written(job) == [{"id": "a"}, {"id": "b", "extra": 1}]


@pytest.mark.slow
def test_options_stay_fixed_until_a_killed_micro_batch_is_finished(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.files.text("1.json", '{"id":"a"}\n')
    job()
    job.files.text("2.json", '{"id":"b","extra":1}\n')
    publish = StagedFiles.__call__

    def kill(sink: StagedFiles, batch: DataFrame, batch_id: int) -> None:
        publish(sink, batch, batch_id)
        raise OSError("pulled the plug")

    monkeypatch.setattr(StagedFiles, "__call__", kill)
    assert "pulled the plug" in job.fails(new_columns="ignore").message
    monkeypatch.undo()
    ignore = {"new_columns": "ignore"}
    assert "--schema is id STRING" in job.fails(schema="id STRING", **ignore).message
    assert "--new-columns is add now and was ignore" in job.fails(new_columns="add").message
    job(**ignore)
    job.files.text("3.json", '{"id":"c","extra":2}\n{"id":"b"}\n')
    job(new_columns="add")
    assert written(job) == [{"id": "a"}, {"id": "b"}, {"id": "c", "extra": 2}]


@pytest.mark.parametrize("ending", [long("csv"), "parquet"])
def test_a_folder_of_the_oldest_file_may_name_null(job: Job, ending: str) -> None:
    """Hive and Spark give this name to the folder of null."""
    for folder, name in (("k=__HIVE_DEFAULT_PARTITION__", "a"), ("k=07", "b")):
        (job.files.folder / folder).mkdir()
        job.files.table(f"{folder}/1.{ending}", pa.table({"id": [name]}))
        job(output_format="parquet")
    assert job.rows("parquet") == [("a", None), ("b", "07")]
