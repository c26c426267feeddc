"""What the client says of a producer reaches the user, except what happens every day."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from dedup.errors import SinkError
from dedup.sinks.kafka.client_errors import client_log
from dedup.sinks.kafka.options import kafka_options
from dedup.sinks.kafka.slots import KafkaSlot

pytestmark = pytest.mark.usefixtures("kafka_library")


def test_why_no_broker_answers_is_told_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = kafka_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "kafka.max.block.ms": "1000",
            "topic": "out",
            "staging": str(tmp_path),
        }
    )
    began_s = time.monotonic()
    with pytest.raises(SinkError, match=r"at 127\.0\.0\.1:1: .*transport failure") as raised:
        KafkaSlot(options, "query", 0).initialise()
    assert time.monotonic() - began_s < 30
    assert "start the query again once the brokers answer" in str(raised.value)
    assert any("Connection refused" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("Fatal error: Local: This instance has been fenced by a newer instance", False),
        ("Failed to add partition: Producer attempted an operation with an old epoch", False),
        ("Topic geofenced-events: Broker: Topic authorization failed", True),
        ("SSL handshake failed", True),
    ],
)
def test_ordinary_fencing_is_told_only_to_who_asks_for_all(
    caplog: pytest.LogCaptureFixture, line: str, is_told: bool
) -> None:
    client_log.critical(line)
    assert bool(caplog.records) == is_told
    with caplog.at_level(logging.DEBUG, client_log.name):
        client_log.critical(line)
    assert caplog.records[-1].getMessage() == line
