"""These tests share their supports with the unit and Spark tests; their table of outcomes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damage.judge import Outcomes

_IN_MEMORY = "/dev/shm"
_TABLES: list[Outcomes] = []


@pytest.fixture
def tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In memory where there is such a place: small databases by the thousand wait for a disk."""
    if not os.access(_IN_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY, prefix="dedup-damage-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture(scope="session")
def seed() -> int:
    """DAMAGE_SEED chooses other cases."""
    return int(os.environ.get("DAMAGE_SEED", "1"))


@pytest.fixture
def outcomes() -> Outcomes:
    """Where a test counts what came of its damage."""
    _TABLES.append(Outcomes())
    return _TABLES[-1]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """DAMAGE_TABLE=1 prints what came of every kind of damage."""
    total = Outcomes()
    for one in _TABLES:
        total.counts.update(one.counts)
    if total.counts and os.environ.get("DAMAGE_TABLE") == "1":
        terminalreporter.write_line(total.table())
