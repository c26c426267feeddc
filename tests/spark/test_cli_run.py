"""`dedup run` on real Spark: each record comes out once."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from dedup.cli.failures import FAILED, USAGE
from dedup.cli.figures import Figures
from dedup.cli.run.command import plan_lines
from dedup.cli.run.progress import Reporter
from dedup.cli.run.work import plan, run
from dedup.cli.stop import StopRequest
from dedup.cli.terminal import print_lines
from dedup.cli.watch import looker
from dedup.sinks.batch_folders import published_batches
from dedup.sinks.folder_sink import StagedFiles
from tests.support.cli_job import Job
from tests.support.needs import long


def counts(figures: Figures, *names: str) -> tuple[int, ...]:
    return tuple(figures.counts[name] for name in names or ("records_in", "unique", "duplicate"))


class Told(Reporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.slow
def test_each_run_takes_only_new_files(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\nb,1\n")
    job.files.text("deep/2.csv", "id,x\nb,2\nc,2\n")
    first = job()
    assert counts(first.figures) == (4, 3, 1)
    assert (first.figures.files, first.figures.batches) == (2, 2)
    assert job.visible() == ["batch=0", "batch=1"]

    os.utime(job.files.folder / "1.csv", (1, 1))
    told = Told()
    idle = run(job.made(horizon="2 days"), told, spark=job.spark)
    assert counts(idle.figures) == (0, 0, 0)
    assert idle.query_id == first.query_id
    assert idle.written_again == (str(job.files.folder / "1.csv"),)
    assert "1 file was written again" in told.notes[0]
    assert told.notes[1:] == ["No new files. Changed for the next new files: --horizon."]

    job.files.text("3.csv", "id,x\na,3\nd,3\n")
    third = job(files_per_trigger=5, horizon="2 days")
    assert counts(third.figures) == (2, 1, 1)
    assert third.figures.files == 1
    assert job.rows() == [("a", "1"), ("b", "1"), ("c", "2"), ("d", "3")]


def test_values_come_out_as_they_went_in(job: Job) -> None:
    text = 'id,x\n007," sp ""q"", ,"\n1e3,\n\u00e9\U0001f40d,\\n\\"\n'
    job.files.text("1.csv", text)
    job()
    assert job.rows() == sorted(
        [("007", ' sp "q", ,'), ("1e3", None), ("\u00e9\U0001f40d", '\\n\\"')], key=repr
    )


@pytest.mark.parametrize(
    "file_format", ["json", "parquet", *map(long, ("orc", "csv.gz", "json.gz"))]
)
def test_formats(job: Job, file_format: str) -> None:
    rows = [{"id": f"k{i % 7}", "n": i} for i in range(20)]
    for number, part in enumerate((rows[:10], rows[10:])):
        job.files.table(f"{number}.{file_format}", pa.Table.from_pylist(part))
    assert counts(job().figures) == (20, 7, 13)
    file_format = "parquet" if file_format == "orc" else file_format
    kind = file_format.removesuffix(".gz")
    assert sorted(row[0] for row in job.rows(kind)) == [f"k{i}" for i in range(7)]
    files = [p.name for p in job.output.glob("batch=*/*")]
    assert all(name.endswith(file_format) for name in files)


def test_parquet_times_read_back_elsewhere(job: Job) -> None:
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)]
    times = pa.array(moments, pa.timestamp("us", "UTC"))
    job.files.table("1.parquet", pa.table({"id": [1, 2], "t": times}))
    job()
    table = ds.dataset(job.output, format="parquet").to_table()
    assert sorted(table.column("t").to_pylist()) == moments


def test_typed_columns(job: Job) -> None:
    job.files.text("1.csv", "id,n\n01,2.50\n1,2.5\n")
    assert counts(job(schema="id INT, n DECIMAL(9,2)").figures) == (2, 1, 1)
    assert job.rows() == [("1", "2.50")]
    failure = job.fails(schema="id INT, n DOUBLE")
    assert failure.exit_code == USAGE
    assert "--schema makes the column 'n' double, and in --output" in failure.message


@pytest.mark.slow
def test_inferred_columns(job: Job) -> None:
    """Only by a type that gives every text back."""
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


def test_reader_options(job: Job) -> None:
    job.files.text("1.csv", 'id;x\na;"1\n2"\na;"1\n2"\n')
    job(read_options=(("multiLine", "true"), ("sep", ";")))
    written = {p.read_text() for p in job.output.glob("batch=0/*")}
    # A task without rows leaves a header.
    assert written - {"id;x\n"} == {'id;x\na;"1\n2"\n'}


@pytest.mark.slow
def test_partition_folders_are_columns(job: Job) -> None:
    job.files.text("day=007/1.csv", "id,x\na,1\n")
    job.files.text("day=008/1.csv", "id,x\na,1\n")
    assert counts(job(id=("id", "day")).figures) == (2, 2, 0)
    assert job.rows() in (
        [("a", "1", "007"), ("a", "1", "008")],
        [("a", "1", "7"), ("a", "1", "8")],
    )
    text = "".join(p.read_text() for p in job.output.glob("batch=*/*"))
    assert "a,1,007" in text


@pytest.mark.slow
def test_files_of_any_age_are_read(job: Job) -> None:
    job.files.text("new.csv", "id\na\n")
    job()
    old = job.files.text("old.csv", "id\nb\n")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    assert counts(job().figures) == (1, 1, 0)


def test_verdicts_go_to_the_side_output(job: Job) -> None:
    job.files.text("1.csv", "id,t\na,2024-01-02 00:00:00\n,2024-01-02 00:00:00\n")
    job.files.text(
        "2.csv", "id,t\na,2024-01-02 00:00:01\nb,2024-01-01 00:00:00\nc,2024-01-02 00:00:00\n"
    )
    options = {"timestamp": "t", "lateness": "1 hour", "late": "drop", "null_ids": "drop"}
    done = job(duplicates=job.duplicates, max_late=20, **options)
    names = ("records_in", "unique", "duplicate", "late", "null_id", "emitted")
    assert counts(done.figures, *names) == (5, 2, 1, 1, 1, 2)
    assert [row[0] for row in job.rows()] == ["a", "c"]
    assert [(row[0], row[2]) for row in job.rows(folder=job.duplicates)] == [
        ("a", "duplicate"), ("b", "late"), (None, "null_id"),
    ]  # fmt: skip
    assert set(done.figures.levels) >= {"gc_watermark_ms"}


@pytest.mark.slow
def test_policies_without_a_side_output(job: Job) -> None:
    job.files.text("1.csv", "id,t\na,02.01.2024\n,02.01.2024\n")
    job.files.text("2.csv", "id,t\nb,01.01.2024\n")
    done = job(timestamp="t", timestamp_format="dd.MM.yyyy", lateness="1 hour")
    assert counts(done.figures, "unique", "late", "null_id", "emitted") == (1, 1, 1, 3)
    # The user's own column stays unchanged.
    assert ("b", "01.01.2024") in job.rows()


def test_names_with_dots_and_quotes(job: Job) -> None:
    job.files.text("1.csv", "a.b,x y\n1,1\n1,2\n")
    assert counts(job(id=("a.b",), order_by=("x y",)).figures) == (2, 1, 1)
    assert job.rows() == [("1", "1")]


def test_clocks_of_their_own_and_a_verdict_for_every_row(job: Job) -> None:
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


@pytest.mark.slow
def test_empty_files(job: Job) -> None:
    job.files.text("1.csv", "id,x\n")
    job.files.text("2.csv", "")
    job.files.text("3.csv", "id,x\na,1\n")
    assert counts(job().figures) == (1, 1, 0)
    assert job.rows() == [("a", "1")]


@pytest.mark.parametrize("file_format", ["parquet", *map(long, ("csv", "json"))])
def test_a_first_run_without_a_record(job: Job, file_format: str) -> None:
    """An empty first file: nothing is remembered then, and the runs after it begin."""

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
    job(**given)
    assert job.rows() == [("a",), ("b",), ("c",)]
    shutil.rmtree(job.output / "_catalog")
    add("5", "a")
    assert job.fails(**given).remedy == "missing-catalog"


def test_stop_and_go_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert failure.exit_code == FAILED
    assert job.visible() == ["batch=0"]
    job()
    assert job.rows() == [("k0",), ("k1",), ("k2",)]


ZIPPED = gzip.compress(b"id,x\nb,2\nc,3\n", mtime=0)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("2.csv", b"id,x\nb,2\nc,3\n", [
            (b"id,x\nb,2\nc\n", "columns than the header. It is line 3: c."),
            (b"id,x\nb,2\nc,3,4\n", "columns than the header. It is line 3: c,3,4."),
        ]),
        pytest.param("2.csv.gz", ZIPPED, [
            (ZIPPED[:-12], "Unexpected end of input stream"),
            (b"id,x\nb,2\nc,3\n", "not a gzip file"),
        ], marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_bad_file_stops_the_run_and_mending_it_goes_on(
    job: Job, name: str, good: bytes, bad: list[tuple[bytes, str]]
) -> None:
    job.files.text("1.csv", "id,x\na,1\n")
    path = job.files.folder / name
    for content, message in bad:
        path.write_bytes(content)
        failure = job.fails()
        assert failure.exit_code == FAILED
        assert message in failure.message
        assert str(path) in failure.message
        assert "\n" not in failure.message
        assert job.visible() == ["batch=0"]
    path.write_bytes(good)
    job()
    assert job.rows() == [("a", "1"), ("b", "2"), ("c", "3")]


def test_malformed_json(job: Job) -> None:
    job.files.text("1.json", '{"id": "a"}\n')
    job.files.text("2.json", '{"id": "b"}\n{"id": \n')
    failure = job.fails(schema="id STRING")
    assert "2.json cannot be read: It is not exactly one JSON value" in failure.message
    assert job.visible() == ["batch=0"]
    failure = job.fails(output=job.output.parent / "other")
    assert "2.json: It is not exactly one JSON value" in failure.message
    assert 'It is line 2: {"id": .' in failure.message
    assert "--read-option multiLine=true" in failure.message
    (job.files.folder / "2.json").write_bytes(b'{"id": "\xe9"}\n{"id": \n')
    failure = job.fails(output=job.output.parent / "latin")
    assert "2.json: It is not valid UTF-8. It is line 1: " in failure.message
    cut = gzip.compress(b'{"id": "c"}\n' * 1000)[:-20]
    (job.files.folder / "3.json.gz").write_bytes(cut)
    job.files.text("2.json", '{"id": "b"}\n')
    failure = job.fails(output=job.output.parent / "cut")
    assert "cannot be read" in failure.message
    assert "--bad-records if single records are wrong" in failure.message
    assert (failure.exit_code, failure.kind) == (FAILED, "DataError")


def test_parquet_files_that_disagree(job: Job) -> None:
    for name, values in (("1", [1]), ("2", ["x"])):
        job.files.table(f"{name}.parquet", pa.table({"id": values}))
    failure = job.fails()
    assert "2.parquet: its column 'id' is string, and int64 in " in failure.message
    assert not job.output.joinpath("batch=0").exists()


def test_options_that_do_not_fit_the_input(job: Job) -> None:
    job.files.text("1.csv", "id,t\na,1\n")
    for options, message in (
        (
            {"id": ("identity",)},
            "--id identity: INPUT has no such column; its columns, the nearest",
        ),
        ({"id": ("tape",)}, "no such column; its columns, the nearest first: 't', 'id'."),
        ({"timestamp": "tt"}, "--timestamp tt: INPUT has no such column"),
        ({"schema": "id STRIN"}, "--schema 'id STRIN' is not DDL"),
        ({"schema": "id DOUBLE, t STRING"}, "id"),
        ({"state_budget_bytes": 1}, "--state-budget-bytes 1 must be a whole number of at least"),
    ):
        failure = job.fails(**options)
        assert failure.exit_code == USAGE
        assert message in failure.message
        assert job.visible() == []
    job()


@pytest.mark.parametrize(
    ("values", "options"),
    [(("soon", ""), {}), long(("2024-13-01",), {"timestamp_format": "yyyy-MM-dd"})],
)
def test_a_time_that_cannot_be_read(job: Job, values: tuple[str, ...], options: Any) -> None:
    job.files.text("1.csv", "id,t\na,2024-01-01\n")
    for value in values:
        job.files.text("2.csv", f"id,t\nb,2024-01-01\nc,{value}\n")
        failure = job.fails(timestamp="t", **options)
        assert failure.exit_code == FAILED
        assert value in failure.message
        assert "\n" not in failure.message
        assert job.visible() == ["batch=0"]


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("seconds", ["1704067200", "1704067200.5", "1704067200"]),
        long("milliseconds", ["1704067200000", "1704067200500", "1704067200000"]),
    ],
)
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_times_that_are_numbers(job: Job, unit: str, times: list[str], file_format: str) -> None:
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


@pytest.mark.slow
def test_a_number_that_is_no_time(job: Job) -> None:
    job.files.text("1.csv", "id,at\na,1704067200\nb,soon\nc,1e30\n")
    failure = job.fails(timestamp="at", timestamp_format="seconds")
    assert "soon" in failure.message
    done = job(timestamp="at", timestamp_format="seconds", bad_records="skip")
    assert counts(done.figures, "unique") == (1,)


def test_days_are_taken_from_their_beginning(job: Job) -> None:
    job.files.text("1.csv", "id,day\na,2024-01-02\n")
    done = job(timestamp="day", schema="id STRING, day DATE")
    assert done.figures.levels["newest_ms"] == 1704153600000


@pytest.mark.slow
def test_null_ids_error(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\n,2\n")
    failure = job.fails(null_ids="error")
    assert (failure.exit_code, failure.kind) == (FAILED, "DataError")
    assert job.visible() == []
    job(null_ids="drop")
    assert job.rows() == [("a", "1")]


@pytest.mark.slow
def test_an_output_of_another_run(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\n")
    job()
    failure = job.fails(id=("x",))
    assert failure.exit_code == USAGE
    assert "--id is x now and was id" in failure.message
    shutil.rmtree(job.output / "_checkpoint")
    failure = job.fails()
    assert "is empty: restore that checkpoint, or give a new --output" in failure.message
    assert job.rows() == [("a", "1")]


def test_a_lost_catalog_stops_the_run(job: Job) -> None:
    job.files.text("1.csv", "id\na\n")
    job()
    shutil.rmtree(job.output / "_catalog")
    job.files.text("2.csv", "id\na\n")
    failure = job.fails()
    assert failure.exit_code == 3
    assert "\n" not in failure.message
    assert job.visible() == ["batch=0"]


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


def test_a_column_that_the_side_output_needs(job: Job) -> None:
    job.files.text("1.csv", "id,dedup_verdict\na,1\n")
    failure = job.fails(duplicates=job.duplicates)
    assert "'dedup_verdict', which --duplicates adds" in failure.message


def test_two_columns_of_one_name(job: Job) -> None:
    job.files.text("1.csv", "id,id\na,1\n")
    failure = job.fails()
    assert failure.exit_code == USAGE
