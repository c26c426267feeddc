"""`make` says in one line what is missing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None or not (ROOT / "Makefile").exists(), reason="needs make"
)


def make(*arguments: str) -> tuple[int, list[str]]:
    command = ["make", "-C", str(ROOT), "--no-print-directory", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, (done.stdout + done.stderr).strip().split("\n")


def refused(*arguments: str) -> str:
    """The one line in which make names what is missing."""
    code, (line,) = make(*arguments)
    assert code != 0
    return line


def fake(folder: Path, name: str, line: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def test_make_alone_prints_help() -> None:
    code, lines = make()
    assert code == 0
    assert {line.split()[1] for line in lines} >= {
        "demo", "demo-kafka", "test", "test-older", "lint", "bench", "bench-scale", "bench-sizing",
        "wheel",
    }  # fmt: skip
    # The descriptions form one column.
    heads = [re.match(r"make \S+ {2,}", line.strip()) for line in lines]
    assert len({head and head.end() for head in heads}) == 1


@pytest.mark.parametrize(
    ("version", "good"),
    [(None, False), ("1.8.0_291", False), ("11.0.2", False), ("17", True), ("25.0.1", True)],
)
def test_java_17_or_newer_is_required(tmp_path: Path, version: str | None, good: bool) -> None:
    goal = ("java", f"JAVA_HOME={tmp_path}")
    if version is None:
        assert f"JAVA_HOME={tmp_path} holds no working Java" in refused(*goal)
        return
    fake(tmp_path, "bin/java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")
    assert make(*goal)[0] == 0 if good else "Java 17 or newer is needed" in refused(*goal)


def test_clean_removes_all_build_folders_and_wheel_needs_no_test_environment() -> None:
    code, lines = make("--dry-run", "clean")
    assert code == 0
    assert {".venv", ".venv-*", "build", "dist"} <= set(lines[0].split())
    code, lines = make("--dry-run", "wheel")
    assert code == 0
    assert any("native/release.py" in line for line in lines)
    assert not [line for line in lines if "[test]" in line], "a wheel needs no test environment"


def test_a_python_that_is_too_old_or_absent_is_reported(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    old = fake(tmp_path, "python", 'case "$2" in *exit*) exit 1;; *) echo 3.9;; esac')
    for python, message in (
        (str(old), f"Python 3.11 or newer is needed and {old} is 3.9"),
        ("/no/python", "PYTHON=/no/python does not run"),
        ("", "Python 3.11 or newer is needed and none was found"),
    ):
        for goal in (f"{venv}/.ready-test", f"{venv}-3.5/.ready-test", "wheel"):
            assert message in refused(goal, f"VENV={venv}", f"PYTHON={python}")
    assert list(tmp_path.iterdir()) == [old]


def test_a_python_without_venv_is_reported(tmp_path: Path) -> None:
    line = f'case "$2" in *ensurepip*) exit 1;; *) exec "{sys.executable}" "$@";; esac'
    python = fake(tmp_path, "python", line)
    venv = tmp_path / "venv"
    told = make(f"{venv}/.ready-test", f"VENV={venv}", f"PYTHON={python}")
    assert told[0] != 0
    assert "install its venv module" in told[1][0]
