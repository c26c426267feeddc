"""Outputs that an earlier version compacted: read, looked into and continued."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dedup import published_files, tools
from dedup.sinks.folder_sink import SparkRows, StagedFiles
from tests.files_sink.folder_sink import FolderSink, once, seen_locally


def made(tmp_path: Path) -> FolderSink:
    """An output of one micro-batch with two files."""
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    sink.batch("run1", 0, range(10), range(10, 20))
    return sink


def merged(output: Path) -> Path:
    """Merge the files of micro-batch 0 aside, as the compaction did before the exchange."""
    own = output / "_compaction"
    own.mkdir()
    (own / "_lock").touch()
    new = own / f"new-{uuid.uuid4().hex}"
    new.mkdir()
    files = sorted((output / "batch=0").iterdir())
    rows = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    pq.write_table(rows, new / f"part-{uuid.uuid4().hex}.parquet")
    return new


def exchanged(output: Path, new: Path) -> None:
    """Swap the merged files with the files of micro-batch 0."""
    shutil.move(output / "batch=0", output / "old")
    shutil.move(new, output / "batch=0")
    shutil.move(output / "old", new)


@pytest.mark.parametrize("step", ["written", "exchanged", "kept"])
def test_a_start_removes_what_a_compaction_left(tmp_path: Path, step: str) -> None:
    """Killed before or after the exchange, or ended, and replaced files were kept for a while."""
    made(tmp_path)
    output = tmp_path / "out"
    new = merged(output)
    if step != "written":
        exchanged(output, new)
    if step == "kept":
        new.rename(new.with_name(f"replaced-1764000000000-{new.name.removeprefix('new-')}"))
    found = tools.inspect_files(output)
    assert (found.status, found.batch_id, found.rows) == ("ok", 0, 20)
    sink = FolderSink(output, tmp_path / "checkpoint")
    assert "_compaction" not in os.listdir(output)
    assert len(published_files(output)) == (2 if step == "written" else 1)
    sink.batch("run2", 0, range(10), range(10, 20))
    sink.batch("run2", 1, [20])
    assert seen_locally(str(output)) == once(21)
    found = tools.inspect_files(output)
    assert (found.status, found.batch_id, found.staged) == ("ok", 1, ())


def test_a_start_between_files_removes_it_too(tmp_path: Path) -> None:
    made(tmp_path)
    merged(tmp_path / "out")
    StagedFiles(output=tmp_path / "out", writer=SparkRows("parquet")).open()
    assert "_compaction" not in os.listdir(tmp_path / "out")


def test_files_of_others_stay_and_so_do_those_of_a_compaction_at_work(tmp_path: Path) -> None:
    made(tmp_path)
    new = merged(tmp_path / "out")
    with (new.parent / "_lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        FolderSink(tmp_path / "out", tmp_path / "checkpoint")
        assert new.exists()
    (new.parent / "replaced-x").mkdir()
    FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    assert os.listdir(new.parent) == ["replaced-x"]
