"""`make wheel` accepts only wheels with the package's files and an extension for their machine."""

from __future__ import annotations

import runpy
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import releases

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "native/release.py"))


def wheel(
    release: dict[str, Any], folder: Path, machine: int, *more: str, without: str = ""
) -> Path:
    tracked = subprocess.run(
        ["git", "ls-files", "dedup"], check=True, capture_output=True, text=True, cwd=REPOSITORY
    ).stdout.split()
    names = {name for name in tracked if name.endswith(release["ENDINGS"])}
    names |= {release["EXTENSION"], "rolling_dedup-1.dist-info/METADATA", *more}
    header = bytes(18) + machine.to_bytes(2, "little")
    path = folder / "made.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names - {without}:
            archive.writestr(name, header)
    return path


def test_a_whole_wheel_is_accepted(release: dict[str, Any], tmp_path: Path) -> None:
    for machine in release["MACHINES"].values():
        release["check_members"](wheel(release, tmp_path, machine), machine)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"without": "dedup/kernel/_native.abi3.so"}, r"missing \{'dedup/kernel/_native"),
        ({"without": "dedup/REMEDIES.md"}, r"missing \{'dedup/REMEDIES.md'\}, not wanted set"),
        ({"machine": 62}, "is for machine 62 instead of 183"),
    ],
)
def test_a_wheel_that_lacks_something_is_rejected(
    change: dict[str, Any], reason: str, release: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=reason):
        release["check_members"](wheel(release, tmp_path, **{"machine": 183} | change), 183)


def test_a_wheel_with_a_file_that_git_does_not_know_is_rejected(
    release: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"not wanted \{'dedup/secret.py'\}"):
        release["check_members"](wheel(release, tmp_path, 62, "dedup/secret.py"), 62)


@pytest.mark.parametrize(("version", "commit"), releases())
def test_a_release_is_the_commit_that_its_entry_names(version: str, commit: str) -> None:
    told = subprocess.run(
        ["git", "show", f"{commit}:dedup/core/version.py"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if told.returncode:
        pytest.skip(f"this copy of the repository has no commit {commit}")
    assert f'VERSION = "{version}"' in told.stdout
