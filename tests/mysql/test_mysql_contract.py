"""The MySQL sink keeps the contract of sinks, and passes `check_sink`, in each mode."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
import pytest

from dedup.testing import check_sink
from dedup.testing.sinks import SinkContract, SinkOutput
from tests.mysql.server import Server
from tests.mysql.tables import MODES, Sink, Where, run, updates
from tests.support.connections import forget_connections
from tests.support.needs import some_long


class TestContract(SinkContract):
    @pytest.fixture(
        params=some_long(MODES, *MODES[:2]),
        ids=lambda options: "-".join(options.values()) or "append",
    )
    def output(self, request: pytest.FixtureRequest, where: Where, tmp_path: Path) -> SinkOutput:
        options = request.param
        whole = options.get("mode") == "atomic"
        return SinkOutput(
            partial(Sink, where, **options), tmp_path,
            lambda: run(where, "TRUNCATE dedup_markers"),
            one_commit=whole, compares=not whole,
        )  # fmt: skip


class Lost(pymysql.OperationalError):
    """As when the server has closed the connection."""

    def __init__(self, text: str) -> None:
        super().__init__(2013, text)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(mode.values()) or "append")
def test_the_sink_passes_check_sink(server: Server, mode: dict[str, str], tmp_path: Path) -> None:
    numbers = count()

    def new_sink() -> Any:
        forget_connections()  # into the output before
        name = "-".join(["check", *mode.values(), str(next(numbers))])
        run(server.where(), f"CREATE DATABASE `{name}`")
        return Sink(server.where(name), tmp_path / name, **mode).work.custom

    def read(sink: Any) -> list[int]:
        return [
            int(text) for (text,) in run(dict(sink.options.connect), "SELECT text FROM numbers")
        ]

    check_sink(
        new_sink, rows=updates, read=read, connection_error=Lost,
        readers_see="newest" if "key" in mode else "once",
    )  # fmt: skip
