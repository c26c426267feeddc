"""One server for all the tests of a process, and an empty database for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis.server import Server, need_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server; who lets it crash starts it again."""
    need_server()
    with Server(Path(tmp_path_factory.mktemp("redis"), "data")) as found:
        yield found


@pytest.fixture
def redis_server(server: Server) -> Server:
    """The server without any key."""
    with server.client() as client:
        client.flushall()
    return server
