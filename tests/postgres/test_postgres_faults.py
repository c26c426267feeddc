"""The campaign against the sink and the demonstration, in short forms."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.kafka.demo.producers import Load
from tests.postgres.demo.run import judged
from tests.postgres.server import Server
from tests.support.processes import python


@pytest.mark.parametrize("kills", [8, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_every_row_is_there_once_whatever_is_killed(server: Server, kills: int) -> None:
    """Of modes that publish slice by slice, and of `atomic`; the seed tells which come first."""
    done = python("-m", "tests.postgres.campaign", "--kills", kills, "--seed", "121", timeout_s=800)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    rounds = [line for line in lines if line.startswith("seed ")]
    assert all(re.search(r"(\d+) of \1 faults fired", line) for line in rounds), rounds
    struck = re.findall(
        r"^\| `postgres\.[\w.]+` \| kill \| (\d+) \| \1 \| 0 \| 0 \|$", done.stdout, re.M
    )
    assert sum(map(int, struck)) >= kills
    assert lines[-1].endswith(": 0 lost, 0 duplicated.")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demonstration(server: Server, tmp_path: Path) -> None:
    flags = ["--kills", "1", "--batches", "6", "--folder", tmp_path]
    done = python("-m", "tests.postgres.demo", *flags, timeout_s=380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every figure is right." in done.stdout
    assert "Restarted PostgreSQL under the query." in done.stderr


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"a": 1, "b": 1}, set()),
        ({"a": 1}, {"rows in the table", "  lost"}),
        ({"a": 2, "b": 1}, {"rows in the table", "  duplicated"}),
    ],
)
def test_a_wrong_table_is_found(found: dict[str, int], wrong: set[str]) -> None:
    load = Load(stretches=1, batches=1, producers=1, batch=2)
    checks = judged(load, 3, ["a", "b", "b"], Counter(found))
    assert {check.name for check in checks if not check.good} == wrong
