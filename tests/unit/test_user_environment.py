"""A user without a name or a home folder, another Python, a missing locale: one clear line each."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.cli.session import last_line
from dedup.errors import ConfigError
from dedup.spark.driver.checks import check_python
from tests.support.processes import python

#: A user ID that no file names, with the rights of this process.
NAMELESS = ("unshare", "--user", "--map-user=54321", "--map-group=54321")


def nameless(*arguments: object) -> str:
    """What a Python says at last that a user without a name and a home folder runs."""
    command = [*NAMELESS, "env", "--unset=HOME", sys.executable, *map(str, arguments)]
    if shutil.which("unshare") is None or subprocess.run([*NAMELESS, "true"]).returncode:
        pytest.skip("needs the right to make a namespace of users (util-linux, unshare --user)")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    return done.stderr.strip()


def test_a_user_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("id\na\n")
    places = (tmp_path / "in", "--output", tmp_path / "out")
    told = nameless("-m", "dedup.cli.main", "run", *places, "--id", "id", "--horizon", "1 day")
    assert told.startswith("error: The user with ID 54321 has no name on this machine")
    assert len(told.splitlines()) == 1


def test_a_user_without_a_home_folder() -> None:
    code = "from dedup import kafka_jars; kafka_jars()"
    told = nameless("-c", code)
    assert told.splitlines()[-1].startswith("dedup.errors.ConfigError: ~/.cache/rolling-dedup/")
    assert told.endswith("54321 has no home folder. Set HOME, or give a path without '~'.")
    assert "has no home folder. Set HOME" in nameless("-m", "dedup.cli.main", "prepare")


@pytest.mark.parametrize(
    "command",
    [
        ["run", "~nobody-here/in", "--output", "out", "--id", "id", "--horizon", "1 day"],
        ["watch", "~nobody-here/out", "--once"],
        ["check", "out", "--properties", "~nobody-here/spark.conf"],
    ],
)
def test_a_home_folder_of_nobody(command: list[str]) -> None:
    told = " ".join(CliRunner().invoke(app, command).output.split())
    assert told.startswith("error: ~nobody-here/")
    assert told.endswith(
        "user nobody-here has no home folder. Set HOME, or give a path without '~'."
    )


def test_a_python_for_the_workers_that_lacks_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path, symlinks=True)
    other = tmp_path / "bin" / "python3"
    monkeypatch.setenv("PATH", str(other.parent))
    said = (
        rf"would run {other}, not {sys.executable} as this program: ModuleNotFoundError: .*'pandas'"
    )
    with pytest.raises(ConfigError, match=said) as refused:
        check_python("python3")
    assert f"Set PYSPARK_PYTHON={sys.executable} before the session starts." in str(refused.value)
    assert refused.value.remedy == "executor-package"
    with pytest.raises(ConfigError, match="No such file"):
        check_python("/nowhere/python3")


def test_a_python_for_the_workers_of_another_version_or_behind_a_wrapper(tmp_path: Path) -> None:
    other, wrapper = tmp_path / "python3.9", tmp_path / "wrapper"
    for path, line in ((other, "echo 3.9"), (wrapper, f'exec {sys.executable} "$@"')):
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    with pytest.raises(ConfigError, match=r"it is Python 3\.9"):
        check_python(str(other))
    check_python(str(wrapper))
    check_python(sys.executable)


@pytest.mark.parametrize(
    ("given", "utf8"), [("C", False), ("xx_YY.UTF-8", False), ("", False), ("C.UTF-8", True)]
)
def test_a_locale_that_is_missing_reads_no_utf8(given: str, utf8: bool) -> None:
    code = "from dedup.cli.session import _locale_is_utf8; print(_locale_is_utf8())"
    # PYTHONCOERCECLOCALE: Python would replace the C locale for itself and its children.
    unset = {"LC_ALL": given, "LC_CTYPE": "", "LANG": given, "PYTHONCOERCECLOCALE": "0"}
    assert python("-c", code, env=unset).stdout == f"{utf8}\n"


def test_the_last_line_of_a_log_is_no_stack_frame(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Starting\nException in thread: no\n\tat a.B.c(B.scala)\n\t... 12 more\n\n")
    assert last_line(log) == "Exception in thread: no"
    log.write_text("at last\n")
    assert last_line(log) == "at last"
    assert last_line(tmp_path / "none") == ""
