"""The MySQL sink keeps the contract of sinks, in each mode."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dedup.testing.sinks import SinkContract, SinkOutput
from tests.mysql.tables import MODES, Sink, Where, run
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
