"""What the library returns is what the commands print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dedup
from dedup import tools
from dedup.cli import catalog as work
from dedup.cli.app import app
from dedup.tools.tuning import candidates
from dedup.tools.tuning import tune as tuning
from tests.support.processes import python
from tests.support.query_driver import POLICY, QUERY, QueryDriver
from tests.support.tuning import COSTS
from tests.unit.test_catalog_commands import in_a_segment, known, run


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueryDriver:
    """A query whose checkpoint the commands read without Spark."""
    made = QueryDriver(tmp_path, POLICY)
    run(made, 20)
    next(Path(made.root.url(QUERY)).rglob("*.filter")).unlink()
    monkeypatch.setattr(work, "snapshot", lambda *_: known(made))
    return made


def printed(*words: str) -> dict[str, Any]:
    """What a command prints, except the exit code."""
    done = CliRunner().invoke(app, [*words, "--json"])
    body: dict[str, Any] = json.loads(done.stdout)
    assert body.pop("exit_code") == done.exit_code
    assert "error" not in body, body
    return body


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("tool", [tools.inspect, tools.verify])
def test_inspect_and_verify_return_what_their_commands_print(
    query: QueryDriver, tool: Callable[..., Any], checkpoint: bool
) -> None:
    words = ["--checkpoint", "there"] if checkpoint else []
    found = tool(query.root.url(), known(query) if checkpoint else None, QUERY)
    command = ["catalog", tool.__name__, query.root.url(), "--query", QUERY, *words]
    assert found.to_json() == printed(*command)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_explain_returns_what_its_command_prints(query: QueryDriver, checkpoint: bool) -> None:
    name, words = in_a_segment(query), ["--checkpoint", "there"] if checkpoint else []
    found = tools.explain(query.root.url(), [name], known(query) if checkpoint else None)
    assert found.seen
    assert found.to_json() == printed("explain", query.root.url(), name, *words)


def test_accept_loss_returns_what_its_command_prints(query: QueryDriver) -> None:
    name = next(query.state().manifest.segments()).name
    found = tools.accept_loss(query.root.url(), name)
    assert found.start_ms is not None
    assert found.to_json() == printed("catalog", "accept-loss", query.root.url(), "--segment", name)


@pytest.mark.parametrize("dry_run", [True, False])
def test_vacuum_returns_what_its_command_prints(query: QueryDriver, dry_run: bool) -> None:
    words = ["--checkpoint", "there", "--older-than", "1 day", *(["--dry-run"] if dry_run else [])]
    found = tools.vacuum(query.root.url(), known(query), older_than="1 day", dry_run=dry_run)
    assert found.to_json() == printed("catalog", "vacuum", query.root.url(), *words)


def test_adopt_returns_what_its_command_prints(query: QueryDriver, tmp_path: Path) -> None:
    found = tools.adopt(query.root.url(), tmp_path / "one").to_json()
    again = printed("catalog", "adopt", query.root.url(), "--checkpoint", str(tmp_path / "two"))
    # What was adopted begins before micro-batch 0.
    moved = {"checkpoint": str(tmp_path / "two"), "epoch": -1}
    assert found["ids"]
    assert found | moved == again


def test_tune_returns_what_its_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for times, which differ from one measurement to the next."""
    monkeypatch.setattr(tuning, "measure", lambda *_: COSTS)
    monkeypatch.setattr(candidates, "FPRS", (0.01,))
    monkeypatch.setattr(candidates, "BUCKETS_TRIED", (8,))
    monkeypatch.setattr(candidates, "BUDGETS", ())
    monkeypatch.setattr(candidates, "FILTER_BOUNDS", ())
    found = tools.tune(tools.TuneOptions(ids_per_day="60k", horizon="1 day"))
    assert found.to_json() == printed(
        "tune", "--ids-per-day", "60k", "--horizon", "1 day", "--quiet"
    )


@pytest.mark.parametrize("room", ["catalog", "tools/tuning"])
def test_snippets_of_the_pages_run(
    query: QueryDriver, room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(dedup.__file__).parent / room / "README.md"
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "catalog").symlink_to(query.root.url())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tools, "read_checkpoint", lambda *_: known(query))
    monkeypatch.setattr(candidates, "FPRS", (0.01,))
    monkeypatch.setattr(candidates, "BUCKETS_TRIED", (8,))
    monkeypatch.setattr(candidates, "BUDGETS", ())
    monkeypatch.setattr(candidates, "FILTER_BOUNDS", ())
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(snippet, {})


def test_neither_the_package_nor_the_tools_load_spark() -> None:
    program = "import dedup, sys; dedup.tools.inspect; print('pyspark' in sys.modules)"
    assert python("-c", program).stdout == "False\n"
