"""A PostgreSQL server of the tests' own, which can crash and come back."""

from __future__ import annotations

import os
import resource
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.needs import do_without


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgresServer:
    """A running server on this machine, from the wheel `pgserver`; a context manager.

    It makes the folder of its files, and does not wait for the disk: no test crashes the machine.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        # It has no types.
        library: Any = import_module("pgserver")
        self._pg_ctl: Any = import_module("pgserver._commands").pg_ctl
        self._folder = folder
        self.port = free_port()
        folder.mkdir()
        made = library.get_server(folder, cleanup_mode=None)
        self._user = made.system_user
        self._control("stop", "--mode", "fast")
        own = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(folder),
            "max_connections": "60",
            "fsync": "off",
        }
        with open(folder / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in (own | settings).items())
        # Users named secret... need a password; everybody else on this machine is trusted.
        trusted = (folder / "pg_hba.conf").read_text()
        (folder / "pg_hba.conf").write_text(
            f"host all /^secret 127.0.0.1/32 scram-sha-256\n{trusted}"
        )
        self.start()

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._control("start", "--wait", "--log", str(self._folder / "log"))

    def crash(self) -> None:
        """End it as if its process were killed: the next start recovers from its log."""
        self._control("stop", "--mode", "immediate")

    def restart(self) -> None:
        """Let it end in good order, disconnecting everybody, and start it."""
        self._control("restart", "--mode", "fast", "--log", str(self._folder / "log"))

    def become_standby(self) -> None:
        """Restart it as a standby without a primary: it only reads until it is promoted."""
        self._control("stop", "--mode", "fast")
        (self._folder / "standby.signal").touch(0o666)
        self.start()

    @contextmanager
    def room_for(self, file_bytes: int) -> Iterator[None]:
        """Let no file of it grow further for sessions that begin now, as on a full disk."""
        pid = int((self._folder / "postmaster.pid").read_text().split()[0])
        self._limit(pid, file_bytes)
        try:
            yield
        finally:
            self._limit(pid, resource.RLIM_INFINITY)

    @staticmethod
    def _limit(pid: int, file_bytes: int) -> None:
        owner = os.stat(f"/proc/{pid}").st_uid
        child = os.fork()
        if not child:
            try:
                if os.getuid() != owner:
                    os.setuid(owner)  # who alone may, not even root
                _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (file_bytes, hard))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def dsn(self, database: str = "postgres", **more: Any) -> str:
        """How to connect, as libpq takes it."""
        given = {"host": "127.0.0.1", "port": self.port, "user": "postgres", "dbname": database}
        return " ".join(f"{name}={value}" for name, value in (given | more).items())

    def _control(self, *arguments: str) -> None:
        self._pg_ctl(list(arguments), pgdata=self._folder, user=self._user, timeout=60)


def missing() -> str | None:
    """Return why no server can run here, or None."""
    try:
        import pgpq  # noqa: F401
        import psycopg  # noqa: F401

        with warnings.catch_warnings():  # of folders of a desktop, which it does not need
            warnings.simplefilter("ignore")
            import pgserver  # noqa: F401
    except ImportError as error:
        return (
            f"a PostgreSQL server needs {error.name}, which is not installed (pgserver is made for "
            "Python 3.11 and 3.12: make test PYTHON=python3.12 VENV=.venv-3.12)"
        )
    return None


def need_postgres() -> None:
    """Without a server for this Python, skip the running test; if it can be installed, fail."""
    if (reason := missing()) is not None:
        if sys.version_info >= (3, 13):  # which the wheel is not made for
            pytest.skip(reason)
        do_without("SKIP_POSTGRES", reason)
