"""The Kafka sink keeps the contract of sinks, in both modes that publish a micro-batch once."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path

import pytest

from dedup.testing.sinks import SinkContract, SinkOutput
from tests.kafka.records import delete_topic, make_topic
from tests.kafka.slots import Sink


class TestContract(SinkContract):
    @pytest.fixture(params=["exactly-once", "atomic"])
    def output(self, request: pytest.FixtureRequest, broker: str, tmp_path: Path) -> SinkOutput:
        topic = make_topic(broker, f"contract-{uuid.uuid4().hex[:8]}", 3)
        markers = make_topic(broker, f"{topic}-markers", cleanup_policy="compact")

        def lose_markers() -> None:
            delete_topic(broker, markers)
            make_topic(broker, markers, cleanup_policy="compact")

        def staged() -> list[str]:
            return [str(path) for path in tmp_path.glob("**/staged/*")]

        sink, whole = partial(Sink, broker, topic, mode=request.param), request.param == "atomic"
        return SinkOutput(
            sink, tmp_path, lose_markers, one_commit=whole, compares=not whole, leftovers=staged
        )
