"""Slots of the sink on a real broker: the producer of an attempt, and requests that come late."""

from __future__ import annotations

import gc
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from dedup.errors import SinkError
from dedup.sinks.batch import Batch
from dedup.sinks.content import Content
from dedup.sinks.kafka import slots as transactions
from dedup.sinks.kafka.options import kafka_options
from dedup.sinks.kafka.preflight import check_topics
from dedup.sinks.kafka.slots import KafkaSlot, KafkaSlots
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import Fenced
from dedup.sinks.slice_store import SliceStore
from dedup.sources.kafka.client_options import client_settings
from tests.kafka.broker import Broker
from tests.kafka.proxy import Api, Harm, Proxy, commits, error_of
from tests.kafka.records import admin, count_aborted, delete_topic, make_topic, read_topic
from tests.kafka.slots import Sink, numbers


@pytest.fixture
def slot(
    broker: str, proxy: Proxy, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[KafkaSlot]:
    """A slot that has published micro-batch 0 and is warm, its sink behind the proxy."""
    topic = make_topic(broker, re.sub(r"\W", "-", request.node.name)[-60:])
    given = {"kafka.bootstrap.servers": proxy.address, "kafka.socket.timeout.ms": "1500"}
    check_topics(client_settings(given), [topic], f"{topic}-markers")
    options = kafka_options(given | {"topic": topic, "checkpointLocation": str(tmp_path)})
    made = KafkaSlot(options, "q", 0)
    made.acquire()
    assert publish(made, 0) == made.last
    yield made
    made.drop()


def marker(slot: KafkaSlot, batch_id: int) -> Marker:
    batch = Batch(query_id="q", sink=slot._options.name, run_id="r", batch_id=batch_id)
    return batch.marker(slot.number, Content(1))


def send(slot: KafkaSlot, value: bytes) -> None:
    columns = {"key": pa.array([b"k"], pa.binary()), "value": pa.array([value], pa.binary())}
    slot.send(pa.RecordBatch.from_pydict(columns))
    slot.flush()


def publish(slot: KafkaSlot, batch_id: int) -> Marker:
    slot.begin()
    send(slot, b"%d" % batch_id)
    slot.pre_commit(marker(slot, batch_id))
    slot.commit()
    return marker(slot, batch_id)


def values(broker: str, slot: KafkaSlot) -> list[bytes | None]:
    return [record.value for record in read_topic(broker, slot._options.topic or "")]


def test_an_attempt_never_publishes_with_the_producer_of_its_successor(slot: KafkaSlot) -> None:
    """An abandoned start may still run in the process of the next start."""
    given_up, successor = KafkaSlot(slot._options, "q", 0), KafkaSlot(slot._options, "q", 0)
    given_up.acquire()
    successor.acquire()
    for _ in range(2):
        with pytest.raises(Fenced):
            publish(given_up, 1)
    last = publish(successor, 1)
    assert KafkaSlot(slot._options, "q", 0).last == last
    assert KafkaSlot(slot._options, "q", 0).acquire() == last


def test_the_driver_owns_all_slots_even_if_a_process_keeps_few(
    slot: KafkaSlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "KEPT", 2)
    sink, other = (
        KafkaSlots(slot._options, "q", SliceStore(str(tmp_path), "q", "kafka")) for _ in range(2)
    )
    slots = [BATCH_SLOT, *range(5)]
    sink.acquire(slots)
    assert len(transactions._held) == 2
    published = {number: publish(sink.slot(number), 1) for number in slots}
    assert other.acquire(slots) == published


def test_a_missing_markers_topic_is_refused(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new topic would not hold the micro-batches that the slots have published."""
    topic = make_topic(broker, "gone", 1)
    markers = make_topic(broker, f"{topic}-markers", 1, cleanup_policy="compact")
    sink = Sink(broker, topic, tmp_path)
    sink.batch("run1", 0, [0])
    delete_topic(broker, markers)
    sink.forget()
    monkeypatch.setattr("dedup.sinks.kafka.markers._NEW_TOPIC_S", 1)
    with pytest.raises(
        SinkError, match="The topic of the markers, 'gone-markers', is gone"
    ) as gone:
        sink.batch("run2", 1, [1])
    assert gone.value.remedy == "sink-markers"
    assert sink.numbers() == Counter([0])


@pytest.mark.parametrize("count", [1, 10_000], ids=["one-record", "many-records"])
def test_an_attempt_whose_slot_was_taken_acquires_it_again(
    broker: str, tmp_path: Path, count: int
) -> None:
    """Another worker ran the task in between. With many records, sending them detects it."""
    topic = make_topic(broker, f"taken-{count}", 3)
    make_topic(broker, f"{topic}-markers", 1, cleanup_policy="compact")
    one = Sink(broker, topic, tmp_path)
    one.batch("run", 0, [-1])
    one.task("run", 1, 0, [-2])
    # The same broker by another name: its own producers, as in another process.
    other = Sink(broker.replace("127.0.0.1", "localhost"), topic, tmp_path)
    other.task("run", 2, 0, [-3])
    one.task_at_once("run", 3, 0, count)
    one.forget()
    assert numbers(broker, topic) == Counter(range(-3, count))


def test_a_late_abort_cannot_abort_half_of_the_next_slice(
    slot: KafkaSlot, broker: str, proxy: Proxy
) -> None:
    slot.begin()
    send(slot, b"given up")
    fault = proxy.arm(Api.END_TXN, Harm.HOLD, where=lambda frame: not commits(frame))
    slot.abort()
    fault.wait()
    assert slot.last is None, "an abort that may have been repeated leaves no warm slot"
    assert slot.acquire() == marker(slot, 0)
    slot.begin()
    send(slot, b"1")
    assert error_of(fault.release()) == KafkaError.INVALID_PRODUCER_EPOCH
    slot.pre_commit(marker(slot, 1))
    slot.commit()
    assert values(broker, slot) == [b"0", b"1"]
    assert count_aborted(broker, slot._options.topic or "") == 1


def test_a_slot_whose_commit_succeeded_at_once_keeps_its_producer(
    slot: KafkaSlot, proxy: Proxy
) -> None:
    before = proxy.requests.get(Api.INIT_PRODUCER_ID, 0)
    publish(slot, 1)
    publish(slot, 2)
    assert slot.last == marker(slot, 2)
    assert proxy.requests.get(Api.INIT_PRODUCER_ID, 0) == before


@pytest.mark.slow
def test_brokers_that_create_topics_automatically_create_no_markers_topic(
    broker: str, tmp_path: Path
) -> None:
    """Kafka would delete records from it. The fixture `broker` provides only its jars."""
    with Broker(tmp_path, {"auto.create.topics.enable": "true"}) as eager:
        given = {"kafka.bootstrap.servers": eager.address}
        options = kafka_options(given | {"topic": "out", "checkpointLocation": str(tmp_path)})
        slot = KafkaSlot(options, "query", 0)
        with pytest.raises(SinkError, match="The topic of the markers, 'out-markers', is gone"):
            slot.acquire()
        listed = admin(eager.address).list_topics(timeout=10).topics
        assert set(listed) == {"__transaction_state"}
        slot.drop()


def test_a_dropped_producer_leaves_no_threads(slot: KafkaSlot) -> None:
    """They end at once, not at the next garbage collection."""
    before = len(os.listdir("/proc/self/task"))
    gc.disable()
    try:
        for _ in range(3):
            slot.initialise()
        slot.drop()
    finally:
        gc.enable()
    until = time.monotonic() + 10
    while (left := len(os.listdir("/proc/self/task"))) >= before:
        assert time.monotonic() < until, f"{left} threads are left, {before} were there with it"
        time.sleep(0.05)
