"""The seed of damage, and the table of what came of it."""

from __future__ import annotations

import os

import pytest

from tests.damage.harm import Outcomes

_TABLES: list[Outcomes] = []


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
