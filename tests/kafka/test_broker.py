"""What other tests of Kafka stand on: a broker that dies and comes back, topics read whole."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.kafka.broker import Broker
from tests.kafka.records import (
    SOON,
    contents,
    count_aborted,
    delete_topic,
    end_offsets,
    make_topic,
    partitions_of,
    read_topic,
    send,
)


def producer(address: str, transactional_id: str, **config: object) -> Producer:
    own = {"bootstrap.servers": address, "transactional.id": transactional_id, "log_level": 0}
    made = Producer(own | SOON | dict(config))
    made.init_transactions(30)
    return made


def test_records_are_read_as_they_were_sent(broker: str) -> None:
    topic = make_topic(broker, "sent", partitions=3)
    send(
        broker,
        topic,
        [{"key": b"k", "value": b"v", "headers": [("h", b"1"), ("h", None)], "timestamp": 12_345,
          "partition": 2}, (None, b"w"), (b"k", None)],
    )  # fmt: skip
    found = read_topic(broker, topic)
    assert contents(found) == contents(found[::-1])
    (first,) = [record for record in found if record.headers]
    assert (first.partition, first.offset, first.timestamp_ms) == (2, 0, 12_345)
    assert first.content == (b"k", b"v", (("h", b"1"), ("h", None)))
    assert {record.content for record in found} == {
        first.content, (None, b"w", ()), (b"k", None, ())
    }  # fmt: skip
    assert read_topic(broker, make_topic(broker, "empty")) == []


def test_aborted_records_are_counted_and_not_read(broker: str) -> None:
    topic = make_topic(broker, "aborted", partitions=2)
    send(broker, topic, [(b"a", b"1"), (b"b", b"2")], transactional_id="aborted-1")
    other = producer(broker, "aborted-2")
    other.begin_transaction()
    for number in range(5):
        other.produce(topic, value=b"gone", partition=number % 2)
    other.flush(30)
    other.abort_transaction(30)
    assert {record.value for record in read_topic(broker, topic)} == {b"1", b"2"}
    assert count_aborted(broker, topic) == 5


def test_an_open_transaction_is_waited_for_and_named(broker: str) -> None:
    topic = make_topic(broker, "open")
    holder = producer(broker, "open")
    holder.begin_transaction()
    holder.produce(topic, value=b"1")
    holder.flush(30)
    assert end_offsets(broker, topic, committed=True) == [0]
    assert end_offsets(broker, topic) == [1]
    with pytest.raises(AssertionError, match=r"not read to their ends in time: \{0: 1\}"):
        read_topic(broker, topic, timeout_s=1)
    holder.commit_transaction(30)
    assert [record.value for record in read_topic(broker, topic)] == [b"1"]


def test_a_topic_can_be_deleted_and_made_again(broker: str) -> None:
    topic = make_topic(broker, "again", partitions=2)
    send(broker, topic, [(b"a", b"1")])
    delete_topic(broker, topic)
    assert partitions_of(broker, topic) == 0
    make_topic(broker, topic, partitions=1)
    assert read_topic(broker, topic) == []


@pytest.mark.slow  # one is killed in test_sink_faults.py as well
def test_a_killed_broker_comes_back_with_what_was_committed(broker_process: Broker) -> None:
    address = broker_process.address
    topic = make_topic(address, "killed")
    send(address, topic, [(b"a", b"1")], transactional_id="killed-1")
    holder = producer(address, "killed-2")
    holder.begin_transaction()
    holder.produce(topic, value=b"2")
    holder.flush(30)
    broker_process.restart()
    # The transaction outlives the broker, and its producer finds the way back.
    holder.produce(topic, value=b"3")
    holder.commit_transaction(30)
    assert [record.value for record in read_topic(address, topic)] == [b"1", b"2", b"3"]


def test_a_frozen_broker_answers_nobody_until_it_thaws(broker_process: Broker) -> None:
    address = broker_process.address
    topic = make_topic(address, "frozen")
    writer = producer(address, "frozen")
    broker_process.freeze()
    try:
        writer.begin_transaction()
        writer.produce(topic, value=b"1")
        with pytest.raises(KafkaException) as late:
            writer.commit_transaction(1)
        assert late.value.args[0].code() == KafkaError._TIMED_OUT
    finally:
        broker_process.thaw()
    writer.commit_transaction(30)
    assert [record.value for record in read_topic(address, topic)] == [b"1"]


def test_settings_reach_the_broker(broker: str) -> None:
    with pytest.raises(KafkaException) as refused:
        producer(broker, "long", **{"transaction.timeout.ms": 900_001})
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize(("secret", "known"), [("alice-secret", True), ("wrong", False)])
def test_passwords_are_asked_for(broker_process: Broker, secret: str, known: bool) -> None:
    errors: list[KafkaError] = []
    client = Producer(
        {"bootstrap.servers": broker_process.sasl_address, "security.protocol": "SASL_PLAINTEXT",
         "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": secret,
         "error_cb": errors.append, "log_level": 0}
    )  # fmt: skip
    if known:
        assert client.list_topics(timeout=10).brokers
        return
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)
    client.poll(0)
    assert errors[0].code() == KafkaError._AUTHENTICATION
