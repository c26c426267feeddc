"""Micro-batches are published whole, once, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from dedup.sinks.batch_folders import STAGING, published_batches
from dedup.sinks.folder_sink import SparkRows, StagedFiles

VERDICT = "dedup_verdict"
GOES_ON = frozenset({"unique", "late"})


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def rows(spark: SparkSession, *values: tuple[str, str]) -> DataFrame:
    return spark.createDataFrame(list(values), f"id string, {VERDICT} string").repartition(2)


def ids(spark: SparkSession, folder: Path) -> list[str]:
    return sorted(row["id"] for row in spark.read.parquet(str(folder)).collect())


def test_a_folder_of_empty_batches_reads_as_an_empty_table(
    spark: SparkSession, out: Path, tmp_path: Path
) -> None:
    other = tmp_path / "dup"
    sink = StagedFiles(output=out, writer=SparkRows(), duplicates=other)
    sink.open()
    sink(rows(spark, ("a", "unique")).limit(0), 0)
    for folder, extra in ((out, set()), (other, {VERDICT})):
        frame = spark.read.parquet(str(folder))
        assert set(frame.columns) == {"id", "batch"} | extra
        assert frame.count() == 0


def test_one_write_serves_both_outputs(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    other = tmp_path / "dup"
    sink = StagedFiles(output=out, writer=SparkRows(), duplicates=other, goes_on=GOES_ON)
    sink.open()
    seen = spark.sparkContext.accumulator(0)

    def count(row_id: str) -> str:
        seen.add(1)
        return row_id

    from pyspark.sql import functions as fn

    frame = rows(
        spark, ("a", "unique"), ("b", "duplicate"), ("c", "late"), ("d", "null_id")
    ).withColumn("id", fn.udf(count, "string")("id"))
    sink(frame, 7)
    assert seen.value == 4
    assert ids(spark, out) == ["a", "c"]
    assert spark.read.parquet(str(out)).columns == ["id", "batch"]
    stopped = spark.read.parquet(str(other))
    assert sorted((r["id"], r[VERDICT], r["batch"]) for r in stopped.collect()) == [
        ("b", "duplicate", 7),
        ("d", "null_id", 7),
    ]


def test_side_outputs_are_published_once_and_before_the_output(
    spark: SparkSession, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside, other = tmp_path / "aside", tmp_path / "dup"
    told = {0: spark.createDataFrame([("bad",)], "record string"), 1: None}
    told[2] = told[0].limit(0)
    sink = StagedFiles(
        output=out, writer=SparkRows(), duplicates=other, aside=aside, rows_aside=told.get
    )
    sink.open()
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if target.parent == out:
            raise OSError("disk on fire")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    frame = rows(spark, ("a", "unique"), ("b", "duplicate"))
    with pytest.raises(OSError, match="disk on fire"):
        sink(frame, 0)
    assert [published_batches(folder) for folder in (out, other, aside)] == [[], [0], [0]]
    monkeypatch.undo()
    sink.open()
    assert not (out / STAGING).exists()
    for number in told:
        sink(frame, number)
    sink.close()
    # A micro-batch without bad rows has no folder there.
    assert (published_batches(out), os.listdir(aside)) == ([0, 1, 2], ["batch=0"])
    assert [row["record"] for row in spark.read.json(str(aside)).collect()] == ["bad"]
    assert (ids(spark, out), ids(spark, other)) == (["a"] * 3, ["b"] * 3)


def test_a_side_output_may_be_on_another_file_system(spark: SparkSession, out: Path) -> None:
    places = (Path("/dev/shm"), Path("/tmp"))
    others = [p for p in places if p.is_dir() and p.stat().st_dev != out.parent.stat().st_dev]
    if not others:
        pytest.skip("needs a separate file system at /dev/shm")
    with tempfile.TemporaryDirectory(dir=others[0]) as folder:
        other = Path(folder)
        sink = StagedFiles(output=out, writer=SparkRows(), duplicates=other)
        sink.open()
        sink(rows(spark, ("a", "unique"), ("b", "duplicate")), 0)
        assert ids(spark, other) == ["b"]
        sink.close()
        assert os.listdir(other) == ["batch=0"]
