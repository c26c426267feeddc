"""Small files become large ones while readers look, whatever is killed."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dedup import faults, tools
from dedup.cli.app import app
from dedup.errors import ConfigError, DataError, DedupError
from dedup.files import compaction, exchange, published_files
from tests.files_sink.folder_sink import FolderSink, once, seen, seen_locally
from tests.support.small_disk import fill, small_disk

POINTS = ("compact.file", "compact.written", "compact.exchanged")


def made(tmp_path: Path, **options: str) -> FolderSink:
    """An output of two micro-batches, each of many files."""
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint", **options)
    for number in range(2):
        first = number * 60
        sink.batch("run1", number, *(range(first + s * 10, first + s * 10 + 10) for s in range(6)))
    return sink


def compact(sink: FolderSink, **options: str) -> compaction.Compacted:
    return tools.compact(sink.path, **{"older_than": "0 seconds"} | options)


@contextmanager
def a_reader(sink: FolderSink, expected: Counter[int]) -> Iterator[dict[str, int]]:
    """Look on and on; every look that ends well must have seen each row once."""
    told = {"looks": 0, "missing": 0}
    wrong: list[Counter[int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            try:
                found = seen_locally(sink.path, sink.work.options.file_format)
            except FileNotFoundError:
                told["missing"] += 1
                continue
            told["looks"] += 1
            if found != expected:
                wrong.append(found)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()
    assert not wrong
    assert told["looks"] > 0


@pytest.mark.parametrize("options", [{}, {"partition_by": "day"}, {"file_format": "json"}])
def test_files_become_fewer_and_rows_stay(tmp_path: Path, options: dict[str, str]) -> None:
    sink = made(tmp_path, **options)
    before = len(published_files(sink.path))
    done = compact(sink)
    leaves = 6 if options.get("partition_by") else 2
    assert (done.folders, done.files_before, done.files_after) == (leaves, before, leaves)
    assert len(published_files(sink.path)) == leaves
    assert sink.numbers() == once(120)
    assert done.kept_bytes > 0
    again = compact(sink, keep_replaced="0 seconds")
    assert (again.folders, again.kept_bytes) == (0, 0)
    assert sorted(os.listdir(tmp_path / "out" / "_compaction")) == ["_lock"]
    # The sink goes on, finds its last micro-batch published, and adds to it.
    sink.batch("run2", 1, range(60, 120))
    sink.batch("run2", 2, [120])
    assert sink.numbers() == once(121)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("options", [{}, {"partition_by": "day"}], ids=["plain", "days"])
def test_a_kill_at_every_step_under_the_eyes_of_a_reader(
    tmp_path: Path, armed: Path, point: str, options: dict[str, str]
) -> None:
    sink = made(tmp_path, **options)
    for number in range(2):
        faults.arm(armed, point, "kill", number)
    with a_reader(sink, once(120)):
        for _ in range(2):
            process = get_context("fork").Process(target=compact, args=(sink,))
            process.start()
            process.join(60)
            assert process.exitcode == -9
        compact(sink)
        compact(sink, keep_replaced="0 seconds")
    assert [(name, kind) for name, kind, _ in faults.fired(armed)] == [(point, "kill")] * 2
    assert seen(sink.path) == once(120)
    assert sorted(os.listdir(tmp_path / "out" / "_compaction")) == ["_lock"]


def test_what_is_large_enough_stays_as_it_is(tmp_path: Path) -> None:
    sink = made(tmp_path)
    sizes = [Path(name).stat().st_size for name in published_files(sink.path)]
    before = {os.stat(name).st_ino for name in published_files(sink.path)}
    done = compact(sink, target_file_size="2KB")
    assert max(sizes) * 2 < 2048 < min(sizes) * 3
    assert (done.files_before, done.files_after) == (12, 6)
    assert done.folders == 2
    sink.batch("run1", 2, [120])
    assert compact(sink).files_after == 2
    assert not before & {os.stat(name).st_ino for name in published_files(sink.path)}


def test_young_micro_batches_stay(tmp_path: Path) -> None:
    sink = made(tmp_path)
    assert tools.compact(sink.path).folders == 0


def test_what_cannot_be_put_together_is_left(tmp_path: Path) -> None:
    sink = made(tmp_path, file_format="csv", header="true")
    assert (compact(sink).folders, compact(sink).left_folders) == (0, 2)
    folder = tmp_path / "other" / "batch=0"
    folder.mkdir(parents=True)
    for number, kind in enumerate((pa.int32(), pa.int64())):
        pq.write_table(pa.table({"n": pa.array([number], kind)}), folder / f"{number}.parquet")
    assert tools.compact(folder.parent, older_than="0 seconds").left_folders == 1


def test_folders_beside_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "batch=0"
    (folder / "day=1").mkdir(parents=True)
    for number, name in enumerate(("a.parquet", "b.parquet", "day=1/c.parquet", "day=1/d.parquet")):
        pq.write_table(pa.table({"n": [number]}), folder / name)
    done = tools.compact(tmp_path / "out", older_than="0 seconds")
    assert (done.folders, done.left_folders) == (1, 1)
    assert seen_locally(str(tmp_path / "out")) == once(4)
    assert sorted(path.name for path in folder.iterdir()) == ["a.parquet", "b.parquet", "day=1"]


@pytest.mark.parametrize("rows", [(0, 2, 0, 1), (0, 3), (0, 0, 0)])
def test_files_without_rows_go_and_hold_nothing_up(tmp_path: Path, rows: tuple[int, ...]) -> None:
    """As Spark leaves them: without a row group."""
    folder = tmp_path / "out" / "batch=0"
    folder.mkdir(parents=True)
    columns, first = pa.schema([("n", pa.int64())]), 0
    for number, count in enumerate(rows):
        with pq.ParquetWriter(folder / f"{number}.parquet", columns, compression="zstd") as writer:
            if count:
                writer.write_table(pa.table({"n": range(first, first + count)}, columns))
        first += count
    done = tools.compact(tmp_path / "out", older_than="0 seconds")
    assert (done.folders, done.files_before, done.files_after) == (1, len(rows), 1)
    assert seen_locally(str(tmp_path / "out")) == once(first)
    (file,) = folder.iterdir()
    with pq.ParquetFile(file) as found:
        codecs = {found.metadata.row_group(n).column(0).compression
                  for n in range(found.num_row_groups)}  # fmt: skip
    assert codecs == ({"ZSTD"} if first else set())
    assert tools.compact(tmp_path / "out", older_than="0 seconds").folders == 0


@pytest.mark.parametrize("step", ["exchange", "_is_known", "_merge_parquet", "_merge_lines"])
def test_a_micro_batch_that_is_removed_meanwhile_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    sink = made(tmp_path, file_format="json" if step == "_merge_lines" else "parquet")
    removed: list[Path] = []
    carry_on = getattr(compaction, step)

    def remove_first(*given: Any) -> Any:
        if not removed:
            removed.append(tmp_path / "out" / "batch=0")
            shutil.rmtree(removed[0])
        return carry_on(*given)

    monkeypatch.setattr(compaction, step, remove_first)
    done = compact(sink)
    assert [leaf.name for leaf in removed] == ["batch=0"]
    assert (done.folders, done.files_before, done.files_after) == (1, 6, 1)
    assert sorted(sink.numbers()) == list(range(60, 120))
    assert not list((tmp_path / "out" / "_compaction").glob("new-*"))


def test_lines_without_an_end(tmp_path: Path) -> None:
    folder = tmp_path / "batch=0"
    folder.mkdir()
    for number, text in enumerate(('{"n":1}', "", '{"n":2}\n')):
        (folder / f"{number}.json").write_text(text)
    tools.compact(tmp_path, older_than="0 seconds")
    (file,) = folder.iterdir()
    assert file.read_text() == '{"n":1}\n{"n":2}\n'


@pytest.mark.parametrize("what", ["comes", "goes"])
def test_what_somebody_changes_meanwhile_stays_so(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that came late went with those that are replaced; rows of one that went came back."""
    sink = made(tmp_path, file_format="json")
    one, *_ = published_files(sink.path)
    changed: list[str] = []

    def point(here: str, path: object = None) -> None:
        if here == "compact.written" and not changed:
            changed.append(one)
            if what == "comes":
                Path(one).with_name("theirs.json").write_text('{"n":200}\n')
            else:
                Path(one).unlink()

    monkeypatch.setattr(faults, "point", point)
    assert compact(sink).left_folders == 1
    assert changed
    numbers = once(120) + Counter([200]) if what == "comes" else once(120) - Counter(range(10))
    assert sink.numbers() == numbers
    assert compact(sink).folders == 1
    assert sink.numbers() == numbers


def test_a_damaged_file_is_named_and_its_folder_stays(tmp_path: Path) -> None:
    sink = made(tmp_path)
    name = published_files(sink.path)[7]
    data = bytearray(Path(name).read_bytes())
    data[10] ^= 1
    Path(name).write_bytes(data)
    before = sorted(os.listdir(tmp_path / "out" / "batch=1"))
    with pytest.raises(DataError, match=Path(name).name):
        compact(sink)
    assert sorted(os.listdir(tmp_path / "out" / "batch=1")) == before
    assert len(os.listdir(tmp_path / "out" / "batch=0")) == 1


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        sink = made(disk)
        fill(disk)
        with pytest.raises((DedupError, OSError)):
            compact(sink)
        (disk / "ballast").unlink()
        assert sink.numbers() == once(120)
        compact(sink)
        assert sink.numbers() == once(120)


def test_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="shows no micro-batches"):
        tools.compact(tmp_path)
    sink = made(tmp_path)
    with compaction._alone(Path(sink.path)), pytest.raises(ConfigError, match="Another compaction"):
        compact(sink)
    before = published_files(sink.path)
    monkeypatch.setattr(exchange.ctypes, "get_errno", lambda: errno.EINVAL)
    monkeypatch.setattr(exchange, "_EXCHANGE", 1 << 20)
    with pytest.raises(ConfigError, match="cannot let two folders change places"):
        compact(sink)
    assert published_files(sink.path) == before


def test_two_names_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        exchange.exchange(tmp_path / "a", tmp_path / "b")


def test_the_command(tmp_path: Path) -> None:
    sink = made(tmp_path)
    told = CliRunner().invoke(app, ["compact", sink.path, "--older-than", "0 seconds"])
    assert (told.exit_code, told.stdout.splitlines()[0]) == (0, "12 files of 2 folders became 2.")
    assert "MiB of replaced files stay in _compaction until a later run." in told.stdout
    told = CliRunner().invoke(app, ["compact", "--help"], terminal_width=200)
    assert "a reader that remembers which files it has read" in " ".join(told.stdout.split())
    told = CliRunner().invoke(app, ["compact", str(tmp_path / "nowhere"), "--json"])
    assert told.exit_code != 0
    assert "shows no micro-batches" in told.stderr
