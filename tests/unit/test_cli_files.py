"""What the names in the input say, and what the output folder remembers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.cli.run.input.as_read import NAME, FilesAsRead, warning
from dedup.cli.run.input.files import Stamp, check_in_folders, find_files
from dedup.cli.run.options import RunOptions
from dedup.cli.run.record import (
    RECORD,
    Record,
    check_checkpoint,
    check_same,
    check_unfinished,
    exclusive,
)
from dedup.errors import ConfigError, DedupError
from dedup.sources.files.file_log import FileLog


def options_for(folder: Path, *names: str, **options: object) -> RunOptions:
    source = folder / "in"
    for name in names:
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    source.mkdir(exist_ok=True)
    given = {"input": source, "id": ("a",), "horizon": "1 day", "output": folder / "out"}
    return RunOptions.make(**(given | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "file_format", "compressed"),
    [(("a.csv", "b.CSV"), "csv", False), (("a.csv.gz", "deep/er/b.csv.gz"), "csv", True),
     (("a.csv.gz", "b.csv"), "csv", False), (("a.json", "b.jsonl.gz", "c.ndjson"), "json", False),
     (("part-0.snappy.parquet", "_SUCCESS", ".part-0.crc"), "parquet", False),
     (("part-0.zstd.ORC",), "orc", False)],
)  # fmt: skip
def test_file_names_show_format_and_compression(
    tmp_path: Path, names: tuple[str, ...], file_format: str, compressed: bool
) -> None:
    files = find_files(options_for(tmp_path, *names))
    assert (files.file_format, files.compressed) == (file_format, compressed)


@pytest.mark.parametrize(
    ("names", "text"),
    [(("a.csv", "b.json", "c.json"), "1 csv and 2 json files; give --format"),
     (("readme.txt",), "holds no file named as csv, json, parquet or orc; give --format"),
     ((), "holds no files")],
)  # fmt: skip
def test_names_that_show_no_single_format_need_the_format_option(
    tmp_path: Path, names: tuple[str, ...], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        find_files(options_for(tmp_path, *names))
    assert len(find_files(options_for(tmp_path, file_format="csv")).paths) == len(names)


def test_other_names_are_left_out_and_counted(tmp_path: Path) -> None:
    files = find_files(options_for(tmp_path, "a.csv", "readme.txt", "_hidden/b.csv"))
    assert (len(files.paths), files.left_out) == (1, 1)
    # Spark's globs look at case.
    glob = "*{.[cC][sS][vV],.[cC][sS][vV].[gG][zZ]}"
    assert files.reader_options["pathGlobFilter"] == glob


def test_partition_folders_are_seen(tmp_path: Path) -> None:
    assert find_files(options_for(tmp_path, "day=1/a.csv")).partitioned
    assert "recursiveFileLookup" not in find_files(options_for(tmp_path)).reader_options


def test_one_file_can_be_the_input(tmp_path: Path) -> None:
    options = options_for(tmp_path, "a[1].csv", "b.csv")
    files = find_files(replace(options, input=tmp_path / "in" / "a[1].csv"))
    assert (files.root, files.pattern) == (tmp_path / "in", None)
    assert files.paths == (tmp_path / "in" / "a[1].csv",)
    assert files.place == str(tmp_path / "in" / "a\\[1\\].csv")


@pytest.mark.parametrize("name", ["b.json.SNAPPY", "b.json.deflate"])
def test_a_file_that_only_hadoop_unpacks_is_refused(tmp_path: Path, name: str) -> None:
    options = replace(options_for(tmp_path, "a.json.gz", name), file_format="json")
    with pytest.raises(ConfigError, match=f"{name} is packed in a way that only Hadoop reads"):
        find_files(options)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a:1.csv", "has a colon in its name"), ("a\udce4.csv", "has a name that is not in UTF-8")],
)
def test_names_that_spark_cannot_read_are_rejected(tmp_path: Path, name: str, text: str) -> None:
    options = options_for(tmp_path, "b.csv", name)
    with pytest.raises(ConfigError, match=text) as refused:
        find_files(options)
    str(refused.value).encode()
    assert refused.value.remedy == "input-names"
    # What does not belong to the input may have any name.
    (tmp_path / "in" / name).rename(tmp_path / "in" / name.replace(".csv", ".txt"))
    assert find_files(options).left_out == 1


def test_links_are_followed_as_spark_does(tmp_path: Path) -> None:
    options = options_for(tmp_path, "a.csv")
    other = tmp_path / "other"
    other.mkdir()
    (other / "c.csv").touch()
    (tmp_path / "in" / "d.csv").symlink_to(other / "c.csv")
    link = tmp_path / "in" / "link"
    link.symlink_to(other)
    assert {str(p.relative_to(options.input)) for p in find_files(options).paths} == {
        "a.csv", "d.csv", "link/c.csv"
    }  # fmt: skip
    (other / "up").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=f"{link}/up is a link to {tmp_path}, which contains it"):
        find_files(options)
    (other / "up").unlink()
    third = tmp_path / "third"
    third.mkdir()
    (other / "there").symlink_to(third)
    (third / "back").symlink_to(other)
    with pytest.raises(ConfigError, match=f"back is a link to {other}, which contains it"):
        find_files(options)
    (other / "there").unlink()
    # Broken links outside the input are skipped, as Spark does.
    (tmp_path / "in" / "latest").symlink_to("/gone/x")
    (tmp_path / "in" / "itself").symlink_to("itself")
    assert len(find_files(options).paths) == 3
    (other / "c.csv").unlink()
    with pytest.raises(
        ConfigError, match=f"d.csv is a link to {other}/c.csv, which does not exist"
    ):
        find_files(options)


def test_a_file_outside_partition_folders_is_rejected(tmp_path: Path) -> None:
    check_in_folders(find_files(options_for(tmp_path, "day=1/a.csv", "day=2/x/b.csv")))
    with pytest.raises(ConfigError, match=r"d/c\.csv is not in a folder such as day="):
        check_in_folders(find_files(options_for(tmp_path, "d/c.csv")))
    flat = find_files(options_for(tmp_path / "flat", "a.csv", "d/b.csv"))
    check_in_folders(flat)
    with pytest.raises(ConfigError, match=r"a\.csv is not in a folder"):
        check_in_folders(replace(flat, partitioned=True))


def record_of(options: RunOptions, query_id: str | None = None) -> Record:
    return Record(
        options=options.fixed(),
        schema={"type": "struct", "fields": []},
        pattern=None,
        partitioned=False,
        compressed=False,
        shards=2,
        rules=options.rules(),
        query_id=query_id,
    )


def test_a_record_is_read_back_as_written(tmp_path: Path) -> None:
    record = record_of(options_for(tmp_path), "q1")
    assert Record.read(tmp_path) is None
    record.write(tmp_path)
    assert Record.read(tmp_path) == record
    assert [p.name for p in tmp_path.iterdir() if "tmp" in p.name] == []


def test_places_below_the_output_move_with_it(tmp_path: Path) -> None:
    """State with absolute paths continues as well, also in a new place."""
    there, to = tmp_path / "out", tmp_path / "to"
    options = options_for(tmp_path, duplicates=there / "_dup", bad_records=str(tmp_path / "bad"))
    record = record_of(options, "q1")
    there.mkdir()
    record.write(there)
    kept = json.loads((there / RECORD).read_text())
    assert kept["options"]["catalog"] == "_catalog"
    assert kept["rules"]["duplicates"] == "_dup"
    assert kept["rules"]["bad_records"] == str(tmp_path / "bad")
    (there / "_catalog" / "q1").mkdir(parents=True)
    (there / "_catalog" / "q1" / "certificate.json").touch()
    (there / "_checkpoint").mkdir()
    (there / "_checkpoint" / "metadata").write_text('{"id": "q1"}')
    there.rename(to)
    moved = RunOptions.make(
        input=options.input, id=("a",), horizon="1 day", output=to, duplicates=to / "_dup",
        bad_records=str(tmp_path / "bad"),
    )  # fmt: skip
    for absolute in (False, True):
        if absolute:
            (to / RECORD).write_text(json.dumps(kept | {"options": record.options}))
        found = Record.read(to)
        assert found is not None
        check_same(moved, found)
        assert found.rules["duplicates"] == str(to / "_dup")
    # Whether it belongs to the query is looked at in the new place.
    for name in ("_catalog", "_checkpoint"):
        (to / name).rename(tmp_path / name)
        with pytest.raises(ConfigError, match=f"--{name[1:]} is .* now and was"):
            check_same(moved, found)
        (tmp_path / name).rename(to / name)


@pytest.mark.parametrize("value", ["_x/../../y", "_x//y", "_/."])
def test_places_below_the_output_are_checked(tmp_path: Path, value: str) -> None:
    record = record_of(options_for(tmp_path))
    body = {"format": 1} | {name: getattr(record, name) for name in Record.__slots__}
    (tmp_path / RECORD).write_text(json.dumps(body | {"options": {"catalog": value}}))
    with pytest.raises(ConfigError, match="is not a path below a folder"):
        Record.read(tmp_path)


@pytest.mark.parametrize("body", ["{", "[]", '{"format": 2}', '{"format": 1, "colour": 1}'])
def test_a_damaged_record_is_refused(tmp_path: Path, body: str) -> None:
    (tmp_path / RECORD).write_text(body)
    with pytest.raises(ConfigError, match=r"_dedup\.json cannot be read"):
        Record.read(tmp_path)


def test_output_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "batch=0").mkdir()
    with pytest.raises(ConfigError, match="another program wrote"):
        Record.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ("b",)}, "--id is b now and was a in the run"),
        ({"id": ("a", "b")}, "--id is a b now and was a in the run"),
        ({"file_format": "json"}, "--format is json now and was not given"),
        ({"infer": True}, "--infer is True now and was False"),
        ({"timestamp": "t"}, "--timestamp is t now and was not given"),
        ({"read_options": (("sep", ";"),)}, "--read-option is sep=; now"),
        ({"shards": 3}, "--shards is 3 now and was 2"),
    ],
)
def test_options_that_change_the_meaning_of_a_run_are_rejected(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    record = record_of(options_for(tmp_path))
    with pytest.raises(ConfigError) as refused:
        check_same(options_for(tmp_path, **change), record)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("file_format", "lost"),
    [
        ("csv", ("multiLine", "true")), ("csv", ("mode", "FAILFAST")),
        ("json", ("samplingRatio", "0.5")), ("json", ("primitivesAsString", "true")),
        ("parquet", ("mode", "FAILFAST")),
    ],
)  # fmt: skip
def test_an_option_that_lost_its_meaning_need_not_be_repeated(
    tmp_path: Path, file_format: str, lost: tuple[str, str]
) -> None:
    now = options_for(tmp_path, file_format=file_format)
    check_same(now, record_of(replace(now, read_options=(lost,))))
    with pytest.raises(ConfigError, match="--read-option is"):
        check_same(now, record_of(replace(now, read_options=(("encoding", "UTF-16"),))))


def test_policies_may_change_between_runs(tmp_path: Path) -> None:
    record = record_of(options_for(tmp_path, timestamp="t"))
    given = {"horizon": "9 days", "late": "drop", "lateness": "1 hour", "files_per_trigger": 3,
             "duplicates": tmp_path / "dup", "fpr": 0.1}  # fmt: skip
    check_same(options_for(tmp_path, timestamp="t", **given), record)


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    options = options_for(tmp_path)
    check_checkpoint(options, None)
    check_checkpoint(options, record_of(options))
    with pytest.raises(ConfigError, match=r"made by query q1.*is empty: restore"):
        check_checkpoint(options, record_of(options, "q1"))
    options.checkpoint.mkdir(parents=True)
    (options.checkpoint / "metadata").write_text('{"id": "q2"}')
    with pytest.raises(ConfigError, match=r"made by query q1.*holds query q2: restore"):
        check_checkpoint(options, record_of(options, "q1"))
    with pytest.raises(ConfigError, match="belongs to another run"):
        check_checkpoint(options, None)
    check_checkpoint(options, record_of(options, "q2"))
    for damaged in (b"{", b'{"id": "q\xff"}', b"[]"):
        (options.checkpoint / "metadata").write_bytes(damaged)
        with pytest.raises(ConfigError, match="metadata is damaged"):
            check_checkpoint(options, record_of(options, "q2"))


@pytest.mark.parametrize("side", [False, True])
def test_batches_that_the_checkpoint_has_not_begun_are_refused(tmp_path: Path, side: bool) -> None:
    """After `dedup catalog adopt` or a restored checkpoint Spark uses their numbers again."""
    options = options_for(tmp_path, duplicates=tmp_path / "side")
    offsets = options.checkpoint / "offsets"
    offsets.mkdir(parents=True)
    (options.checkpoint / "metadata").write_text('{"id": "q1"}')
    for number in range(4):
        (offsets / str(number)).touch()
        ((tmp_path / "side" if side else options.output) / f"batch={number}").mkdir(parents=True)
    record = record_of(options, "q1")
    check_checkpoint(options, record)
    for number in (3, 2):
        (offsets / str(number)).unlink()
    with pytest.raises(ConfigError, match=r"holds micro-batches 2 to 3, which .* has not begun"):
        check_checkpoint(options, record)


def test_only_one_run_may_use_an_output_at_a_time(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from dedup.cli.run.record import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(DedupError, match="Another `dedup run`"), exclusive(tmp_path):
            pass
        other.kill()
    with exclusive(tmp_path):
        pass


def entry(name: str, batch: int, mtime_ms: int = 1) -> str:
    return json.dumps({"path": name, "timestamp": mtime_ms, "batchId": batch})


def checkpoint_with(folder: Path, *, commits: int, v2: bool = False) -> Path:
    """Micro-batches 0, 1 and 2 took the source's batches 0, 1-2 and 3."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, offset in enumerate((0, 2, 3)):
        source = json.dumps({"logOffset": offset})
        source = f"0:{source}" if v2 else source
        lines = ["v2" if v2 else "v1", "{}", source]
        (folder / "offsets" / str(number)).write_text("\n".join(lines))
        if number < commits:
            (folder / "commits" / str(number)).touch()
    return folder


@pytest.mark.parametrize("v2", [False, True])
def test_the_log_is_read_as_it_grows(tmp_path: Path, v2: bool) -> None:
    checkpoint_with(tmp_path, commits=2, v2=v2)
    log = FileLog(tmp_path)
    assert (log.taken, log.committed(), log.refresh()) == ({}, 2, {})
    folder = tmp_path / "sources" / "0"
    folder.mkdir(parents=True)
    (folder / "0").write_text("v1\n" + entry("file:///in/a%20b%2B+%25.csv", 0, 7))
    assert list(log.refresh()) == ["/in/a b++%.csv"]
    first = entry("file:///in/a%20b%2B+%25.csv", 0, 7)
    lines = [first, entry("file:/in/c", 1), entry("file:/in/d", 2), entry("file:/in/e", 3)]
    (folder / "3.compact").write_text("\n".join(["v1", *lines]))
    (folder / "3").write_text("\n".join(["v1", lines[3]]))
    assert set(log.refresh()) == {"/in/c", "/in/d", "/in/e"}
    (folder / "4").write_text("v1\n{")
    (folder / ".4.crc").write_text("x")
    assert log.refresh() == {}
    assert FileLog(tmp_path).taken == log.taken
    assert log.count(log.committed()) == 3
    assert log.of_batch(0) == [Path("/in/a b++%.csv")]
    assert sorted(log.of_batch(1)) == [Path("/in/c"), Path("/in/d")]
    with pytest.raises(ValueError, match="9"):
        log.of_batch(9)
    (tmp_path / "offsets" / "1").write_text("{")
    with pytest.raises(ValueError, match="2"):
        log.of_batch(2)
    # Unknown is not committed.
    assert log.committed() == -1


def test_files_that_were_overwritten_after_reading_are_found(tmp_path: Path) -> None:
    checkpoint_with(tmp_path / "ck", commits=2)
    folder = tmp_path / "ck" / "sources" / "0"
    folder.mkdir(parents=True)
    paths = [tmp_path / name for name in ("same", "later", "larger", "mended", "planned", "new")]
    for path in paths:
        path.write_text("1")
        os.utime(path, ns=(0, 5_000_999_999))
    lines = [
        entry(f"file://{path}", 3 if path.name == "planned" else number % 3, 5_000)
        for number, path in enumerate(paths[:-1])
    ]
    (folder / "3").write_text("\n".join(["v1", *lines]))

    def found() -> list[str]:
        stamps = {str(p): Stamp(p.stat().st_mtime_ns, p.stat().st_size) for p in paths}
        told = FilesAsRead(tmp_path).changed(stamps, FileLog(tmp_path / "ck"))
        return [Path(path).name for path in told]

    assert found() == []
    for path in paths:
        if path.name in ("later", "planned", "new", "mended"):
            os.utime(path, ns=(0, 6_000_000_000))
    (tmp_path / "larger").write_text("12")
    os.utime(tmp_path / "larger", ns=(0, 5_000_000_000))
    # Spark's log gives only the time.
    assert found() == ["later", "mended"]
    (tmp_path / "larger").write_text("1")
    os.utime(tmp_path / "larger", ns=(0, 5_000_000_000))
    FilesAsRead(tmp_path).note([tmp_path / "larger", tmp_path / "mended", tmp_path / "gone"])
    (tmp_path / "larger").write_text("12")
    os.utime(tmp_path / "larger", ns=(0, 5_000_000_000))
    assert found() == ["later", "larger"]
    with (tmp_path / NAME).open("a") as handle:
        handle.write('["cut')
    assert found() == ["later", "larger"]


def test_the_warning_names_some_and_counts_all() -> None:
    assert "1 file was written again after it was read" in warning(["a"])
    told = warning([f"f{n}" for n in range(2000)])
    assert "2,000 files were written again" in told
    assert "f0, f1, f2, f3, f4 and 1,995 more" in told
    assert "rename it" in told


def test_options_missing_in_an_older_record_count_as_defaults(tmp_path: Path) -> None:
    """Options that did not exist yet count as their defaults."""
    options = options_for(tmp_path, timestamp="t")
    record = record_of(options, "q1")
    older = replace(
        record,
        options={k: v for k, v in record.options.items() if k != "stable_timestamps"},
        rules={k: record.rules[k] for k in ("horizon", "lateness", "late", "null_ids")},
    )
    check_same(options, older)
    for log, number in (("offsets", 0), ("commits", -1)):
        (options.checkpoint / log).mkdir(parents=True)
        (options.checkpoint / log / str(number)).touch()
    (options.output / "batch=0").mkdir()
    check_unfinished(options, older)
    for change in ({"order_by": ("x",)}, {"bad_records": "skip"}, {"verdict": "v"}):
        with pytest.raises(ConfigError, match="ended inside micro-batch 0"):
            check_unfinished(options_for(tmp_path, timestamp="t", **change), older)
    with pytest.raises(ConfigError, match="--stable-timestamps is True now and was False"):
        check_same(options_for(tmp_path, timestamp="t", stable_timestamps=True), older)


def test_a_micro_batch_of_bad_records_alone_counts_as_published(tmp_path: Path) -> None:
    options = options_for(tmp_path, bad_records=str(tmp_path / "bad"))
    record = record_of(options, "q1")
    (options.checkpoint / "offsets").mkdir(parents=True)
    (options.checkpoint / "offsets" / "0").touch()
    (tmp_path / "bad" / "batch=0").mkdir(parents=True)
    check_unfinished(options, record)
    with pytest.raises(ConfigError, match="--bad-records is skip now and was /"):
        check_unfinished(options_for(tmp_path, bad_records="skip"), record)
    (tmp_path / "bad" / "batch=1").mkdir()
    (options.checkpoint / "metadata").write_text('{"id": "q1"}')
    with pytest.raises(ConfigError, match="holds micro-batches 1 to 1"):
        check_checkpoint(options, record)
