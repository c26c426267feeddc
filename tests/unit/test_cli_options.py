"""Options of `dedup run` are checked before Spark starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.cli.run.job import resolve
from dedup.cli.run.options import RunOptions, local_folder
from dedup.errors import ConfigError


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    source = tmp_path / "in"
    source.mkdir()
    return {"input": source, "id": ("a",), "horizon": "1 day", "output": tmp_path / "out"}


def test_catalog_and_checkpoint_default_to_folders_under_the_output(
    given: dict[str, Any], tmp_path: Path
) -> None:
    options = RunOptions.make(**given)
    assert options.catalog == tmp_path / "out" / "_catalog"
    assert options.checkpoint == tmp_path / "out" / "_checkpoint"
    assert not (tmp_path / "out").exists()


def test_json_is_plain(given: dict[str, Any], tmp_path: Path) -> None:
    options = RunOptions.make(
        **given,
        duplicates=tmp_path / "dup",
        read_options=(("quote", "'"), ("sep", ";")),
        timestamp="t",
        lateness="2 hours",
        fpr=0.05,
        source_partition=("p", "q"),
        order_by=("n",),
        bad_records="skip",
    )
    told = options.to_json()
    assert json.loads(json.dumps(told)) == told
    assert told["read_options"] == {"quote": "'", "sep": ";"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "/no/such/folder"}, "INPUT /no/such/folder does not exist"),
        ({"input": "s3://bucket/in"}, "INPUT s3://bucket/in is a URI"),
        ({"id": ("a", "b", "a")}, "--id names a column twice: a, b, a."),
        ({"horizon": "soon"}, "'soon' is not a duration"),
        ({"horizon": "0 seconds"}, "--horizon 0 seconds must be at least a millisecond"),
        ({"file_format": "xml"}, "--format xml must be one of csv, json, parquet, orc"),
        ({"late": "keep"}, "--late keep must be one of emit, drop"),
        ({"null_ids": "fail"}, "--null-ids fail must be one of emit, drop, error"),
        ({"schema": "a STRING", "infer": True}, "--schema and --infer contradict"),
        ({"schema": " "}, "--schema   must name columns"),
        ({"lateness": "1 hour"}, "--lateness has no meaning without --timestamp"),
        ({"late": "drop"}, "--late drop has no meaning without --timestamp"),
        ({"timestamp_format": "yyyy"}, "--timestamp-format has no meaning without --timestamp"),
        ({"source_partition": ("p",)}, "--source-partition has no meaning without --timestamp"),
        ({"null_timestamps": "now"}, "--null-timestamps has no meaning without --timestamp"),
        ({"timestamp": "t", "null_timestamps": "skip"}, "must be one of error, now, emit, drop"),
        ({"timestamp": "t", "max_future": "soon"}, "'soon' is not a duration"),
        ({"timestamp": "t", "idle_timeout": "soon"}, "'soon' is not a duration"),
        ({"new_columns": "drop"}, "--new-columns drop must be one of error, ignore, add"),
        ({"verdict": "batch"}, "--verdict batch must be the name of a column other"),
        ({"conflicts": "emit"}, "--conflicts emit has no meaning without --check-payload"),
        ({"check_payload": ("n",), "guarantee": "at-least-once"}, "--guarantee at-least-once does"),
        ({"verdict": "v", "duplicates": "/tmp/d"}, "--verdict emits every row"),
        ({"bad_records": "drop"}, "--bad-records drop is not one of error, skip"),
        ({"files_per_trigger": 0}, "--files-per-trigger 0 must be a whole number of at least 1"),
        ({"file_format": ""}, "--format  must be one of csv, json, parquet, orc"),
        ({"output_format": ""}, "--output-format  must be one of csv, json, parquet"),
        ({"output_format": "orc"}, "--output-format orc must be one of csv, json, parquet"),
        ({"shards": 0}, "--shards 0 must be a whole number of at least 1"),
        ({"bucket_length": "0 s"}, "--bucket-length 0 s must be at least a millisecond."),
        ({"state_budget_bytes": "1 KiB"}, "--state-budget-bytes 1 KiB must be .* of at least 16.0"),
        ({"fpr": 1.0}, "--fpr 1.0 must be a number from 1e-06"),
        ({"master": "spark://host:7077"}, "--master spark://host:7077 is not a local one"),
        ({"input": ""}, "INPUT is empty; give a folder"),
        ({"output": ""}, "--output is empty; give a folder"),
        ({"master": "local[0]"}, r"--master local\[0\] is not a local one"),
        ({"driver_memory": "much"}, "--driver-memory much must be a size"),
    ],
)
def test_options_that_cannot_work_are_rejected(
    given: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        RunOptions.make(**(given | change))


@pytest.mark.parametrize(
    ("option", "place", "message"),
    [("output", "in/out", "is in INPUT"), ("output", "in", "is in INPUT"),
     ("duplicates", "in/dup", "is in INPUT"), ("checkpoint", "in/_ck", "is in INPUT"),
     ("duplicates", "out/dup", "where readers would find it"),
     ("catalog", "out/cat", "where readers would find it"),
     ("duplicates", "out/_staging", "is used by"), ("duplicates", "out", "overlap"),
     ("bad_records", "in/bad", "is in INPUT"),
     ("bad_records", "out/bad", "where readers would find it"),
     ("bad_records", "out/_metrics", "overlap"), ("log", "in/log", "is in INPUT"),
     ("duplicates", "out/_checkpoint", "overlap"), ("catalog", "out/_checkpoint/cat", "overlap"),
     ("output", "link/out", "is in INPUT"), ("output", ".", "is in --output"),
     ("output", "file", "file is a file; give a folder."),
     ("output", "file/below", "file is a file; give a folder.")],
)  # fmt: skip
def test_folders_that_would_mix_with_input_or_output_are_rejected(
    given: dict[str, Any], tmp_path: Path, option: str, place: str, message: str
) -> None:
    (tmp_path / "link").symlink_to(given["input"])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=message):
        RunOptions.make(**(given | {option: str(tmp_path / place)}))
    hidden = tmp_path / "out" / "_duplicates"
    assert RunOptions.make(**given, duplicates=hidden).duplicates == hidden


@pytest.mark.parametrize(
    "option", [("Mode", "PERMISSIVE"), ("unescapedQuoteHandling", "skip_value")]
)
def test_options_with_which_spark_would_change_values_are_refused(
    given: dict[str, Any], option: tuple[str, str]
) -> None:
    Path(given["input"], "a.csv").write_text("id,n\n1,2\n")
    assert resolve(RunOptions.make(**given)).files.file_format == "csv"
    with pytest.raises(ConfigError, match=f"{option[0]}=.* has no meaning for CSV"):
        resolve(RunOptions.make(**given, read_options=(option,)))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("header", "yes", "header=yes must be true or false"),
        ("ignoreLeadingWhiteSpace", "1", "=1 must be true or false"),
        ("sep", "", "sep must be at least one character"),
        ("quote", "ab", "quote=ab must be one character or none"),
        ("escape", "ab", "escape=ab must be one character or none"),
        ("encoding", "rot13", "encoding=rot13 is not a known encoding"),
        ("encoding", "idna", "encoding=idna is not a known encoding"),
    ],
)
def test_read_option_values_that_tasks_could_misread_are_rejected(
    given: dict[str, Any], option: str, value: str, message: str
) -> None:
    Path(given["input"], "a.csv").write_text("id,n\n1,2\n")
    with pytest.raises(ConfigError, match=message):
        resolve(RunOptions.make(**given, read_options=((option, value),)))


@pytest.mark.parametrize(
    ("ending", "mib", "more", "files"),
    [
        ("csv", 0, {}, 1_000),
        ("csv", 60, {}, 17),  # of 30 MiB on average
        ("csv", 2_000, {}, 1),
        ("csv", 60, {"shards": 8}, 17),
        ("csv", 60, {"shards": 1}, 8),
        ("csv", 60, {"files_per_trigger": 20}, 20),
        ("csv.gz", 60, {}, 4),
        ("parquet", 60, {}, 4),
    ],
)
def test_files_per_trigger_keeps_micro_batches_small_enough_for_workers(
    given: dict[str, Any], ending: str, mib: int, more: dict[str, int], files: int
) -> None:
    for name, size in (("a", mib << 20), ("b", 0)):
        with Path(given["input"], f"{name}.{ending}").open("wb") as file:
            file.truncate(size)
    job = resolve(RunOptions.make(**(given | {"master": "local[2]"} | more)))
    assert job.files_per_trigger == files


@pytest.mark.parametrize("option", ["output", "duplicates"])
@pytest.mark.parametrize("list_of_theirs", ["_spark_metadata", "_delta_log"])
def test_output_folders_with_spark_metadata_or_a_delta_log_are_rejected(
    given: dict[str, Any], tmp_path: Path, option: str, list_of_theirs: str
) -> None:
    (tmp_path / "theirs" / list_of_theirs).mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"--{option} .*leaves out all other files"):
        RunOptions.make(**(given | {option: tmp_path / "theirs"}))


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4,2]", 4)])
def test_the_master_determines_the_number_of_cores(
    given: dict[str, Any], master: str, cores: int
) -> None:
    assert RunOptions.make(**given, master=master).cores == cores
    assert RunOptions.make(**given, master="local[*]").cores >= 1


@pytest.mark.parametrize("where", ["s3://bucket/c", "dbfs:/x", "hdfs://host:8020/x", "abfss:x"])
@pytest.mark.parametrize(
    "option", ["INPUT", "--output", "--catalog", "--checkpoint", "--log", "--bad-records"]
)
def test_a_uri_is_no_folder_on_this_machine(
    option: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line passes it as a path, which merges two slashes into one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    # What an earlier attempt may have left.
    (tmp_path / "s3:" / "bucket" / "c").mkdir(parents=True)
    places = {"INPUT": "in", "--output": "out"} | {option: where}
    words = [word for name, place in list(places.items())[1:] for word in (name, place)]
    command = ["run", places["INPUT"], "--id", "a", "--horizon", "1 day", *words]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2, done.output
    said = " ".join(done.stderr.split())
    assert f"{option} {where} is a URI" in said or f"{option} {Path(where)} is a URI" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "s3:"]


def test_a_folder_with_a_colon_in_its_name_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").mkdir()
    assert local_folder("INPUT", "a:b") == tmp_path / "a:b"
    assert local_folder("--output", tmp_path / "c:d") == tmp_path / "c:d"
