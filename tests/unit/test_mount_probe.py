"""Marks by which executors know that they see the driver's root."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dedup.errors import CatalogError
from dedup.spark import mount_probe
from dedup.storage.root import Root


@pytest.fixture(autouse=True)
def _another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_probe, "_seen", set())


def test_another_folder_is_refused_by_name(tmp_path: Path) -> None:
    mount_probe.mark_start(Root(tmp_path / "here"), "s1")
    with pytest.raises(CatalogError, match=rf"does not see in {tmp_path}/there .*Mount.*s3://"):
        mount_probe.check_start(Root(tmp_path / "there"), "s1")
    # As is another start's mark, such as in an old copy of the folder.
    with pytest.raises(CatalogError, match="shared_local"):
        mount_probe.check_start(Root(tmp_path / "here"), "s2")


def test_a_mark_is_checked_once_per_process(tmp_path: Path) -> None:
    root = Root(tmp_path)
    mount_probe.mark_start(root, "s1")
    mount_probe.check_start(root, "s1")
    (tmp_path / "starts" / "s1").unlink()
    mount_probe.check_start(root, "s1")


def test_marks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_probe, "STARTS_KEPT", 3)
    root, now_s = Root(tmp_path), time.time()
    # Days ago; of the three beyond the newest, one is too young to go.
    for name, days in (("a", 90), ("b", 60), ("c", 20), ("d", 10), ("e", 5)):
        mount_probe.mark_start(root, name)
        os.utime(tmp_path / "starts" / name, times=(now_s, now_s - days * 86_400))
    mount_probe.mark_start(root, "f")
    assert sorted(path.name for path in (tmp_path / "starts").iterdir()) == ["c", "d", "e", "f"]
