"""Each fault of the proxy does to a real transactional producer what its name says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.kafka.proxy import Api, Harm, Proxy, commits, of
from tests.kafka.records import SOON, make_topic, read_topic


@pytest.fixture
def topic(broker: str, request: pytest.FixtureRequest) -> str:
    return make_topic(broker, re.sub(r"\W", "-", request.node.name))


@pytest.fixture
def writer(proxy: Proxy, topic: str) -> Iterator[Producer]:
    made = Producer(
        {"bootstrap.servers": proxy.address, "transactional.id": topic, "log_level": 0} | SOON
    )
    made.init_transactions(30)
    made.begin_transaction()
    made.produce(topic, value=b"1")
    yield made
    made.purge()


def values(broker: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(broker, topic)]


def test_nothing_happens_unless_armed(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    before = proxy.requests.get(Api.END_TXN, 0)
    writer.commit_transaction(30)
    assert values(broker, topic) == [b"1"]
    assert proxy.requests[Api.END_TXN] == before + 1


def test_a_lost_reply_leaves_the_commit_done_and_the_client_waiting(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    fault = proxy.arm(Api.END_TXN, Harm.LOSE_REPLY, where=commits)
    with pytest.raises(KafkaException) as late:
        writer.commit_transaction(1)
    assert late.value.args[0].code() == KafkaError._TIMED_OUT
    assert late.value.args[0].retriable()
    fault.wait()
    assert values(broker, topic) == [b"1"]


def test_a_cut_after_the_commit_is_mended_by_the_client(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    fault = proxy.arm(Api.END_TXN, Harm.CUT_AFTER)
    writer.commit_transaction(30)
    fault.wait()
    assert fault.answered.is_set()
    assert values(broker, topic) == [b"1"]


def test_a_cut_before_means_that_the_broker_sees_nothing(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    writer.flush(30)
    fault = proxy.arm(Api.END_TXN, Harm.CUT_BEFORE, where=of(topic))
    writer.commit_transaction(30)
    fault.wait()
    assert fault.reply is None
    assert values(broker, topic) == [b"1"]


def test_a_delay_comes_before_the_broker_sees_the_request(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    writer.flush(30)
    fault = proxy.arm(Api.END_TXN, Harm.DELAY, seconds=0.5)
    began_s = time.monotonic()
    writer.commit_transaction(30)
    fault.wait()
    assert time.monotonic() - began_s > 0.5
    assert values(broker, topic) == [b"1"]


@pytest.mark.parametrize(
    "api", [Api.PRODUCE, pytest.param(Api.ADD_PARTITIONS_TO_TXN, marks=pytest.mark.slow)]
)
def test_other_requests_are_harmed_as_well(
    proxy: Proxy, writer: Producer, broker: str, topic: str, api: Api
) -> None:
    writer.flush(30)
    writer.commit_transaction(30)
    fault = proxy.arm(api, Harm.CUT_AFTER)
    writer.begin_transaction()
    writer.produce(topic, value=b"2")
    writer.commit_transaction(30)
    fault.wait()
    assert values(broker, topic) == [b"1", b"2"]


def test_initialising_is_harmed_as_well(proxy: Proxy, topic: str) -> None:
    fault = proxy.arm(Api.INIT_PRODUCER_ID, Harm.CUT_BEFORE, where=of(topic))
    made = Producer({"bootstrap.servers": proxy.address, "transactional.id": topic} | SOON)
    made.init_transactions(30)
    fault.wait()


def test_a_commit_that_is_held_arrives_in_a_later_transaction(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    """The torn transaction of Kafka's older protocol, which librdkafka speaks.

    The client gives the first commit up for lost and repeats it; the late one commits half of what
    comes after it.
    """
    writer.flush(30)
    fault = proxy.arm(Api.END_TXN, Harm.HOLD, where=commits)
    writer.commit_transaction(30)
    fault.wait()
    writer.begin_transaction()
    writer.produce(topic, value=b"2")
    writer.flush(30)
    reply = fault.release()
    assert reply[-2:] == b"\0\0", "the broker refused the late commit"
    assert values(broker, topic) == [b"1", b"2"], "nobody has committed the second transaction"


def test_refused_connections_come_back(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    writer.flush(30)
    assert proxy.refuse() >= 1
    with pytest.raises(KafkaException) as late:
        writer.commit_transaction(1)
    assert late.value.args[0].code() == KafkaError._TIMED_OUT
    proxy.disarm()
    writer.commit_transaction(30)
    assert values(broker, topic) == [b"1"]


def test_a_fault_that_did_not_fire_is_an_error(proxy: Proxy) -> None:
    fault = proxy.arm(Api.END_TXN, Harm.DELAY)
    with pytest.raises(AssertionError, match="delay of END_TXN did not happen"):
        fault.wait(0.01)
