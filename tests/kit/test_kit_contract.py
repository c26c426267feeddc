"""A custom sink keeps the contract of sinks, on both levels of transactions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dedup.testing.sinks import SinkContract, SinkOutput
from tests.kit.sqlite_sink import NumbersSink, ParallelSqlite, SqliteSink


class TestContract(SinkContract):
    @pytest.fixture(params=[SqliteSink, ParallelSqlite], ids=["driver", "tasks"])
    def output(self, request: pytest.FixtureRequest, tmp_path: Path) -> SinkOutput:
        sink = request.param(str(tmp_path / "orders.db"))

        def lose_markers() -> None:
            NumbersSink(sink, tmp_path / "checkpoint").run("DELETE FROM markers")

        return SinkOutput(
            partial(NumbersSink, sink), tmp_path, lose_markers,
            one_commit=not sink.parallel, compares=sink.parallel,
        )  # fmt: skip
