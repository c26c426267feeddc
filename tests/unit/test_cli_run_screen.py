"""What `dedup run` prints at its end; Spark is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.cli.figures import Figures
from dedup.cli.run.command import plan_lines
from dedup.cli.run.drain import RunOutcome
from dedup.cli.run.options import RunOptions
from dedup.cli.terminal import print_lines
from dedup.core.metrics import BatchMetrics
from tests.support.batch_metrics import batch


def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: RunOutcome) -> str:
    (tmp_path / "in").mkdir()
    monkeypatch.setattr("dedup.cli.run.work.run", lambda *_, **__: outcome)
    command = ["run", str(tmp_path / "in"), "--id", "a", "--horizon", "1 day"]
    done = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    return done.stdout


def outcome(*batches: BatchMetrics) -> RunOutcome:
    figures = Figures.of(list(batches), emitted=frozenset({"unique"}), files=0, seconds=1.0, bad=0)
    return RunOutcome(figures=figures, query_id="q", interrupted=False, written_again=())


def test_a_run_without_a_micro_batch_shows_no_table_of_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(tmp_path, monkeypatch, outcome()).strip() == ""


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


def test_the_summary_says_what_the_horizon_is_measured_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = printed(tmp_path, monkeypatch, outcome(batch(0)))
    assert "the run's own clock" in shown
    assert "no --timestamp is given" in shown
