"""`dedup run` on real Spark: each record comes out once."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dedup.cli.failures import FAILED, TEMPORARY, USAGE
from dedup.cli.figures import Figures
from dedup.cli.run.command import plan_lines
from dedup.cli.run.options import METRICS
from dedup.cli.run.work import plan
from dedup.cli.stop import StopRequest
from dedup.cli.terminal import print_lines
from dedup.cli.watch import looker
from dedup.sinks.batch_folders import published_batches
from dedup.sinks.folder_sink import StagedFiles
from dedup.tools.watch.query_log import read_logs
from tests.support.cli_job import Job
from tests.support.needs import long


def counts(figures: Figures, *names: str) -> tuple[int, ...]:
    return tuple(figures.counts[name] for name in names or ("records_in", "unique", "duplicate"))


@pytest.mark.slow
def test_each_run_takes_only_new_files(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\nb,1\n")
    job.files.text("deep/2.csv", "id,x\nb,2\nc,2\n")
    first = job()
    assert counts(first.figures) == (4, 3, 1)
    assert (first.figures.files, first.figures.batches) == (2, 2)
    assert job.visible() == ["batch=0", "batch=1"]

    os.utime(job.files.folder / "1.csv", (1, 1))
    idle = job(horizon="2 days")
    assert counts(idle.figures) == (0, 0, 0)
    assert idle.query_id == first.query_id
    assert idle.written_again == (str(job.files.folder / "1.csv"),)
    assert "1 file was written again" in job.notes[0]
    assert job.notes[1:] == ["No new files. Changed for the next new files: --horizon."]

    job.files.text("3.csv", "id,x\na,3\nd,3\n")
    third = job(files_per_trigger=5, horizon="2 days")
    assert counts(third.figures) == (2, 1, 1)
    assert third.figures.files == 1
    assert job.rows() == [("a", "1"), ("b", "1"), ("c", "2"), ("d", "3")]


@pytest.mark.parametrize(
    "file_format", ["json", "parquet", *map(long, ("orc", "csv.gz", "json.gz"))]
)
def test_input_of_every_format_is_deduplicated(job: Job, file_format: str) -> None:
    rows = [{"id": f"k{i % 7}", "n": i} for i in range(20)]
    for number, part in enumerate((rows[:10], rows[10:])):
        job.files.table(f"{number}.{file_format}", pa.Table.from_pylist(part))
    assert counts(job().figures) == (20, 7, 13)
    file_format = "parquet" if file_format == "orc" else file_format
    kind = file_format.removesuffix(".gz")
    assert sorted(row[0] for row in job.rows(kind)) == [f"k{i}" for i in range(7)]
    files = [p.name for p in job.output.glob("batch=*/*")]
    assert all(name.endswith(file_format) for name in files)
    [log] = read_logs(job.output / METRICS)
    total = sum(path.stat().st_size for path in job.output.glob("batch=*/*"))
    assert [one.batch_id for one in log.sinks] == [0, 1]
    assert sum(one.bytes or 0 for one in log.sinks) == total
    known = [7, 0] if kind == "parquet" else [None, None]
    assert [one.rows for one in log.sinks] == known


def test_columns_are_typed_by_the_schema(job: Job) -> None:
    job.files.text("1.csv", "id,n\n01,2.50\n1,2.5\n")
    assert counts(job(schema="id INT, n DECIMAL(9,2)").figures) == (2, 1, 1)
    assert job.rows() == [("1", "2.50")]
    failure = job.fails(schema="id INT, n DOUBLE")
    assert failure.exit_code == USAGE
    assert "--schema makes the column 'n' double, and in --output" in failure.message


@pytest.mark.slow
def test_types_are_inferred_only_if_every_text_can_be_restored(job: Job) -> None:
    """Other columns stay text."""
    day = date(2024, 5, 1)
    at = datetime(2024, 5, 1, 10)
    header, first = "id,n,plus,price,x,day,at,yes,mixed", "007,7,+7,1.50,0.5,2024-05-01,"
    job.files.text(
        "1.csv",
        f"{header}\n{first}2024-05-01T10:00:00Z,true,2024-05-01 10:00:00\n"
        "7,,8,2.25,1.5,,,false,2024-05-01T10:00:00Z\n",
    )
    assert counts(job(infer=True, output_format="parquet").figures) == (2, 2, 0)
    assert job.rows("parquet") == [
        ("007", 7, "+7", "1.50", 0.5, day, at, True, "2024-05-01 10:00:00"),
        ("7", None, "8", "2.25", 1.5, None, None, False, "2024-05-01T10:00:00Z"),
    ]
    # Later values of a typed column are equal, however they are written.
    job.files.text("2.csv", f"{header}\n8,010,,,,,,,\n")
    job(infer=True, output_format="parquet")
    assert ("8", 10) in [row[:2] for row in job.rows("parquet")]


def test_reader_options_apply_to_input_and_output(job: Job) -> None:
    job.files.text("1.csv", 'id;x\na;"1\n2"\na;"1\n2"\n')
    job(read_options=(("multiLine", "true"), ("sep", ";")))
    written = {p.read_text() for p in job.output.glob("batch=0/*")}
    # A task without rows leaves a header.
    assert written - {"id;x\n"} == {'id;x\na;"1\n2"\n'}


def test_verdicts_go_to_the_side_output(job: Job) -> None:
    job.files.text("1.csv", "id,t\na,02.01.2024\n,02.01.2024\n")
    job.files.text("2.csv", "id,t\na,02.01.2024\nb,01.01.2024\nc,02.01.2024\n")
    options = {"timestamp": "t", "timestamp_format": "dd.MM.yyyy", "lateness": "1 hour",
               "late": "drop", "null_ids": "drop"}  # fmt: skip
    done = job(duplicates=job.duplicates, max_late=20, **options)
    names = ("records_in", "unique", "duplicate", "late", "null_id", "emitted")
    assert counts(done.figures, *names) == (5, 2, 1, 1, 1, 2)
    # The user's own column stays unchanged.
    assert job.rows() == [("a", "02.01.2024"), ("c", "02.01.2024")]
    assert [(row[0], row[2]) for row in job.rows(folder=job.duplicates)] == [
        ("a", "duplicate"), ("b", "late"), (None, "null_id"),
    ]  # fmt: skip
    assert set(done.figures.levels) >= {"gc_watermark_ms"}


def test_column_names_with_dots_and_spaces_are_accepted(job: Job) -> None:
    for name, nothing in (("0.csv", ""), ("00.csv", "a.b,x y\n")):
        job.files.text(name, nothing)
    job.files.text("1.csv", "a.b,x y\n1,1\n1,2\n")
    assert counts(job(id=("a.b",), order_by=("x y",)).figures) == (2, 1, 1)
    assert job.rows() == [("1", "1")]


def test_each_source_partition_has_its_own_clock_and_each_row_a_verdict(job: Job) -> None:
    job.files.text("1.csv", "id,p,t\na,fast,2024-01-09\nb,slow,2024-01-01\n")
    job.files.text("2.csv", "id,p,t\nc,slow,2024-01-02\na,fast,2024-01-09\n")
    options = {"timestamp": "t", "lateness": "1 hour", "late": "drop", "horizon": "9 days"}
    more = {"stable_timestamps": True, "max_future": "1 hour", "idle_timeout": "never"}
    done = job(**options, **more, source_partition=("p",), verdict="told")
    assert [(row[0], row[3]) for row in job.rows()] == [
        ("a", "duplicate"), ("a", "unique"), ("b", "unique"), ("c", "unique"),
    ]  # fmt: skip
    assert counts(done.figures, "unique", "late", "emitted") == (3, 0, 4)
    failure = job.fails(**options)
    assert "--stable-timestamps is False now and was True" in failure.message
    look = looker(str(job.output), None)
    ((watched,), trouble) = look()
    assert (watched.query_id, trouble, watched.health.status) == (done.query_id, None, "STOPPED")
    assert watched.last.batch_id == 1
    failure = job.fails(**options, **more, source_partition=("q",))
    assert "--source-partition q: INPUT has no such column" in failure.message


@pytest.mark.parametrize("file_format", ["parquet", *map(long, ("csv", "json"))])
def test_runs_without_a_record_may_precede_the_first_record(job: Job, file_format: str) -> None:
    """The first files are empty, so the runs remember nothing."""

    def add(name: str, *ids: str) -> None:
        columns = pa.table({"id": pa.array(ids, pa.string())})
        if ids:
            job.files.table(f"{name}.{file_format}", columns)
        else:
            job.files.text(f"{name}.{file_format}", "")

    given = {"schema": "id string", "file_format": file_format, "output_format": "csv"}
    add("1")
    assert job(**given).figures.counts["records_in"] == 0
    add("2")
    assert job(**given).figures.counts["records_in"] == 0
    add("3", "a", "b", "a")
    job(**given)
    add("4", "b", "c")
    # Files of any age are read.
    os.utime(job.files.folder / f"4.{file_format}", (1_000_000_000,) * 2)
    job(**given)
    assert job.rows() == [("a",), ("b",), ("c",)]
    shutil.rmtree(job.output / "_catalog")
    add("5", "a")
    assert job.fails(**given).remedy == "missing-catalog"


def test_a_stopped_run_continues_where_it_stopped(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        job.files.text(f"{number}.csv", f"id,x\na,{number}\nk{number},0\n")
    stop, publish = StopRequest(), StagedFiles.__call__

    def call(sink: StagedFiles, batch: Any, batch_id: int) -> None:
        publish(sink, batch, batch_id)
        if batch_id == 1:
            stop.set()

    monkeypatch.setattr(StagedFiles, "__call__", call)
    first = job(stop=stop)
    monkeypatch.undo()
    assert first.interrupted
    assert len(published_batches(job.output)) < 8
    assert not (job.output / "_staging").exists()
    done = len(list((job.output / "_checkpoint" / "commits").glob("[0-9]*")))
    assert first.figures.batches == first.figures.files == done
    second = job()
    assert not second.interrupted
    # This run takes the files of an unfinished micro-batch.
    assert second.figures.files == 8 - done
    ids = [row[0] for row in job.rows()]
    assert ids == sorted(["a", *(f"k{n}" for n in range(8))])


def test_a_crash_before_the_commit_repeats_nothing(job: Job) -> None:
    for number in range(2):
        job.files.text(f"{number}.csv", f"id,x\na,{number}\nk{number},0\n")
    job(duplicates=job.duplicates)
    before = job.rows(), job.rows(folder=job.duplicates)
    job.lose_last_commit()
    again = job(duplicates=job.duplicates)
    assert again.figures.batches == 1
    assert (job.rows(), job.rows(folder=job.duplicates)) == before


def test_a_sink_that_fails_loses_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        job.files.text(f"{number}.csv", f"id\nk{number}\n")
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if Path(target).name == "batch=1":
            raise OSError(28, "No space left on device", str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    failure = job.fails()
    monkeypatch.undo()
    assert failure.message.split(" (")[0] == "No space left on device"
    assert failure.exit_code == TEMPORARY
    assert job.visible() == ["batch=0"]
    job()
    assert job.rows() == [("k0",), ("k1",), ("k2",)]


def test_a_bad_file_stops_the_run_until_it_is_repaired(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\n")
    path = job.files.text("2.csv", "id,x\nb,2\nc,3,4\n")
    failure = job.fails()
    assert failure.exit_code == FAILED
    assert f"{path} cannot be read: " in failure.message
    assert job.visible() == ["batch=0"]
    path.write_text("id,x\nb,2\nc,3\n")
    job()
    assert job.rows() == [("a", "1"), ("b", "2"), ("c", "3")]


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("seconds", ["1704067200", "1704067200.5", "1704067200"]),
        long("milliseconds", ["1704067200000", "1704067200500", "1704067200000"]),
    ],
)
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_numeric_timestamps_are_read_in_the_given_unit(
    job: Job, unit: str, times: list[str], file_format: str
) -> None:
    rows = list(zip("aba", times, strict=True))
    if file_format == "csv":
        job.files.text("1.csv", "id,at\n" + "".join(f"{i},{at}\n" for i, at in rows))
    else:
        job.files.text("1.json", "".join(f'{{"id":"{i}","at":{at}}}\n' for i, at in rows))
        failure = job.fails(timestamp="at")
        assert "--timestamp-format seconds or milliseconds" in failure.message
    done = job(timestamp="at", timestamp_format=unit)
    assert counts(done.figures, "unique", "duplicate", "future") == (2, 1, 0)
    assert done.figures.levels["newest_ms"] == 1704067200500


def test_spark_reads_parquet_whose_time_format_only_spark_knows(job: Job) -> None:
    given = {"timestamp": "at", "timestamp_format": "d MMMM yyyy G"}
    job.files.table("1.parquet", pa.table({"id": ["a"], "at": ["2 January 2024 AD"]}))
    planned = plan(job.made(**given), spark=job.spark)
    assert "tasks cannot use --timestamp-format, because the pattern" in planned["read_by"]
    assert job(**given).figures.levels["newest_ms"] == 1704153600000
    job.files.text("2.csv", "id,at\na,2 January 2024 AD\n")
    failure = job.fails(**given, input=job.files.folder / "2.csv", output=job.output / "other")
    assert "--timestamp-format cannot be used: the pattern" in failure.message


def test_a_date_as_timestamp_means_the_start_of_the_day(job: Job) -> None:
    job.files.text("1.csv", "id,day\na,2024-01-02\n")
    done = job(timestamp="day", schema="id STRING, day DATE")
    assert done.figures.levels["newest_ms"] == 1704153600000


def test_a_dry_run_leaves_no_trace(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.files.text("1.csv", "id,x\na,1\n")
    planned = plan(job.made(duplicates=job.duplicates), spark=job.spark)
    assert not job.output.exists()
    assert not job.duplicates.exists()
    assert planned["columns"] == {"id": "string", "x": "string"}
    print_lines(plan_lines(planned))
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = next(n for n, line in enumerate(shown) if re.fullmatch("columns +id string", line))
    assert shown[at + 1] == "x string"
    assert not any("default" in line or "_format" in line for line in shown)
    assert (planned["files"], planned["shards"], planned["new_output"]) == (1, 2, True)
    assert planned["time"] == "the run's own clock"
    assert "a run after the horizon emits an ID again" in planned["notes"][0]
    json.dumps(planned)
    job()
    assert not plan(job.made(), spark=job.spark)["new_output"]
    with pytest.raises(ValueError, match="--id y: INPUT has no such column"):
        plan(job.made(id=("y",), output=job.output.parent / "new"), spark=job.spark)
