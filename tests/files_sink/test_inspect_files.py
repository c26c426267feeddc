"""`dedup sink inspect dedup_files` shows an output's owner, what is visible, and what is staged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dedup import tools
from dedup.cli.app import app
from dedup.errors import ConfigError, SinkError
from dedup.sinks.files.inspection import FilesInspection
from tests.files_sink.folder_sink import QUERY, FolderSink

OTHER = "99999999-2222-3333-4444-555555555555"


def checkpoint(folder: Path, planned: int, finished: int, query: str = QUERY) -> str:
    """A query's checkpoint, which has planned and finished so many micro-batches."""
    for log, count in (("offsets", planned), ("commits", finished)):
        (folder / log).mkdir(parents=True)
        for number in range(count):
            (folder / log / str(number)).write_text("v1\n{}")
    (folder / "metadata").write_text(json.dumps({"id": query}))
    return str(folder)


def shown(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["sink", "inspect", "dedup_files", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def inspected(path: str | Path, **options: str) -> FilesInspection:
    found = tools.inspect_output("dedup_files", {"path": str(path), **options})
    assert isinstance(found, FilesInspection)
    return found


def roles(found: Any) -> list[tuple[int | None, str]]:
    return [(one.batch_id, one.role) for one in found.staged]


def test_inspect_shows_the_owner_and_the_published_micro_batch(
    sink: FolderSink, tmp_path: Path
) -> None:
    sink.batch("run1", 0, [0, 1], [2])
    sink.batch("run2", 1, [3], [4, 5])
    found = inspected(sink.path)
    assert (found.status, found.query_id, found.sink) == ("ok", QUERY, sink.work.name)
    assert (found.batch_id, found.whole, found.rows, found.files) == (1, True, 3, 2)
    assert (found.run_id, found.staged) == ("run2", ())
    assert found.nbytes is not None
    assert found.nbytes > 100
    assert "A checkpoint whose next micro-batch is 2 publishes it" in found.restart
    next_one = checkpoint(tmp_path / "c", planned=2, finished=2)
    code, told = shown(f"path={sink.path}", "--checkpoint", next_one)
    assert code == 0
    first, second, third, *_ = told.splitlines()
    assert first == f"query {QUERY}, sink {sink.work.name}"
    assert second == "Micro-batch 1 is published."
    assert third.startswith("  3 rows in 2 files, ")
    assert "runs micro-batch 2, of which nothing is published yet" in told
    assert told.endswith("Nothing is staged.\n")
    code, told = shown(f"path={sink.path}", "--json")
    body = json.loads(told)
    assert (code, body["status"], body["batch_id"], body["writer"]) == (0, "ok", 1, found.writer)


def test_inspect_shows_staged_files_that_no_plan_names(sink: FolderSink) -> None:
    sink.batch("run1", 0, [0])
    sink.task("run1", 1, 0, [1])
    found = inspected(sink.path)
    assert (found.batch_id, found.status, roles(found)) == (0, "ok", [(1, "not planned")])
    assert found.staged[0].files == 1
    assert "of micro-batch 1, which is running, or of a start that" in shown(f"path={sink.path}")[1]


def test_inspect_shows_a_micro_batch_that_is_decided_but_not_published(
    sink: FolderSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver was killed between the two steps. Files of an earlier start remain, too."""
    sink.batch("run1", 0, [0])
    answers = [sink.task("run1", 1, 0, [1, 2])]

    class KilledError(Exception):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    output = "LocalOutput" if "://" not in sink.path else "StoreOutput"
    with monkeypatch.context() as patch:
        patch.setattr(f"dedup.sinks.files.outputs.{output}.carry_out", killed)
        with pytest.raises(KilledError):
            sink.work.complete(answers)
    found = inspected(sink.path)
    assert (found.batch_id, found.whole, found.status) == (1, False, "unfinished")
    assert (1, "planned") in roles(found)
    again = checkpoint(tmp_path / "c", planned=2, finished=1)
    told = shown(f"path={sink.path}", "--checkpoint", again)[1]
    assert "Micro-batch 1 is decided, but not published yet." in told
    assert "which is about to be published" in told
    assert "or its next start, publishes the rest" in " ".join(told.split())
    # The next start does so.
    sink.batch("run2", 1, [1, 2])
    found = inspected(sink.path)
    assert (found.batch_id, found.whole, found.staged) == (1, True, ())


def test_inspect_shows_files_left_over_from_a_published_micro_batch(sink: FolderSink) -> None:
    sink.batch("run1", 0, [0])
    # A task that was thought dead writes on.
    sink.task("run0", 0, 0, [0])
    assert roles(inspected(sink.path)) == [(0, "left over")]
    assert (
        "left over from micro-batch 0; the query's next micro-batch removes it"
        in shown(f"path={sink.path}")[1]
    )
    sink.batch("run1", 1, [1])
    assert roles(inspected(sink.path)) == []


def test_the_checkpoint_of_another_query_is_refused(sink: FolderSink, tmp_path: Path) -> None:
    sink.batch("run1", 0, [0])
    other = checkpoint(tmp_path / "c", planned=1, finished=1, query=OTHER)
    with pytest.raises(ConfigError, match=f"query {OTHER}, but .* belongs to query {QUERY}"):
        inspected(sink.path, checkpointLocation=other)


def test_a_folder_that_is_no_output_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not an output of .*: nothing is published there"):
        inspected(tmp_path / "nowhere")
    (tmp_path / "batch=3").mkdir()
    with pytest.raises(ConfigError, match="it was made by another program"):
        inspected(tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_plan_or_owner_is_reported(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    (plan,) = (tmp_path / "out/_batches").iterdir()
    whole = plan.read_bytes()
    plan.write_bytes(whole[:-5])
    with pytest.raises(SinkError, match="is damaged"):
        inspected(sink.path)
    plan.write_bytes(whole)
    (tmp_path / "out/_dedup.query").write_text("{}")
    with pytest.raises(SinkError, match="names the query that owns the output"):
        inspected(sink.path)


def test_an_output_without_plans_is_recognised_by_its_folders(tmp_path: Path) -> None:
    """`dedup_folder` writes such outputs."""
    sink = FolderSink(tmp_path / "out", tmp_path / "checkpoint")
    sink.batch("run1", 0, [0])
    shutil.rmtree(tmp_path / "out/_batches")
    found = inspected(sink.path)
    assert (found.batch_id, found.whole, found.rows) == (0, True, None)
    assert shown(f"path={sink.path}")[1].splitlines()[1] == "Micro-batch 0 is published."
