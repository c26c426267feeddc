"""The PostgreSQL sink keeps the contract of sinks, and passes `check_sink`, in each mode."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dedup.testing import check_sink
from dedup.testing.sinks import SinkContract, SinkOutput
from tests.postgres.tables import Sink, run, updates
from tests.support.connections import forget_connections
from tests.support.needs import long

MODES = [{}, {"mode": "atomic"}, {"mode": "upsert", "key": "n"}]


class TestContract(SinkContract):
    @pytest.fixture(
        params=[*MODES, long({"mode": "atomic", "key": "n"})],
        ids=lambda options: "-".join(options.values()) or "append",
    )
    def output(self, request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> SinkOutput:
        options = request.param

        def lose_markers() -> None:
            run(dsn, "TRUNCATE dedup_markers")

        sink, whole = partial(Sink, dsn, **options), options.get("mode") == "atomic"
        return SinkOutput(
            sink, tmp_path, lose_markers, one_commit=whole, compares=not whole,
            leftovers=lambda: [path.name for path in tmp_path.rglob("*.arrow")],
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(mode.values()) or "append")
def test_the_sink_passes_check_sink(database: str, mode: dict[str, str], tmp_path: Path) -> None:
    numbers = count()

    def new_sink() -> Any:
        forget_connections()  # into the output before
        name = f"check{next(numbers)}"
        run(database, f"CREATE SCHEMA {name}")
        dsn = psycopg.conninfo.make_conninfo(database, options=f"-csearch_path={name}")
        return Sink(dsn, tmp_path / name, **mode).work.custom

    def read(sink: Any) -> list[int]:
        return [int(text) for (text,) in run(sink.options.dsn, "SELECT text FROM numbers")]

    check_sink(
        new_sink, rows=updates, read=read, connection_error=psycopg.OperationalError,
        readers_see="newest" if "key" in mode else "once",
    )  # fmt: skip
