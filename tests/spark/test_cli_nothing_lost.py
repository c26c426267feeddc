"""`dedup run` takes every record of every file, or says by name what it does not take."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dedup.cli.failures import DAMAGE, FAILED
from dedup.cli.run.input.files import InputFiles
from dedup.cli.run.input.inference import Inference
from dedup.cli.run.job import resolve
from dedup.cli.run.work import plan
from dedup.cli.stop import StopRequest
from dedup.sources.files.json_types import Shape
from tests.support.cli_job import Job
from tests.support.needs import long


@pytest.mark.parametrize("name", ["in[1]", "in{a,b}*?"])
def test_an_input_folder_that_looks_like_a_glob_is_read(job: Job, name: str) -> None:
    """A folder's value that looks like a number stays text."""
    job.files.text(f"{name}/day=007/x.Csv", "id\na\n")
    job(input=job.files.folder / name)
    assert job.rows() == [("a", "007")]
    job.output = job.output.with_name("flat")
    job(input=job.files.folder / name / "day=007", output=job.output)
    assert job.rows() == [("a",)]


@pytest.mark.slow
def test_a_file_that_spark_does_not_find_is_named(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a glob hides two files from Spark."""
    job.files.text("1.csv", "id\na\n")
    job.files.text("2.csv", "id\nb\n")
    job.files.text("3.csv", "id\nc\n")
    options = InputFiles.reader_options.fget
    assert options is not None
    monkeypatch.setattr(
        InputFiles,
        "reader_options",
        property(lambda self: options(self) | {"pathGlobFilter": "1*"}),
    )
    failure = job.fails()
    assert failure.exit_code == FAILED
    assert failure.remedy == "input-names"
    folder = job.files.folder
    assert f"did not find 2 files of INPUT: {folder}/2.csv, {folder}/3.csv. All" in failure.message
    assert job.rows() == [("a",)]
    monkeypatch.undo()
    job()
    assert job.rows() == [("a",), ("b",), ("c",)]
    # Who leaves out files by an option of Spark's reader is asked nothing.
    job.files.text("4.csv", "id\nd\n")
    job.output = job.output.with_name("filtered")
    job(output=job.output, read_options=(("pathGlobFilter", "1*"),))
    assert job.rows() == [("a",)]


@pytest.mark.slow
def test_json_that_spark_would_misread_is_exact_or_counted_as_bad(job: Job) -> None:
    path = job.files.text("1.json", "")
    lines = [
        b'{"id":"a"}', b"", b' {"id" : "b"} \r', b'[{"id":"c"}, {"id":"d"}]', b"[]", b'{"id":"e"}}',
        b'{"id":"f","id":"g"}', b'{"id":"x\\ud800"}', b'{"id":"x\\ud801"}', b'{"id":"\xff"}',
        b"{'id':'h'}", b"null", b'[{"id":"i"},null]', b'{"id":0.12345678901234567891}',
        b'{"id":0.12345678901234567892}', b'{"id":1.0}', b'{"id":1.00}',
    ]  # fmt: skip
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    done = job(schema="id STRING", bad_records="skip")
    assert done.figures.bad == 8
    numbers = ["0.12345678901234567891", "0.12345678901234567892", "1.0", "1.00"]
    assert [row[0] for row in job.rows("json")] == [*numbers, "a", "b", "c", "d", "i"]


@pytest.mark.slow
def test_json_columns_are_inferred_without_a_loss(job: Job) -> None:
    """No ID is rounded, no column disappears, and any name is accepted."""
    text = (
        '{"id":9007199254740993,"e":{},"s":{"e":{},"x":1},"_corrupt_record":"c","_metadata":"m"}\n'
        '{"id":9007199254740992,"_dedup_corrupt":"d","l":[{ }]}\n{"id":0.5}\n'
    )
    job.files.text("day=1/1.json", text)
    options: dict[str, Any] = {"bad_records": "skip", "output_format": "parquet"}
    job(**options)
    rows = {row.id: row for row in job.spark.read.parquet(str(job.output)).collect()}
    assert set(rows) == {"9007199254740993", "9007199254740992", "0.5"}
    first = rows["9007199254740993"]
    assert (first.e, first.s.e, first.s.x, first.day) == ("{}", "{}", 1, "1")
    assert (first._corrupt_record, first._metadata) == ("c", "m")
    assert (rows["9007199254740992"]._dedup_corrupt, rows["9007199254740992"].l) == ("d", ["{}"])
    # Likewise columns of later files.
    job.files.text("day=1/2.json", '{"id":1,"new":{}}\n')
    assert "2.json has 'new' (string)" in job.fails(**options).message


@pytest.mark.slow
def test_json_files_of_one_value_are_read_or_rejected_as_a_whole(job: Job) -> None:
    one = job.files.text("1.json", '\ufeff[{"id": "a"},\n {"id": {"x":\n1.50}}]\n')
    options: dict[str, Any] = {"read_options": (("multiLine", "true"),)}
    job(**options)
    assert job.rows("json") == [("a",), ('{"x":1.50}',)]
    two = job.files.text("2.json", one.read_text() + "{}")
    assert f"{two} cannot be read: It is not exactly one" in job.fails(**options).message
    two.write_bytes('{"id":"\u00e9"}'.encode("utf-16"))
    assert f"{two} cannot be read: It is not valid UTF-8" in job.fails(**options).message
    job.output = job.output.with_name("utf-16")
    options["read_options"] += (("encoding", "UTF-16"),)
    job(output=job.output, input=two, **options)
    assert job.rows("json") == [("\u00e9",)]


class TestFilesOfAnUnfinishedMicroBatch:
    """Killed after its rows were published, and before Spark had noted that."""

    @pytest.fixture
    def path(self, job: Job) -> Path:
        path = job.files.text("1.csv", "id,x\na,1\nb,1\n")
        job()
        job.lose_last_commit()
        return path

    def finish(self, job: Job, path: Path) -> None:
        """The way that the message names."""
        path.write_text("id,x\na,1\nb,1\n")
        os.utime(path, (1_700_000_001, 1_700_000_001))
        assert job().figures.batches == 1
        job.files.text("2.csv", "id,x\nb,2\nc,2\n")
        job()
        assert job.rows() == [("a", "1"), ("b", "1"), ("c", "2")]

    @pytest.mark.slow
    def test_a_file_that_was_written_again_stops_the_run(self, job: Job, path: Path) -> None:
        job.files.text("1.csv", "id,x\nc,1\n")
        for failure in (job.fails(), self.planned(job)):
            assert f"{path} was written again, and the run before ended" in str(failure)
            assert "unfinished-files" in str(failure)
        self.finish(job, path)

    def planned(self, job: Job) -> Exception:
        with pytest.raises(Exception, match="written again") as failed:
            plan(job.made(), spark=job.spark)
        return failed.value

    def test_a_missing_file_stops_the_run(self, job: Job, path: Path) -> None:
        job.files.text("0.csv", "id,x\nz,1\n")
        path.unlink()
        failure = job.fails()
        assert failure.remedy == "unfinished-files"
        assert f"{path} is gone" in failure.message
        assert "empty file" not in failure.message
        (job.files.folder / "0.csv").unlink()
        self.finish(job, path)

    @pytest.mark.slow
    def test_a_file_that_stays_changed_is_read_as_it_is_after_its_output_is_removed(
        self, job: Job, path: Path
    ) -> None:
        """REMEDIES.md names this as the last resort."""
        job.files.text("1.csv", "id,x\nb,3\nc,3\n")
        shutil.rmtree(job.output / "batch=0")
        job()
        job.files.text("2.csv", "id,x\na,4\nb,4\n")
        job()
        assert job.rows() == [("a", "4"), ("b", "3"), ("c", "3")]

    @pytest.mark.slow
    def test_an_empty_file_replaces_one_that_is_lost_before_publication(
        self, job: Job, path: Path
    ) -> None:
        shutil.rmtree(job.output / "batch=0")
        later = path.rename(path.with_name("later.csv"))
        assert "Or start again with another --output" in job.fails().message
        later.rename(path)
        job()
        path = job.files.text("2.csv", "id,x\nc,2\n")
        job()
        job.lose_last_commit()
        shutil.rmtree(job.output / "batch=1")
        path.unlink()
        failure = job.fails()
        assert f"{path} is gone" in failure.message
        assert "If its rows are lost for good, replace it by an empty file" in failure.message
        path.touch()
        job()
        job.files.text("3.csv", "id,x\na,3\nc,3\n")
        job()
        assert job.rows() == [("a", "1"), ("b", "1"), ("c", "3")]


@pytest.mark.parametrize(
    ("encoding", "options"), [("windows-1252", ()), ("UTF-16", (("multiLine", "true"),))]
)
def test_text_in_another_encoding_is_read(job: Job, encoding: str, options: Any) -> None:
    path = job.files.folder / "1.csv"
    path.write_bytes("id,n\ncaf\u00e9,\u20ac\ncaf\u00e8,2\n".encode(encoding))
    job(read_options=(("encoding", encoding), *options), output_format="json")
    assert job.rows("json") == [("caf\u00e8", "2"), ("caf\u00e9", "\u20ac")]


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.slow
def test_output_is_utf8_for_any_encoding_of_the_input(job: Job, kind: str) -> None:
    """Escapes and folder names can hold characters that the input's encoding lacks."""
    folder = job.files.folder / "n=\u6f22"
    folder.mkdir()
    body = b"id\ncaf\xe9\n" if kind == "csv" else b'{"id":"caf\xe9"}\n{"id":"\\u6f23"}\n'
    (folder / f"1.{kind}").write_bytes(body)
    job(read_options=(("encoding", "ISO-8859-1"), ("lineSep", "\n")))
    more = [] if kind == "csv" else [("\u6f23", "\u6f22")]
    assert job.rows(kind) == [("caf\u00e9", "\u6f22"), *more]


def test_csv_that_readers_interpret_differently_is_read_by_one_rule(job: Job) -> None:
    """Several kinds of line ends, also in quotes, columns in any order, and blank lines."""
    job.files.text("1.csv", 'id\tn\r\na\t"1\r\n2"\n\t\n')
    job.files.text("2.csv", 'N\tmore\tID\n5" pipe\tx\tb\n')
    tabs = (("sep", "\\t"),)
    done = job(read_options=tabs, new_columns="ignore", output_format="json")
    assert done.figures.counts["records_in"] == 3
    assert job.rows("json") == [("a", "1\r\n2"), ("b", '5" pipe'), (None, None)]


def test_values_that_a_type_cannot_hold_exactly_are_bad_records(job: Job, tmp_path: Path) -> None:
    path = job.files.text(
        "1.csv", "id,at\n1.00,2024-05-01\n1.0,\n1.001,2024-05-01\n2,2024-05-01 10:00\n"
    )
    options = {"schema": "id DECIMAL(10,2), at DATE"}
    failure = job.fails(**options)
    assert failure.exit_code == FAILED
    said = f"{path} cannot be read: id does not fit decimal(10,2). It is line 4: 1.001,2024-05-01."
    assert said in failure.message
    folder = tmp_path / "bad"
    assert job(**options, bad_records=str(folder)).figures.bad == 2
    assert job.rows() == [("1.00", "2024-05-01")] or job.rows() == [("1.00", None)]
    aside = [json.loads(x) for f in folder.glob("batch=0/*") for x in f.read_text().splitlines()]
    assert sorted((row["record"], row["reason"]) for row in aside) == [
        ("1.001,2024-05-01", "id does not fit decimal(10,2)."),
        ("2,2024-05-01 10:00", "at does not fit date."),
    ]


def test_dates_and_times_are_read_in_the_given_formats(job: Job) -> None:
    job.files.text(
        "1.csv",
        "id,day,at\n1,01.05.2024 00:00,2024-05-01 10:00:00.123456000\n"
        "2,01.05.2024 10:00,\n3,,2024-05-01 10:00:00.123456789\n",
    )
    formats = (
        ("dateFormat", "dd.MM.yyyy HH:mm"),
        ("timestampFormat", "yyyy-MM-dd HH:mm:ss.SSSSSSSSS"),
    )
    schema = "id STRING, day DATE, at TIMESTAMP"
    done = job(schema=schema, read_options=formats, bad_records="skip", output_format="parquet")
    assert done.figures.bad == 2
    at = datetime(2024, 5, 1, 10, 0, 0, 123456)
    assert job.rows("parquet") == [("1", at.date(), at)]


@pytest.mark.parametrize("option", [("sep", ";"), long(("locale", "de-DE"))])
def test_a_number_whose_comma_may_be_a_decimal_sign_is_bad(
    job: Job, option: tuple[str, str]
) -> None:
    mark = ";" if option[0] == "sep" else ","
    job.files.text("1.csv", f'id{mark}n\na{mark}"12,345"\nb{mark}1.50\nc{mark}"1,5"\n')
    schema = "id STRING, n DECIMAL(10,2)"
    done = job(schema=schema, bad_records="skip", read_options=(option,), output_format="json")
    assert done.figures.bad == 2
    assert [row[0] for row in job.rows("json")] == ["b"]


@pytest.mark.slow
def test_columns_whose_names_spark_uses_itself_are_kept(job: Job, tmp_path: Path) -> None:
    header = "id,_corrupt_record,_dedup_corrupt,_metadata"
    job.files.text("1.csv", f"{header}\na,1,2,3\nb\n")
    job(bad_records=str(tmp_path / "bad"))
    (text,) = {p.read_text() for p in job.output.glob("batch=0/*.csv")} - {f"{header}\n"}
    assert text == f"{header}\na,1,2,3\n"
    assert len(list(tmp_path.glob("bad/batch=0/*.json"))) == 1
    lines = job.files.text("lines/value=1/1.csv", "id\na\n").parent.parent
    lines_into = {"input": lines, "output": job.output.with_name("lines")}
    job(**lines_into)
    assert job.rows(folder=lines_into["output"]) == [("a", "1")]
    (job.files.folder / "parquet" / "_metadata=m").mkdir(parents=True)
    job.files.table("parquet/_metadata=m/1.parquet", pa.table({"id": ["a"]}))
    job.output = job.output.with_name("tables")
    job(input=job.files.folder / "parquet", output=job.output)
    assert job.rows("parquet") == [("a", "m")]
    job.files.text("reserved/1.json", '{"id":"a","__Dedup_text":1}\n{"id":"b"}\n')
    failure = job.fails(input=job.files.folder / "reserved", output=job.output.with_name("other"))
    assert "Column '__Dedup_text': names beginning '__dedup_' are" in failure.message


def test_types_are_inferred_from_all_files(job: Job) -> None:
    """Columns have any order and case, some rows are bad, and Spark itself uses one name."""
    job.files.text("1.csv", "id,_corrupt_record,n\na,5,1\nb,6\n")
    job.files.text("2.csv", "N,ID,_corrupt_record,k\nx,c,7,1\n")
    options = {"infer": True, "new_columns": "ignore", "output_format": "parquet"}
    assert "header. It is line 3: b,6." in job.fails(**options).message
    job(**options, bad_records="skip")
    assert job.rows("parquet") == [("a", 5, "1"), ("c", 7, "x")]
    job.files.text("3.csv", "id,n,_corrupt_record,new\nd,2,8,1.5\n")
    job.files.text("4.csv", "id,n,_corrupt_record,new\ne,2,9,1\n")
    job(infer=True, new_columns="add", output_format="parquet", bad_records="skip")
    rows = job.spark.read.parquet(str(job.output / "batch=2"), str(job.output / "batch=3"))
    assert sorted(row.new for row in rows.collect()) == ["1", "1.5"]


@pytest.mark.parametrize("name", ["csv", "json"])
@pytest.mark.parametrize("packed", [False, True])
def test_types_of_a_large_file_are_inferred(
    job: Job, monkeypatch: pytest.MonkeyPatch, name: str, packed: bool
) -> None:
    """A file that is not compressed is read in parts."""
    monkeypatch.setattr("dedup.cli.run.input.inference.SPLIT_BYTES", 100)
    lines = [f'{{"id":{n},"x":{n}.5}}' if name == "json" else f"{n},{n}.5" for n in range(99)]
    lines += ['{"id":2,"x":9007199254740993}' if name == "json" else "2,x"]
    text = "\n".join(lines if name == "json" else ["id,x", *lines]).encode()
    path = job.files.folder / (f"1.{name}.gz" if packed else f"1.{name}")
    path.write_bytes(gzip.compress(text) if packed else text)
    with closing(Inference(resolve(job.made(infer=name == "csv")), "UTC")) as inference:
        (shape,) = inference.shapes([path])
    columns = inference.columns([shape], ["id", "x"]).simpleString()
    number, mixed = ("int", "string") if name == "csv" else ("bigint", "decimal(38,18)")
    assert columns == f"struct<id:{number},x:{mixed}>"


def test_a_request_to_stop_ends_the_inference_of_types(job: Job) -> None:
    job.files.text("1.json", '{"id":1}\n')
    stop = StopRequest()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        job(stop=stop)


def start_after_reading(
    job: Job, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None
) -> None:
    """Let Spark start only once a file has been read for types."""
    read, shape = Event(), Inference._shape

    def noted(*given: Any) -> Shape:
        found = shape(*given)
        read.set()
        return found

    def session(*_: object) -> AbstractContextManager[SparkSession]:
        assert read.wait(30), "nothing was read before Spark's start"
        then()
        return nullcontext(job.spark)

    monkeypatch.setattr(Inference, "_shape", noted)
    monkeypatch.setattr("dedup.cli.run.work._session", session)


@pytest.mark.parametrize("name", ["csv", "json"])
def test_types_are_inferred_while_spark_starts(
    job: Job, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start_after_reading(job, monkeypatch)
    job.files.text(f"1.{name}", "id,n\na,1\n" if name == "csv" else '{"id":"a","n":1}\n')
    job(infer=name == "csv", output_format="parquet")
    assert job.rows("parquet") == [("a", 1)]


@pytest.mark.parametrize("name", ["csv", "json"])
def test_types_are_inferred_again_if_a_file_changes_while_spark_starts(
    job: Job, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text = "id,n\na,{}\n" if name == "csv" else '{{"id":"a","n":{}}}\n'
    changed = text.format("x1" if name == "csv" else '"x1"')
    start_after_reading(job, monkeypatch, lambda: job.files.text(f"1.{name}", changed))
    job.files.text(f"1.{name}", text.format(1))
    job(infer=name == "csv", output_format="parquet")
    assert job.rows("parquet") == [("a", "x1")]


def test_types_are_inferred_by_position_if_headers_are_ignored(job: Job) -> None:
    """The oldest file names the columns."""
    job.files.text("1.csv", "id,n\n1,2\n")
    job.files.text("2.csv", "other,names\n3,4\n")
    ignored = (("enforceSchema", "true"),)
    job(infer=True, read_options=ignored, output_format="parquet")
    assert job.rows("parquet") == [(1, 2), (3, 4)]
    job.output = job.output.with_name("no header")
    failure = job.fails(infer=True, read_options=(("header", "false"),), output=job.output)
    assert "INPUT has no such column; its columns, the nearest first: '_c" in failure.message


def test_column_names_that_differ_only_in_case_are_rejected(job: Job) -> None:
    job.files.text("1.json", '{"id":1,"n":1}\n{"N":2}\n')
    message = job.fails().message
    assert "The columns of INPUT" in message
    assert "`n`" in message


def test_an_unfinished_micro_batch_must_finish_before_options_change(job: Job) -> None:
    job.files.text("1.csv", "id,x\na,1\nb,1\n")
    job(horizon="1 day")
    job.lose_last_commit()
    for option, text in (
        ({"horizon": "2 days"}, "--horizon is 2 days now and was 1 day"),
        ({"null_ids": "drop"}, "--null-ids is drop now and was emit"),
        ({"new_columns": "ignore"}, "--new-columns is ignore now and was error"),
    ):
        failure = job.fails(**option)
        assert text in failure.message
        assert "ended inside micro-batch 0" in failure.message
    again = job(horizon="1 day")
    assert again.figures.batches == 1
    job.files.text("2.csv", "id,x\na,2\nc,2\n")
    job(horizon="2 days", null_ids="drop", new_columns="ignore")
    assert job.rows() == [("a", "1"), ("b", "1"), ("c", "2")]


def test_a_micro_batch_whose_side_output_alone_is_published_must_finish(job: Job) -> None:
    """Under other options some rows would be in neither output."""
    duplicates = job.output.with_name("duplicates")
    job.files.text("1.csv", "id,x\na,1\na,2\n,3\n,4\n")
    job(horizon="1 day", duplicates=duplicates)
    job.lose_last_commit()
    shutil.rmtree(job.output / "batch=0")
    failure = job.fails(horizon="1 day", duplicates=duplicates, null_ids="drop")
    assert "--null-ids is drop now and was emit" in failure.message
    job(horizon="1 day", duplicates=duplicates)
    assert len(job.rows()) == 3


def test_a_shard_with_older_state_stops_the_run(job: Job) -> None:
    """The newest state file is another partition's, which Spark does not detect."""
    for number in range(3):
        job.files.text(f"{number}.csv", "id\n" + "".join(f"{number}-{n}\n" for n in range(40)))
        if number < 2:
            job(shards=2)
    state = job.output / "_checkpoint" / "state" / "0"
    one, other = (next((state / shard).glob("2.[dc]*")) for shard in "01")
    one.with_name(f".{one.name}.crc").unlink(missing_ok=True)
    shutil.copyfile(other, one)
    failure = job.fails(shards=2)
    assert failure.exit_code == DAMAGE
    assert failure.remedy == "damaged-state"
    assert "micro-batches older than the others" in failure.message
