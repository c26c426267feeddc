"""A folder of tables for each test and format, and the session that all of them share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lakehouse.lakes import FORMATS, Lake, Sink
from tests.support.quick_spark import FAULTS, session_of_the_process

# Workers must run this Python, not the first one on the PATH.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture(params=FORMATS, ids=lambda name: name.removeprefix("dedup_"))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """An empty folder of tables."""
    return Lake(request.param, tmp_path / "lake")


@pytest.fixture
def sink(lake: Lake, tmp_path: Path) -> Sink:
    """A sink into a new table of numbers."""
    return Sink(lake, tmp_path / "checkpoint")


@pytest.fixture
def fault_folder() -> Path:
    """Where faults are armed that strike Python workers of the session."""
    for path in FAULTS.iterdir():
        path.unlink()
    return FAULTS


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = session_of_the_process(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
