"""One server for all the tests of a process, and a database for each of them."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mysql.server import Server, need_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server; who lets it crash starts it again."""
    program = need_server()
    with (
        tempfile.TemporaryDirectory(prefix="dedup-mysql-") as folder,
        Server(program, Path(folder, "data")) as found,
    ):
        yield found


@pytest.fixture
def where(server: Server) -> Iterator[dict[str, Any]]:
    """How to connect to a database of the test's own, as arguments of ``connect``."""
    from dedup.sinks.kit.slots import forget_slots
    from tests.mysql.tables import run
    from tests.support.connections import forget_connections

    name = f"t{uuid.uuid4().hex[:12]}"
    run(server.where(), f"CREATE DATABASE {name}")
    yield server.where(name)
    forget_connections()
    forget_slots()
