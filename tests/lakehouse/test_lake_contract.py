"""The sinks into tables keep the contract of sinks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dedup.testing.sinks import SinkContract, SinkOutput
from tests.lakehouse.lakes import Lake, Sink


class TestContract(SinkContract):
    @pytest.fixture
    def output(self, lake: Lake, tmp_path: Path) -> SinkOutput:
        return SinkOutput(partial(Sink, lake), tmp_path, lake.lose_markers, one_commit=True)
