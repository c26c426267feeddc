"""Rows that cannot be read: they stop the run, are left out, or are set aside once."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from dedup.cli.failures import FAILED, USAGE
from dedup.cli.run.input.bad_rows import BadRows
from dedup.sinks.batch_folders import published_batches
from dedup.sinks.folder_sink import StagedFiles
from dedup.sources.strict_json import NOT_STRICT
from tests.support.cli_job import Job
from tests.support.needs import long


def aside(folder: Path) -> dict[str, list[tuple[str, str, str]]]:
    """What is set aside, by micro-batch: name of the file, record, reason."""
    return {
        batch.name: sorted(
            (Path(row["file"]).name, row["record"], row["reason"])
            for path in batch.glob("*.json")
            for row in map(json.loads, path.read_text().splitlines())
        )
        for batch in sorted(folder.glob("batch=*"))
    }


def test_csv(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job.files.text("1.csv", "id,n,t\na,1,2024-01-01\n")
    bad = job.files.text(
        "2 +%[x].csv", "id,n,t\nb,2,2024-01-01\nc,3\nd,x,2024-01-01\ne,4,soon\nb,2,2024-01-01\n"
    )
    job.files.text("3.csv", "id,n,t\nf,1,2024-01-01\n")
    options = {"schema": "id STRING, n INT, t STRING", "timestamp": "t"}
    failure = job.fails(**options)
    assert failure.exit_code == FAILED
    assert f"{bad} cannot be read: " in failure.message
    assert "It is line 3: c,3." in failure.message
    assert "--bad-records skip, or --bad-records DIR" in failure.message
    folder = tmp_path / "bad"
    asked: list[int] = []
    read_again, publish = BadRows.__call__, StagedFiles.__call__

    def count(rows: BadRows, batch_id: int) -> DataFrame | None:
        found = read_again(rows, batch_id)
        if found is not None:
            asked.append(batch_id)
        return found

    def kill(sink: StagedFiles, batch: DataFrame, batch_id: int) -> None:
        publish(sink, batch, batch_id)
        if batch_id == 1:
            raise OSError("pulled the plug")

    # Work that a kill left half done is done once.
    monkeypatch.setattr(BadRows, "__call__", count)
    monkeypatch.setattr(StagedFiles, "__call__", kill)
    assert "pulled the plug" in job.fails(**options, bad_records=str(folder)).message
    monkeypatch.setattr(StagedFiles, "__call__", publish)
    assert published_batches(folder) == [1]
    failure = job.fails(**options, bad_records="skip")
    assert f"--bad-records is skip now and was {folder}" in failure.message
    done = job(**options, bad_records=str(folder))
    # Only where there are bad rows are the files read once more.
    assert set(asked) == {1}
    assert aside(folder) == {
        "batch=1": [
            (bad.name, "c,3", "It has more or fewer columns than the header."),
            (bad.name, "d,x,2024-01-01", "n does not fit int."),
            (bad.name, "e,4,soon", "t is not a time."),
        ]
    }
    assert (done.figures.bad, done.figures.counts["records_in"]) == (3, 3)
    assert [row[0] for row in job.rows()] == ["a", "b", "f"]


def test_the_line_is_told_of_packed_files_with_tabs(job: Job) -> None:
    path = job.files.text("1.csv.bz2", "")
    path.write_bytes(bz2.compress(b"id\tn\na\t1\nb\tx\n"))
    options = {"schema": "id STRING, n INT", "read_options": (("sep", "\\t"),)}
    assert "It is line 3: b\tx." in job.fails(file_format="csv", **options).message


def test_json(job: Job, tmp_path: Path) -> None:
    job.files.text("1.json", '{"id":"a","n":1}\n{"id": \n{"id":"b","n":"x"}\n{"id":"c"}\n')
    failure = job.fails(schema="id STRING, n INT")
    assert 'It is line 2: {"id": .' in failure.message
    assert failure.remedy == "bad-records"
    other = tmp_path / "other"
    done = job(schema="id STRING, n INT", bad_records="skip", output=other, new_columns="ignore")
    assert (done.figures.bad, done.figures.counts["unique"]) == (2, 2)
    job(schema="id STRING, n INT", bad_records=str(tmp_path / "bad"))
    assert aside(tmp_path / "bad") == {
        "batch=0": [
            ("1.json", '{"id": ', NOT_STRICT),
            ("1.json", '{"id":"b","n":"x"}', "Field n does not fit int."),
        ]
    }


def test_a_file_that_is_one_array_is_set_aside_once(job: Job, tmp_path: Path) -> None:
    text = '[{"id":"a","n":1},\n{"id":"b","n":"x"},\n{"id":"c","n":"y"}]'
    job.files.text("1.json", text)
    job.files.text("2.json", '{"id":"d",\n"n":2}')
    folder = tmp_path / "bad"
    options = {"schema": "id STRING, n INT", "read_options": (("multiLine", "true"),)}
    job(bad_records=str(folder), **options)
    (rows,) = aside(folder).values()
    assert len(rows) == len(set(rows))
    assert {record for _, record, _ in rows} == {text}
    assert ("d", 2) in job.rows("json")


def test_equal_bad_lines_are_each_set_aside(job: Job, tmp_path: Path) -> None:
    job.files.text("1.json", '{"id":\n{"id":\n{"id":"a"}\n')
    folder = tmp_path / "bad"
    job(bad_records=str(folder), read_options=(("multiLine", "false"),))
    assert [len(rows) for rows in aside(folder).values()] == [2]


@pytest.mark.slow
def test_files_that_cannot_be_read_at_all(job: Job) -> None:
    """They are named under any options, and an empty file in their place lets the run continue."""
    job.files.text("1.json", '{"id":"a"}\n')
    job()
    path = job.files.folder / "2.json.gz"
    path.write_bytes(gzip.compress(b'{"id":"b"}\n' * 100, mtime=0)[:-12])
    job.files.stamp(path)
    failure = job.fails(bad_records="skip")
    assert f"{path} cannot be read: " in failure.message
    assert "If it is healthy, write it again" in failure.message
    path.write_bytes(b"")
    done = job(bad_records="skip")
    assert done.figures.files == 1
    # It was read in its present state.
    assert job().written_again == ()
    path.write_bytes(b"x")
    assert job().written_again == (str(path),)


@pytest.mark.parametrize("time", ["soon", *map(long, ("10:00", "2024-05", ""))])
def test_a_time_that_is_none(job: Job, time: str) -> None:
    job.files.text("1.csv", f"id,t\na,{time}\n")
    options: dict[str, Any] = {"timestamp": "t"}
    failure = job.fails(**options)
    if time:
        assert "--timestamp t cannot be read as a time: " in failure.message
        assert "--bad-records skip" in failure.message
        job(**options, bad_records="skip")
        assert job.rows() == []
    else:
        assert failure.message.endswith("Here the option is --null-timestamps.")
        job(**options, null_timestamps="now")
        assert job.rows() == [("a", None)]


def test_parquet_has_none(job: Job) -> None:
    job.files.text("1.parquet", "")
    failure = job.fails(bad_records="skip")
    assert failure.exit_code == USAGE
    assert "--bad-records skip has no meaning for Parquet" in failure.message
