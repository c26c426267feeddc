"""Servers for tests: fetched once, into a folder of the user's own, and checked by hash."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import downloads
from tests.support.downloads import check_files, user_cache

ROOT = Path(__file__).resolve().parents[2]
#: Fetches, if it is the first one, as soon as the others wait for it.
_PROGRAM = """
import os, sys
from pathlib import Path
from tests.support.downloads import fetched_once
from tests.support.waiting import wait_until

calls, fails = Path(sys.argv[1]), sys.argv[2]

def holds(pid):
    fds = Path("/proc", pid, "fd")
    return any(str(fd.readlink()).endswith("/server.lock") for fd in fds.iterdir())

def fetch(folder):
    (calls / f"{os.getpid()}.fetched").touch()
    assert wait_until(lambda: len(list(calls.glob("*.here"))) == 3, 60)
    assert wait_until(lambda: all(holds(path.stem) for path in calls.glob("*.here")), 60)
    if fails:
        raise OSError("no network")
    folder.mkdir()
    (folder / "jar").write_text("whole")

(calls / f"{os.getpid()}.here").touch()
try:
    print((fetched_once("server", fetch) / "jar").read_text())
except OSError as error:
    print(error)
(calls / f"{os.getpid()}.here").rename(calls / f"{os.getpid()}.done")
"""


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "rolling-dedup-tests"


@pytest.mark.parametrize(("fails", "told"), [("", "whole"), ("1", "no network")])
def test_processes_at_the_same_time_fetch_once(tmp_path: Path, fails: str, told: str) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    command = [sys.executable, "-c", _PROGRAM, str(calls), fails]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=120)[0].decode() for process in running] == [
        f"{told}\n"
    ] * 3
    assert len(list(calls.glob("*.fetched"))) == 1


def test_a_folder_of_another_user_is_refused(
    caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_cache()
    with monkeypatch.context() as patch:
        patch.setattr(downloads.os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(PermissionError, match="another user owns"):
            user_cache()
    caches.rename(tmp_path / "elsewhere")
    caches.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is a link"):
        user_cache()


def test_a_file_must_have_its_pinned_hash(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "a-1.jar"
    jar.write_bytes(b"jar")
    digest = hashlib.sha256(b"jar").hexdigest()
    check_files([jar], {digest: "group_a-1.jar"}, "page")
    with pytest.raises(OSError, match=rf"{digest}, and page says 00\. If it was damaged"):
        check_files([jar], {"00": "a-1.jar"}, "page")
    for pins in ({}, {digest: "group_b-1.jar"}):
        with pytest.raises(OSError, match=f"{digest}, and page has no line for it"):
            check_files([jar], pins, "page")
