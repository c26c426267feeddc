"""A folder of tables for each test and format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lakehouse.lakes import FORMATS, Lake, Sink


@pytest.fixture(params=FORMATS, ids=lambda name: name.removeprefix("dedup_"))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """An empty folder of tables."""
    return Lake(request.param, tmp_path / "lake")


@pytest.fixture
def sink(lake: Lake, tmp_path: Path) -> Sink:
    """A sink into a new table of numbers."""
    return Sink(lake, tmp_path / "checkpoint")
