"""What `dedup run` cannot read or do: it stops the run, is left out, or is set aside once."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from dedup.cli.failures import FAILED, USAGE
from dedup.cli.run import drain
from dedup.sinks.batch_folders import published_batches
from dedup.sinks.folder_sink import StagedFiles
from dedup.sources.files.json_text import NOT_STRICT
from tests.support.cli_job import Job
from tests.support.needs import long, of_spark_4


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


def test_bad_csv_records_stop_the_run_or_are_quarantined(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    read_again, publish = drain.bad_rows, StagedFiles.__call__

    def count(*given: Any) -> DataFrame | None:
        found = read_again(*given)
        if found is not None:
            asked.append(given[-1])
        return found

    def kill(sink: StagedFiles, batch: DataFrame, batch_id: int) -> None:
        publish(sink, batch, batch_id)
        if batch_id == 1:
            raise OSError("pulled the plug")

    # Work that a kill left half done is done once.
    monkeypatch.setattr(drain, "bad_rows", count)
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


def test_bad_json_records_stop_the_run_or_are_skipped_or_quarantined(
    job: Job, tmp_path: Path
) -> None:
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


def test_a_bad_file_of_one_array_is_quarantined_once(job: Job, tmp_path: Path) -> None:
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


def test_equal_bad_lines_are_each_quarantined(job: Job, tmp_path: Path) -> None:
    job.files.text("1.json", '{"id":\n{"id":\n{"id":"a"}\n')
    folder = tmp_path / "bad"
    job(bad_records=str(folder), read_options=(("multiLine", "false"),))
    assert [len(rows) for rows in aside(folder).values()] == [2]


@pytest.mark.slow
def test_an_unreadable_file_is_named_and_an_empty_one_can_replace_it(job: Job) -> None:
    """No option skips such a file."""
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


Files = dict[str, str | bytes]
ONE: Files = {"1.csv": "id,t\na,1\n"}
JSON: Files = {"1.json": '{"id":"a","n":[1],"t":"2024"}\n'}


def option(name: str, value: str) -> dict[str, Any]:
    return {"read_options": ((name, value),)}


def refused(job: Job, given: Files, options: dict[str, Any], said: str, exit_code: int) -> str:
    for name, content in given.items():
        path = job.files.text(name, "")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        job.files.stamp(path)
    failure = job.fails(**options)
    assert said in failure.message
    assert failure.exit_code == exit_code
    assert "\n" not in failure.message
    assert not job.output.exists() or job.visible() == []
    return failure.message


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (ONE, {"id": ("identity",)},
         "--id identity: INPUT has no such column; its columns, the nearest"),
        (ONE, {"id": ("tape",)}, "no such column; its columns, the nearest first: 't', 'id'."),
        (ONE, {"timestamp": "tt"}, "--timestamp tt: INPUT has no such column"),
        (ONE, {"schema": "id STRIN"}, "--schema 'id STRIN' is not DDL"),
        (ONE, {"schema": "id DOUBLE, t STRING"}, "id"),
        of_spark_4(
            ONE, {"schema": "id STRING, t VARIANT"}, "no text for the column 't' (variant)"
        ),
        (ONE, option("mode", "DROPMALFORMED"), "--bad-records decides about records"),
        ({"1.csv": "id,batch\na,lot-7\n"}, {}, "INPUT has a column 'batch'"),
        ({"1.csv": "id,dedup_verdict\na,1\n"}, {"duplicates": "duplicates"},
         "'dedup_verdict', which --duplicates adds"),
        (JSON, {"output_format": "csv"}, "no text for the column 'n' (array<bigint>)"),
        (JSON, {"timestamp": "t", "timestamp_format": "qqqq"},
         "the pattern 'qqqq' has qqqq, and only y, u, M"),
        (JSON, option("allowComments", "true"), "--read-option allowComments="),
        (JSON, option("mode", "DROPMALFORMED"), "--read-option mode="),
        (ONE, option("unescapedQuoteHandling", "SKIP_VALUE"), "must be written twice"),
        (ONE, option("encoding", "klingon"), "encoding=klingon is not a known encoding"),
        (ONE, {"schema": "id STRING, t DATE", **option("dateFormat", "DDD")},
         "of the column 't' cannot be read: the pattern 'DDD' has DDD"),
        ({"1.json": '{"id":"a","at":1704067200}\n'}, {"timestamp": "at"},
         "--timestamp-format seconds or milliseconds"),
        ({"1.parquet": ""}, {"bad_records": "skip"},
         "--bad-records skip has no meaning for Parquet"),
    ],
)  # fmt: skip
def test_usage_errors_are_reported_before_the_first_micro_batch(
    job: Job, tmp_path: Path, given: Files, options: dict[str, Any], said: str
) -> None:
    if "duplicates" in options:
        options = {"duplicates": tmp_path / options["duplicates"]}
    refused(job, given, options, said, USAGE)


IN_PART = {"schema": "id STRING, x STRING", "new_columns": "ignore"}
LATIN: Files = {"1.csv": b"id,n\ncaf\xe9,1\ncaf\xe8,2\n"}
NOT_UTF_8 = "1.csv cannot be read: It is not valid UTF-8. It is line 2: caf"
SOON: Files = {"1.csv": "id,t\na,2024-01-01\nb,soon\n"}
DAYS = {"timestamp": "t", "timestamp_format": "yyyy-MM-dd"}
SECONDS = {"timestamp": "t", "timestamp_format": "seconds"}
TABS = {"file_format": "csv", "schema": "id STRING, n INT", **option("sep", "\\t")}


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (LATIN, {}, NOT_UTF_8),
        ({"1.csv": "id,id\na,1\n"}, {}, "1.csv has two columns named 'id', and a CSV file is"),
        ({"1.csv": "id,x,\na,1,2\n"}, {}, "1.csv has no name for column 3, and a CSV file is"),
        ({"1.csv": 'id\n"a\nb\n'}, {"bad_records": "skip"},
         "1.csv cannot be read: a value in quotes has no end, in the record at line 2"),
        ({"1.csv": "id,x,y\na,1,2\nb,1\n"}, IN_PART, "than the header. It is line 3: b,1."),
        long({"1.csv": "id,x,y\na,1,2\nb,1,2,3\n"}, IN_PART,
             "It has more or fewer columns than the header. It is line 3: b,1,2,3."),
        ({"1.csv.bz2": bz2.compress(b"id\tn\na\t1\nb\tx\n")}, TABS, "It is line 3: b\tx."),
        ({"1.json": '{"id":"n","n":2}\n{"id":"b","n":"x"}\n'}, {"schema": "id STRING, n INT"},
         'It is line 2: {"id":"b","n":"x"}.'),
        ({"1.json": '{"id":"a"}\n{"id":"b"}{"id":"c"}\n'}, {},
         "1.json cannot be read: It is not exactly one JSON value"),
        ({"1.json": '{"id": "b"}\n{"id": \n'}, {"schema": "id STRING"},
         'It is line 2: {"id": .'),
        ({"1.json": b'{"id": "\xe9"}\n'}, {"schema": "id STRING"},
         "1.json cannot be read: It is not valid UTF-8. It is line 1: "),
        ({"1.json.gz": gzip.compress(b'{"id": "c"}\n' * 1000)[:-20]}, {"schema": "id STRING"},
         "1.json.gz cannot be read: Truncated compressed stream"),
        (SOON, {"timestamp": "t"}, "t is not a time. It is line 3: b,soon."),
        long({"1.csv": "id,t\nb,2024-13-01\n"}, DAYS, "2024-13-01"),
        long({"1.csv": "id,t\nb,1704067200\nc,1e30\n"}, SECONDS, "1e30"),
        ({"1.csv": "id,t\na,\n"}, {"timestamp": "t"}, "Here the option is --null-timestamps."),
    ],
)  # fmt: skip
def test_unreadable_input_fails_the_micro_batch_and_is_named(
    job: Job, given: Files, options: dict[str, Any], said: str
) -> None:
    refused(job, given, options, said, FAILED)


@pytest.mark.parametrize("time", ["soon", *map(long, ("10:00", "2024-05"))])
def test_a_record_whose_time_is_invalid_can_be_skipped(job: Job, time: str) -> None:
    job.files.text("1.csv", f"id,t\na,{time}\nb,\n")
    job(timestamp="t", bad_records="skip", null_timestamps="now")
    assert job.rows() == [("b", None)]
