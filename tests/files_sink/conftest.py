"""An output on each kind of storage, and a sink that writes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files_sink.folder_sink import FolderSink
from tests.support.object_store import ObjectStore


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
