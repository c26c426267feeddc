"""`dedup sink inspect` shows what a real sink has published, and what blocks its readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from dedup import tools
from dedup.errors import ConfigError
from dedup.sinks.batch import Batch
from dedup.sinks.content import Content
from dedup.sinks.inspection import SinkState
from dedup.sinks.kafka.inspection import KafkaInspection
from dedup.sinks.kafka.options import KafkaOptions
from dedup.sinks.kafka.slots import KafkaSlot
from tests.kafka.broker import Broker
from tests.kafka.records import SOON, make_topic
from tests.kafka.slots import ready_options
from tests.support.processes import dedup


@pytest.fixture(scope="module")
def options(broker: str, tmp_path_factory: pytest.TempPathFactory) -> KafkaOptions:
    return ready_options(broker, "inspected", 2, tmp_path_factory.mktemp("checkpoint"))


def inspected(broker: str, topic: str = "inspected") -> KafkaInspection:
    given = {"kafka.bootstrap.servers": broker, "topic": topic}
    found = tools.inspect_output("dedup_kafka", given)
    assert isinstance(found, KafkaInspection)
    return found


def of_query(found: KafkaInspection, query_id: str) -> SinkState:
    (sink,) = (sink for sink in found.sinks if sink.query_id == query_id)
    return sink


def pre_commit(options: KafkaOptions, query_id: str, slot: int, batch_id: int) -> KafkaSlot:
    """Bring a marker of 3 rows to the broker, uncommitted."""
    batch = Batch(
        query_id=query_id, sink="kafka", run_id="run", batch_id=batch_id, writer="host:1",
        time_ms=1_700_000_000_000,
    )  # fmt: skip
    owner = KafkaSlot(options, query_id, slot)
    owner.acquire()
    owner.begin()
    owner.pre_commit(batch.marker(slot, Content(3)))
    return owner


def test_inspect_shows_published_attempted_and_blocked_micro_batches(
    broker: str, options: KafkaOptions
) -> None:
    for slot, batch_id in ((0, 1), (1, 1), (0, 2)):
        pre_commit(options, "query", slot, batch_id).commit()
    pre_commit(options, "other", 0, 9).commit()
    found = inspected(broker)
    sink = of_query(found, "query")
    assert (sink.query_id, sink.sink, sink.batch_id) == ("query", "kafka", 2)
    assert [(s.marker.slot, s.marker.batch_id, s.marker.rows) for s in sink.slots] == [
        (0, 2, 3), (1, 1, 3)
    ]  # fmt: skip
    assert found.status == "ok"
    assert found.max_timeout_ms == 900_000
    assert len(found.sinks) == 2

    pre_commit(options, "query", 1, 2).abort()
    sink = of_query(inspected(broker), "query")
    assert (sink.slots[1].attempted, sink.slots[1].open) == (2, False)

    waiting = pre_commit(options, "query", 1, 3)
    try:
        held = inspected(broker)
        slot = of_query(held, "query").slots[1]
        assert (slot.attempted, slot.open) == (3, True)
        (place,) = held.held_back
        assert (place.topic, place.end - place.readable) == ("inspected-markers", 1)
        assert place.since_ms is not None
    finally:
        waiting.abort()


def test_an_open_transaction_of_another_producer_is_reported(
    broker: str, options: KafkaOptions
) -> None:
    stranger = Producer({"bootstrap.servers": broker, "transactional.id": "stranger"} | SOON)
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce("inspected", value=b"1", partition=1)
    stranger.flush(30)
    (held,) = inspected(broker).held_back
    assert (held.topic, held.partition, held.readable, held.end) == ("inspected", 1, 0, 1)
    stranger.abort_transaction(30)
    assert inspected(broker).held_back == ()


def test_the_command_inspects_a_sink_with_a_users_login(
    broker_process: Broker, options: KafkaOptions, tmp_path: Path
) -> None:
    pre_commit(options, "shown", 0, 4).commit()
    login = tmp_path / "client.properties"
    login.write_text(
        f"kafka.bootstrap.servers={broker_process.sasl_address}\n"
        "kafka.security.protocol=SASL_PLAINTEXT\nkafka.sasl.mechanism=PLAIN\n"
        "kafka.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="alice-secret";\n'
    )
    command = ("sink", "inspect", "dedup_kafka", "topic=inspected", "--properties", login)
    done = dedup(*command, "--json")
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    (shown,) = (sink for sink in body["sinks"] if sink["query_id"] == "shown")
    assert shown["slots"][0]["rows"] == 3
    people = dedup(*command)
    assert "query shown, sink kafka" in people.stdout
    login.write_text(login.read_text().replace("alice-secret", "wr0ng"))
    refused = dedup(*command)
    assert refused.returncode == 2
    assert "Authentication failed" in refused.stderr
    assert "wr0ng" not in refused.stderr


def test_a_topic_without_markers_is_rejected(broker: str) -> None:
    make_topic(broker, "unmarked")
    with pytest.raises(ConfigError, match="Topic 'unmarked-markers' does not exist"):
        inspected(broker, "unmarked")
