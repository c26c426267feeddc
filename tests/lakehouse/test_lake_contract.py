"""The sinks into tables keep the contract of sinks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.lakehouse.lakes import Lake, Sink
from tests.support.sink_contract import Output, SinkContract


class TestContract(SinkContract):
    @pytest.fixture
    def output(self, lake: Lake, tmp_path: Path) -> Output:
        return Output(partial(Sink, lake), tmp_path, lake.lose_markers, one_commit=True)
