"""One server of each kind for all the tests of a process, and a database for each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedup.sinks.kit.slots import forget_slots
from tests.databases.database import Database, DatabaseServer, Sink
from tests.databases.mysql import Mysql
from tests.databases.mysql_server import MysqlServer
from tests.databases.postgres import Postgres
from tests.databases.postgres_server import PostgresServer
from tests.databases.servers import KINDS, running_server
from tests.support.connections import forget_connections
from tests.support.proxy import Proxy


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    with running_server("postgres") as found:
        yield found


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[DatabaseServer]:
    with running_server("mysql") as found:
        yield found


@pytest.fixture(params=list(KINDS))
def server(request: pytest.FixtureRequest) -> Any:
    """The server of `db`, of each kind in turn."""
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def db(server: Any, tmp_path: Path) -> Iterator[Database]:
    """A database of the test's own, of each kind in turn."""
    name = "postgres" if isinstance(server, PostgresServer) else "mysql"
    yield from _own_database(KINDS[name], server, tmp_path)


@pytest.fixture
def postgres(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Postgres]:
    yield from _own_database(Postgres, postgres_server, tmp_path)


@pytest.fixture
def mysql(mysql_server: MysqlServer, tmp_path: Path) -> Iterator[Mysql]:
    yield from _own_database(Mysql, mysql_server, tmp_path)


def _own_database(kind: Any, server: Any, folder: Path) -> Iterator[Any]:
    yield kind.create(server, f"t{uuid.uuid4().hex[:12]}", folder)
    forget_connections()
    forget_slots()


@pytest.fixture
def proxy(server: DatabaseServer) -> Iterator[Proxy]:
    with Proxy(server.port) as made:
        yield made
    forget_connections()


@pytest.fixture
def sink(db: Database) -> Sink:
    """With one micro-batch that the driver has published."""
    made = Sink(db)
    made.batch("run1", 0, [0], [1])
    return made
