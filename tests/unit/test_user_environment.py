"""A user without a name or a home folder, another Python, a missing locale, no temporary folder."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.cli.failures import FAILED, TEMPORARY, explain
from dedup.cli.session import _lacking, _let_java_use, last_line
from dedup.errors import ConfigError
from dedup.spark.driver.checks import check_python
from tests.support.namespaces import read_only
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


def test_a_user_without_a_name_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("id\na\n")
    places = (tmp_path / "in", "--output", tmp_path / "out")
    told = nameless("-m", "dedup.cli.main", "run", *places, "--id", "id", "--horizon", "1 day")
    assert told.startswith("error: The user with ID 54321 has no name on this machine")
    assert len(told.splitlines()) == 1


def test_a_missing_home_folder_is_reported_with_the_remedy() -> None:
    code = "from dedup.sources.kafka import kafka_jars; kafka_jars()"
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
def test_a_home_folder_of_an_unknown_user_is_rejected(command: list[str]) -> None:
    told = " ".join(CliRunner().invoke(app, command).output.split())
    assert told.startswith("error: ~nobody-here/")
    assert told.endswith(
        "user nobody-here has no home folder. Set HOME, or give a path without '~'."
    )


def test_a_worker_python_that_lacks_the_packages_is_rejected(
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


def test_a_worker_python_of_another_version_is_rejected_and_a_wrapper_accepted(
    tmp_path: Path,
) -> None:
    other, wrapper = tmp_path / "python3.9", tmp_path / "wrapper"
    for path, line in ((other, "echo 3.9"), (wrapper, f'exec {sys.executable} "$@"')):
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    with pytest.raises(ConfigError, match=r"it is Python 3\.9"):
        check_python(str(other))
    check_python(str(wrapper))
    check_python(sys.executable)


#: Python would replace the C locale for itself and its children.
_LOCALE = {"LC_ALL": "", "LC_CTYPE": "", "LANG": "", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("environment", "is_utf8"),
    [
        (_LOCALE, False),
        (_LOCALE | {"LC_ALL": "C"}, False),
        (_LOCALE | {"LC_ALL": "xx_YY.UTF-8"}, False),
        (_LOCALE | {"LC_ALL": "C.UTF-8"}, True),
        ({"LC_ALL": "", "LANG": "xx_YY.UTF-8"}, False),
        ({"LC_ALL": "", "LANG": "C.UTF-8", "LC_TIME": "xx_YY.UTF-8"}, False),
    ],
)
def test_a_missing_locale_does_not_count_as_utf8(
    environment: dict[str, str], is_utf8: bool
) -> None:
    """Java takes the C locale if any part of its locale is missing. Python does not."""
    code = "from dedup.cli.session import _locale_is_utf8; print(_locale_is_utf8())"
    assert python("-c", code, env=environment).stdout == f"{is_utf8}\n"


def test_the_reported_last_line_of_a_log_is_not_a_stack_frame(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Starting\nException in thread: no\n\tat a.B.c(B.scala)\n\t... 12 more\n\n")
    assert last_line(log) == "Exception in thread: no"
    log.write_text("at last\nPicked up JAVA_TOOL_OPTIONS: -Djava.io.tmpdir=/x\n\n")
    assert last_line(log) == "at last"
    assert last_line(tmp_path / "none") == ""


# --- temporary files


def java_keeps_temporary_files_in(**env: str) -> str:
    command = ["java", "-XshowSettings:properties", "-version"]
    told = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=True)
    found = re.search(r"^ *java\.io\.tmpdir = (.*)$", told.stderr, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("folder", ["/var/tmp", "/a b/c", """/it's "here" $HOME\\n"""])
def test_java_keeps_temporary_files_where_python_does(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dother=1 -Xshare:auto")
    _let_java_use(folder)
    _let_java_use("/second/session")
    assert java_keeps_temporary_files_in() == folder
    assert os.environ["JAVA_TOOL_OPTIONS"].endswith(" -Dother=1 -Xshare:auto")


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
def test_a_temporary_folder_that_the_user_gave_java_is_kept(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    monkeypatch.setenv(variable, "-Djava.io.tmpdir=/given")
    _let_java_use("/var/tmp")
    assert java_keeps_temporary_files_in() == "/given"


def test_java_gets_no_option_if_it_uses_pythons_temporary_folder_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    _let_java_use("/tmp")
    assert "JAVA_TOOL_OPTIONS" not in os.environ


def test_a_log_shows_that_java_cannot_write_temporary_files(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # `prepare` lets Java print more before it ends.
    log.write_text(
        'Exception in thread "main" java.io.IOException: Failed to create a temp directory (under '
        "/no where) after 10 attempts!\n\tat a.B.c(B.scala)\n[1.2s][warning][cds] Skipping X\n"
    )
    told = _lacking(log) or ""
    assert told.startswith("Java cannot write temporary files to /no where. Let TMPDIR name")
    log.write_text("Exception: something else\n")
    assert _lacking(log) is None


def test_a_file_in_the_place_of_a_temporary_folder_does_not_count_as_full(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tried = [str(tmp_path / "file"), "/nowhere"]
    text = f"No usable temporary directory found in {tried}"
    assert explain(FileNotFoundError(errno.ENOENT, text)).exit_code == FAILED
    tried.append(str(tmp_path))
    text = f"No usable temporary directory found in {tried}"
    assert explain(FileNotFoundError(errno.ENOENT, text)).exit_code == TEMPORARY


COMMANDS = {
    "run": ["in", "--id", "id", "--horizon", "1 day", "--output", "out", "--dry-run"],
    "demo": [],
    "prepare": [],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_temporary_folder_a_command_fails_permanently(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("id\na\n")
    env = {"TMPDIR": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "w")}
    done = read_only(tmp_path, "dedup", command, *COMMANDS[command], env=env)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: No usable temporary directory found in ['/nowhere', '/tmp', ")
    assert last.endswith("Let TMPDIR name a folder that exists and can be written.")


def test_a_full_temporary_folder_may_have_room_later(tmp_path: Path) -> None:
    full = f"mount -t tmpfs -o size=4k tmpfs {tmp_path}/w; head -c 9999 /dev/zero >{tmp_path}/w/x"
    env = {"TMPDIR": str(tmp_path / "w")}
    done = read_only(tmp_path, "dedup", "demo", before=full, env=env)
    assert done.returncode == 75
    assert f"{tmp_path}/w is full: free some space.\n" in done.stderr
    assert done.stderr.endswith("dedup remedies local-disk\n")


def test_prepare_names_the_folder_that_it_cannot_write(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path / "w"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = read_only(tmp_path, "dedup", "prepare", env=env)
    assert done.returncode == 1
    assert done.stderr.endswith(f"error: Read-only file system ({tmp_path}/cache)\n")


def test_windows_is_refused_at_import_with_a_way_out() -> None:
    done = python("-c", "import sys; sys.platform = 'win32'; import dedup")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: rolling-dedup does not run on Windows")
    assert last.endswith("in WSL: the Windows Subsystem for Linux.")
