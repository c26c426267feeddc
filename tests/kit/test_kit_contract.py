"""A custom sink keeps the contract of sinks, on both levels of transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dedup.testing.custom_sinks import custom_output
from dedup.testing.sinks import SinkContract, SinkOutput
from tests.kit.sqlite_sink import ParallelSqlite, SqliteSink, create, read, rows


class TestContract(SinkContract):
    @pytest.fixture(params=[SqliteSink, ParallelSqlite], ids=["driver", "tasks"])
    def output(self, request: pytest.FixtureRequest, tmp_path: Path) -> SinkOutput:
        sink = request.param(str(tmp_path / "orders.db"))
        create(sink.path)
        return custom_output(sink, rows, read, tmp_path)
