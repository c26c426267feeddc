"""The PostgreSQL sink keeps the contract of sinks, in each mode."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dedup.testing.sinks import SinkContract, SinkOutput
from tests.postgres.tables import Sink, run
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
