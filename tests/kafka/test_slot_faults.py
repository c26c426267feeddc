"""A slot of the sink whose requests are lost, repeated or late: nothing is torn, nothing twice."""

from __future__ import annotations

import gc
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dedup.errors import SinkError
from dedup.sinks.content import Content
from dedup.sinks.kafka.options import KafkaOptions, kafka_options
from dedup.sinks.kafka.preflight import check_sink
from dedup.sinks.kafka.slots import KafkaSlot
from dedup.sinks.marker import Marker
from dedup.sinks.protocol import Aborted, Batch, Indefinite
from dedup.sources.kafka.client_options import client_settings
from tests.kafka.broker import Broker
from tests.kafka.proxy import Api, Harm, Proxy, commits, of
from tests.kafka.records import admin, count_aborted, end_offsets, make_topic, read_topic

_INVALID_PRODUCER_EPOCH = 47


@pytest.fixture
def slot(
    broker: str, proxy: Proxy, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[KafkaSlot]:
    """A slot that has published micro-batch 0 and is warm, its sink behind the proxy."""
    topic = make_topic(broker, re.sub(r"\W", "-", request.node.name)[-60:])
    given = {"kafka.bootstrap.servers": proxy.address, "kafka.socket.timeout.ms": "1500"}
    check_sink(client_settings(given), [topic], f"{topic}-markers")
    options = kafka_options(given | {"topic": topic, "checkpointLocation": str(tmp_path)})
    made = KafkaSlot(options, topic, 0)
    made.acquire()
    publish(made, 0)
    assert made.last == marker(made, 0)
    yield made
    made.drop()


def marker(slot: KafkaSlot, batch_id: int) -> Marker:
    query_id = options_of(slot).topic or ""
    batch = Batch(query_id=query_id, sink="kafka", run_id="r", batch_id=batch_id)
    return batch.marker(0, Content(1))


def options_of(slot: KafkaSlot) -> KafkaOptions:
    return slot._options


def send(slot: KafkaSlot, value: bytes) -> None:
    columns = {"key": pa.array([b"k"], pa.binary()), "value": pa.array([value], pa.binary())}
    slot.send(pa.RecordBatch.from_pydict(columns))
    slot.flush()


def publish(slot: KafkaSlot, batch_id: int) -> None:
    slot.begin()
    send(slot, b"%d" % batch_id)
    slot.pre_commit(marker(slot, batch_id))
    slot.commit()


def values(broker: str, slot: KafkaSlot) -> list[bytes | None]:
    return [record.value for record in read_topic(broker, options_of(slot).topic or "")]


def error_of(reply: bytes) -> int:
    """The error of an EndTxn's reply, behind correlation ID and throttle time."""
    (code,) = struct.unpack_from(">h", reply, 8)
    return int(code)


def test_a_late_commit_cannot_commit_half_of_the_next_slice(
    slot: KafkaSlot, broker: str, proxy: Proxy
) -> None:
    fault = proxy.arm(Api.END_TXN, Harm.HOLD, where=commits)
    publish(slot, 1)
    fault.wait()
    assert slot.last is None, "a commit that was repeated leaves no warm slot"
    with pytest.raises(Aborted, match="sent twice"):
        slot.begin()
    assert slot.acquire() == marker(slot, 1)
    slot.begin()
    send(slot, b"2")
    assert error_of(fault.release()) == _INVALID_PRODUCER_EPOCH
    topic = options_of(slot).topic or ""
    assert end_offsets(broker, topic, committed=True) < end_offsets(broker, topic), "it was torn"
    slot.pre_commit(marker(slot, 2))
    slot.commit()
    assert values(broker, slot) == [b"0", b"1", b"2"]


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
    assert error_of(fault.release()) == _INVALID_PRODUCER_EPOCH
    slot.pre_commit(marker(slot, 1))
    slot.commit()
    assert values(broker, slot) == [b"0", b"1"]
    assert count_aborted(broker, options_of(slot).topic or "") == 1


def test_a_commit_that_came_through_at_once_stays_warm(slot: KafkaSlot, proxy: Proxy) -> None:
    before = proxy.requests.get(Api.INIT_PRODUCER_ID, 0)
    publish(slot, 1)
    publish(slot, 2)
    assert slot.last == marker(slot, 2)
    assert proxy.requests.get(Api.INIT_PRODUCER_ID, 0) == before


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(Harm.LOSE_REPLY, marks=pytest.mark.slow),
        Harm.CUT_AFTER,
        pytest.param(Harm.CUT_BEFORE, marks=pytest.mark.slow),
    ],
)
def test_a_commit_without_an_answer_is_settled_by_owning_anew(
    broker: str, proxy: Proxy, slot: KafkaSlot, harm: Harm
) -> None:
    fault = proxy.arm(Api.END_TXN, harm, where=of(slot.id))
    try:
        publish(slot, 1)
    except Indefinite:
        assert slot.last is None
    fault.wait()
    assert slot.acquire() == marker(slot, 1)
    publish(slot, 2)
    assert values(broker, slot) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "api", [Api.PRODUCE, pytest.param(Api.ADD_PARTITIONS_TO_TXN, marks=pytest.mark.slow)]
)
def test_records_whose_requests_are_repeated_are_there_once(
    broker: str, proxy: Proxy, slot: KafkaSlot, api: Api
) -> None:
    fault = proxy.arm(api, Harm.CUT_AFTER)
    publish(slot, 1)
    fault.wait()
    assert values(broker, slot) == [b"0", b"1"]


@pytest.mark.slow
def test_brokers_that_make_topics_by_themselves_make_no_topic_of_markers(
    broker: str, tmp_path: Path
) -> None:
    """Kafka would delete from it. The fixture `broker` is asked for its jars alone."""
    with Broker(tmp_path, {"auto.create.topics.enable": "true"}) as eager:
        given = {"kafka.bootstrap.servers": eager.address}
        options = kafka_options(given | {"topic": "out", "checkpointLocation": str(tmp_path)})
        slot = KafkaSlot(options, "query", 0)
        with pytest.raises(SinkError, match="The topic of the markers, 'out-markers', is gone"):
            slot.acquire()
        listed = admin(eager.address).list_topics(timeout=10).topics
        assert set(listed) == {"__transaction_state"}
        slot.drop()


def test_a_producer_that_is_thrown_away_leaves_no_threads(slot: KafkaSlot) -> None:
    """At once, not at the next garbage collection: it held connections until then."""
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
