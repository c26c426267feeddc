"""One server for all the tests of a process, and a schema for each of them."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres.server import Server, need_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server; who lets it crash starts it again."""
    need_server()
    # Not below pytest's own folder, which is closed to the user that a server of root's runs as.
    with tempfile.TemporaryDirectory(prefix="dedup-postgres-") as folder:
        Path(folder).chmod(0o755)
        with Server(Path(folder, "data")) as found:
            yield found


@pytest.fixture
def dsn(server: Server) -> Iterator[str]:
    """A superuser of the test's own, whose tables are in a schema of the same name."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield from _made(
        server, f"CREATE ROLE {name} SUPERUSER LOGIN; CREATE SCHEMA AUTHORIZATION {name}",
        server.dsn(user=name),
    )  # fmt: skip


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """A database of the test's own: for tests of schemas, and of roles without one."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield from _made(server, f"CREATE DATABASE {name}", server.dsn(name))


def _made(server: Server, statements: str, dsn: str) -> Iterator[str]:
    import psycopg

    from dedup.sinks.kit.slots import forget_slots
    from tests.support.connections import forget_connections

    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(statements.encode())
    yield dsn
    forget_connections()
    forget_slots()
