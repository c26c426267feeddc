"""The sinks into databases keep the contract of sinks, and pass `check_sink`, in each mode."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from dedup.testing import check_sink
from dedup.testing.sinks import SinkContract, SinkOutput
from tests.databases.database import MODES, Database, Sink, batch_of, mode_name
from tests.support.connections import forget_connections
from tests.support.needs import long


class TestContract(SinkContract):
    @pytest.fixture(params=[*MODES[:3], long(MODES[3])], ids=mode_name)
    def output(self, request: pytest.FixtureRequest, db: Database, tmp_path: Path) -> SinkOutput:
        whole = request.param.get("mode") == "atomic"

        def start(checkpoint: Path, **options: str) -> Sink:
            return Sink(db, checkpoint=checkpoint.name, **request.param, **options)

        return SinkOutput(
            start, tmp_path, lambda: db.run("TRUNCATE dedup_markers"),
            one_commit=whole, compares=not whole,
            leftovers=lambda: [path.name for path in tmp_path.rglob("*.arrow")],
        )  # fmt: skip


def updates(numbers: list[int]) -> Any:
    """Rows whose text is the number. Numbers n and n + 50 have the same key."""
    return batch_of((n % 50 for n in numbers), list(map(str, numbers)))


class Lost(pymysql.OperationalError):
    """As when the server has closed the connection."""

    def __init__(self, text: str) -> None:
        super().__init__(2013, text)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", MODES, ids=mode_name)
def test_the_sink_passes_check_sink(db: Database, mode: dict[str, str]) -> None:
    numbers = count()

    def new_sink() -> Any:
        forget_connections()  # into the output before
        name = f"check{next(numbers)}"
        return Sink(db.elsewhere(name), checkpoint=name, **mode).work.custom

    def read(sink: Any) -> list[int]:
        return [int(text) for (text,) in type(db).of(sink.options).run("SELECT text FROM numbers")]

    check_sink(
        new_sink, rows=updates, read=read,
        connection_error=db.own(postgres=psycopg.OperationalError, mysql=Lost),
        readers_see="newest" if "key" in mode else "once",
    )  # fmt: skip
