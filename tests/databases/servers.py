"""The kinds of databases by name, and a running server of each."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.databases.database import Database, DatabaseServer
from tests.databases.mysql import Mysql
from tests.databases.mysql_server import MysqlServer, need_mysql
from tests.databases.postgres import Postgres
from tests.databases.postgres_server import PostgresServer, need_postgres

KINDS: dict[str, type[Database]] = {"postgres": Postgres, "mysql": Mysql}


@contextmanager
def running_server(name: str) -> Iterator[DatabaseServer]:
    """Yield a server; who lets it crash starts it again.

    Without a server for this machine, skip the running test or fail.
    """
    # Not below pytest's own folder, which is closed to the user that a server of root's runs as.
    with tempfile.TemporaryDirectory(prefix=f"dedup-{name}-") as folder:
        Path(folder).chmod(0o755)
        data = Path(folder, "data")
        if name == "postgres":
            need_postgres()
            with PostgresServer(data) as postgres:
                yield postgres
        else:
            with MysqlServer(need_mysql(), data) as mysql:
                yield mysql
