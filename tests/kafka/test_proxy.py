"""What other tests of Kafka stand on: each fault of the proxy does what its name says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.kafka.proxy import Api, Harm, Proxy, commits, error_of
from tests.kafka.records import SOON, make_topic, read_topic
from tests.support.needs import long


@pytest.fixture
def topic(broker: str, request: pytest.FixtureRequest) -> str:
    return make_topic(broker, re.sub(r"\W+", "-", request.node.name).strip("-"))


@pytest.fixture
def writer(proxy: Proxy, topic: str) -> Iterator[Producer]:
    """A transactional producer that has sent ``1`` in a transaction that is open."""
    made = Producer(
        {"bootstrap.servers": proxy.address, "transactional.id": topic, "log_level": 0} | SOON
    )
    made.init_transactions(30)
    made.begin_transaction()
    made.produce(topic, value=b"1")
    made.flush(30)
    yield made
    made.purge()


def values(broker: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(broker, topic)]


def time_out(writer: Producer) -> None:
    """Let the client wait for the answer to its commit in vain."""
    with pytest.raises(KafkaException) as late:
        writer.commit_transaction(1)
    assert late.value.args[0].code() == KafkaError._TIMED_OUT


def test_the_proxy_forwards_everything_unless_armed(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    before = proxy.requests[Api.END_TXN]
    with pytest.raises(AssertionError, match=r"not read to their ends in time: \{0: 1\}"):
        read_topic(broker, topic, timeout_s=1)
    writer.commit_transaction(30)
    assert values(broker, topic) == [b"1"]
    assert proxy.requests[Api.END_TXN] == before + 1


def test_a_lost_reply_leaves_the_commit_done_and_the_client_waiting(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    fault = proxy.arm(Api.END_TXN, Harm.LOSE_REPLY, where=commits)
    time_out(writer)
    fault.wait()
    assert values(broker, topic) == [b"1"]


@pytest.mark.parametrize(
    ("api", "harm"),
    [(Api.END_TXN, Harm.CUT_AFTER), (Api.END_TXN, Harm.CUT_BEFORE), (Api.END_TXN, Harm.DELAY),
     (Api.PRODUCE, Harm.CUT_AFTER), long(Api.ADD_PARTITIONS_TO_TXN, Harm.CUT_AFTER)],
    ids=lambda each: each.name.lower(),
)  # fmt: skip
def test_the_client_retries_by_itself(
    proxy: Proxy, writer: Producer, broker: str, topic: str, api: Api, harm: Harm
) -> None:
    writer.commit_transaction(30)
    fault = proxy.arm(api, harm, seconds=0.5)
    began_s = time.monotonic()
    writer.begin_transaction()
    writer.produce(topic, value=b"2")
    writer.commit_transaction(30)
    fault.wait()
    assert bool(fault.reply) == (harm is Harm.CUT_AFTER), (
        "what the broker has not seen has no reply"
    )
    assert harm is not Harm.DELAY or time.monotonic() - began_s > 0.5
    assert values(broker, topic) == [b"1", b"2"]


def test_a_commit_that_is_held_arrives_in_a_later_transaction(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    """The torn transaction of Kafka's older protocol, which librdkafka speaks.

    The client gives the first commit up for lost and repeats it; the late one commits half of what
    comes after it.
    """
    fault = proxy.arm(Api.END_TXN, Harm.HOLD, where=commits)
    writer.commit_transaction(30)
    fault.wait()
    writer.begin_transaction()
    writer.produce(topic, value=b"2")
    writer.flush(30)
    assert error_of(fault.release()) == 0, "the broker refused the late commit"
    assert values(broker, topic) == [b"1", b"2"], "no one has committed the second transaction"


def test_refused_connections_are_accepted_again_after_disarm(
    proxy: Proxy, writer: Producer, broker: str, topic: str
) -> None:
    assert proxy.refuse() >= 1
    time_out(writer)
    proxy.disarm()
    writer.commit_transaction(30)
    assert values(broker, topic) == [b"1"]


def test_a_fault_that_did_not_fire_is_an_error(proxy: Proxy) -> None:
    fault = proxy.arm(Api.END_TXN, Harm.DELAY)
    with pytest.raises(AssertionError, match="delay did not happen"):
        fault.wait(0.01)
