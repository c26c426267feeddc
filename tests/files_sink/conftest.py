"""A session for the tests of a process, an object store, and faults in the session's workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dedup.testing import faults
from tests.files_sink.folder_sink import FolderSink
from tests.support.object_store import ObjectStore, running_store
from tests.support.quick_spark import FAULTS, session_of_the_process

# Workers must run this Python, not the first one on the PATH.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = session_of_the_process(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with running_store(tmp_path_factory.mktemp("moto") / "log") as found:
        yield found


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An output on each kind of storage."""
    if request.param == "local":
        return str(tmp_path / "out")
    store: ObjectStore = request.getfixturevalue("store")
    return store.uri(f"{tmp_path.parent.name}-{tmp_path.name}/out")


@pytest.fixture
def sink(place: str, tmp_path: Path) -> FolderSink:
    """A sink of files that writes there."""
    return FolderSink(place, tmp_path / "checkpoint")


@pytest.fixture
def fault_folder() -> Path:
    """Where faults are armed that strike Python workers of the session."""
    for path in FAULTS.iterdir():
        path.unlink()
    return FAULTS


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where faults are armed that strike this process, and those forked from it."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setattr(faults, "_folder", str(folder))
    return folder
