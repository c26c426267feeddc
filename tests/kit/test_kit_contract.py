"""A custom sink keeps the contract of sinks, with and without transactions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dedup.testing.custom_sinks import custom_output
from dedup.testing.sinks import SinkContract, SinkOutput
from tests.kit.line_sink import LineSink, left, read_each_key, read_each_line
from tests.kit.sqlite_sink import ParallelSqlite, SqliteSink, create, read, rows


class TestContract(SinkContract):
    @pytest.fixture(params=["driver", "tasks", "keys", "no keys"])
    def output(self, request: pytest.FixtureRequest, tmp_path: Path) -> SinkOutput:
        if request.param in ("driver", "tasks"):
            kind: Any = SqliteSink if request.param == "driver" else ParallelSqlite
            sink = kind(str(tmp_path / "orders.db"))
            create(sink.path)
            return custom_output(sink, rows, read, tmp_path)
        log, repeats = LineSink(tmp_path / "log"), request.param == "no keys"
        read_log = read_each_line if repeats else read_each_key
        made = custom_output(log, rows, read_log, tmp_path, repeats=repeats)
        return replace(made, leftovers=lambda: left(tmp_path / "checkpoint"))
