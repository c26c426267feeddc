"""Slots of the sink on a real broker: which producer an attempt continues with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dedup.errors import SinkError
from dedup.sinks.content import Content
from dedup.sinks.kafka import slots as transactions
from dedup.sinks.kafka.options import KafkaOptions
from dedup.sinks.kafka.slots import KafkaSink, KafkaSlot
from dedup.sinks.kafka.staging import KafkaStaging
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import Batch, Fenced
from tests.kafka.records import delete_topic, make_topic
from tests.kafka.slots import Sink, numbers, ready_options


@pytest.fixture(scope="module")
def options(broker: str, tmp_path_factory: pytest.TempPathFactory) -> KafkaOptions:
    return ready_options(broker, "slots", 1, tmp_path_factory.mktemp("checkpoint"))


def publish(slot: KafkaSlot, run_id: str) -> Marker:
    """Commit a marker alone."""
    batch = Batch(query_id="q", sink=slot._options.name, run_id=run_id, batch_id=0)
    marker = batch.marker(slot.number, Content(1))
    slot.begin()
    slot.pre_commit(marker)
    slot.commit()
    return marker


def test_an_attempt_never_goes_on_with_the_producer_of_its_successor(options: KafkaOptions) -> None:
    """A start that was given up may still run in the process of the start after it."""
    given_up, successor = KafkaSlot(options, "q", 0), KafkaSlot(options, "q", 0)
    given_up.acquire()
    successor.acquire()
    with pytest.raises(Fenced):
        publish(given_up, "given up")
    with pytest.raises(Fenced):
        publish(given_up, "given up")
    marker = publish(successor, "successor")
    assert KafkaSlot(options, "q", 0).last == marker
    assert KafkaSlot(options, "q", 0).acquire() == marker


def test_the_driver_holds_all_slots_however_few_a_process_keeps(
    options: KafkaOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "KEPT", 2)
    sink = KafkaSink(options, "q", KafkaStaging(str(tmp_path), "q"))
    slots = [BATCH_SLOT, *range(5)]
    sink.acquire(slots)
    assert len(transactions._held) == 2
    published = {number: publish(sink.slot(number), "many") for number in slots}
    assert KafkaSink(options, "q", KafkaStaging(str(tmp_path), "q")).acquire(slots) == published


def test_a_topic_of_markers_that_is_gone_is_refused(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not created again: the slots could not tell what they have published."""
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
def test_a_warm_attempt_whose_slot_was_taken_goes_on(
    broker: str, tmp_path: Path, count: int
) -> None:
    """Another worker ran the task in between; with many records it shows while they are sent."""
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
