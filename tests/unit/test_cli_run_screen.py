"""What `dedup run` prints during a run and at its end; Spark is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.cli.figures import Figures
from dedup.cli.run.command import plan_lines
from dedup.cli.run.drain import RunOutcome
from dedup.cli.run.options import RunOptions
from dedup.cli.run.progress import Reporter, RunProgress
from dedup.cli.terminal import print_lines
from dedup.core.metrics import BatchMetrics
from tests.support.batch_metrics import batch


class Observed(Reporter):
    """Keeps the last progress."""

    total_files = -1

    def update(self, figures: Figures, total_files: int) -> None:
        self.total_files = total_files


class NothingDone:
    """A query before its first micro-batch."""

    lastProgress = None  # noqa: N815


def test_archived_files_of_earlier_micro_batches_are_not_counted(tmp_path: Path) -> None:
    """With as many archived files as new files, the line showed 0/0."""
    old, begun, new = ([f"/in/{kind}{n}" for n in range(3)] for kind in ("old", "begun", "new"))
    for name in ("sources/0", "offsets", "commits"):
        (tmp_path / name).mkdir(parents=True)
    for number, paths in enumerate((old, begun)):
        lines = [
            json.dumps({"path": f"file://{path}", "timestamp": 1, "batchId": number})
            for path in paths
        ]
        (tmp_path / "sources" / "0" / str(number)).write_text("\n".join(["v1", *lines]))
        (tmp_path / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"logOffset":{number}}}')
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    observed = Observed()
    progress = RunProgress(tmp_path, [old[0], *begun, *new], frozenset(), observed)
    progress.look(NothingDone())  # type: ignore[arg-type]
    assert observed.total_files == len(begun) + len(new)


def printed(folder: Path, monkeypatch: pytest.MonkeyPatch, *batches: BatchMetrics) -> str:
    """What a run with these micro-batches prints."""
    figures = Figures.of(list(batches), emitted=frozenset({"unique"}), files=0, seconds=1.0)
    outcome = RunOutcome(figures=figures, query_id="q", interrupted=False)
    monkeypatch.setattr("dedup.cli.run.work.run", lambda *_, **__: outcome)
    command = ["run", str(folder), "--id", "a", "--horizon", "1 day"]
    done = CliRunner().invoke(app, [*command, "--output", str(folder.with_name("out"))])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_summary_says_what_the_horizon_is_measured_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = printed(tmp_path, monkeypatch, batch(0))
    assert "the run's own clock" in shown
    assert "no --timestamp is given" in shown
    assert printed(tmp_path, monkeypatch).strip() == "", "without a micro-batch all would be zero"


def test_a_plan_shows_the_types_of_the_id_and_no_empty_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = RunOptions.make(input=tmp_path, output="/o", id=("n", "N"), horizon="1 day")
    columns = {"n": "int", "x": "string"}
    plan = options.to_json() | {"columns": columns, "output_columns": columns, "written_again": []}
    print_lines(plan_lines(plan | {"notes": ["Listen."]}))
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    at = shown.index("id n int")
    assert shown[at + 1] == "N"
    assert "output columns the same" in shown
    assert shown[-1] == "Listen."
    assert not any(line.endswith((" none", " False", "[]", "{}")) for line in shown)
