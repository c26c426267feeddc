"""What is in topics of a real broker: making them, sending, and reading them to their real end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from dedup.sources.kafka.clients import is_passing

_TIMEOUT_S = 30.0
#: Client settings for reconnecting as soon as the broker is back.
SOON: dict[str, Any] = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record as a reader sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


@cache
def admin(address: str) -> AdminClient:
    """Return an admin client, one for each address."""
    settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0}
    return AdminClient(settings | SOON)


def make_topic(address: str, name: str, partitions: int = 1, **config: object) -> str:
    """Make a topic and return its name; settings are written with underscores for dots."""
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
    admin(address).create_topics([topic])[name].result(_TIMEOUT_S)
    _until_known(address, name, partitions)
    return name


def delete_topic(address: str, name: str) -> None:
    """Delete a topic, and wait until the metadata lacks it."""
    admin(address).delete_topics([name])[name].result(_TIMEOUT_S)
    _until_known(address, name, 0)


def partitions_of(address: str, topic: str) -> int:
    """Return the number of partitions of a topic, or 0 if it does not exist."""
    try:
        found = admin(address).describe_topics(TopicCollection([topic]))[topic].result(_TIMEOUT_S)
    except Exception as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return 0
        raise
    return len(found.partitions)


def send(
    address: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None] | Mapping[str, Any]],
) -> None:
    """Write records, as pairs of key and value or as arguments of `Producer.produce`."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5} | SOON)
    for record in records:
        if not isinstance(record, Mapping):
            record = {"key": record[0], "value": record[1]}
        producer.produce(topic, **record)
    left = producer.flush(_TIMEOUT_S)
    assert left == 0, f"{left} records were not taken within {_TIMEOUT_S} s"


def end_offsets(address: str, topic: str, *, committed: bool = False) -> list[int]:
    """Return each partition's high watermark, or its last stable offset."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    places = [TopicPartition(topic, n) for n in range(partitions_of(address, topic))]
    asked = {place: OffsetSpec.latest() for place in places}
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            found = admin(address).list_offsets(asked, isolation_level=level)
            return [found[place].result(_TIMEOUT_S).offset for place in places]
        except KafkaException as error:  # a topic made a moment ago may have no leader yet
            if not is_passing(error.args[0]) or time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def read_topic(
    address: str, topic: str, *, committed: bool = True, timeout_s: float = _TIMEOUT_S
) -> list[Record]:
    """Return all records of a topic, up to where each partition ended when this was called.

    The last stable offset may trail behind a commit that was acknowledged, so that `read_committed`
    alone would end too early: this reads on until every partition has reached its high watermark.
    An open transaction that holds it back for longer than the timeout is an error.
    """
    ends = end_offsets(address, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "test",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 50,
        }
        | SOON
    )
    try:
        consumer.assign([TopicPartition(topic, n, 0) for n, end in enumerate(ends) if end])
        left = {n: end for n, end in enumerate(ends) if end}
        return _drained(consumer, left, timeout_s)
    finally:
        consumer.close()


def count_aborted(address: str, topic: str) -> int:
    """Return how many records of aborted transactions a topic holds, which no reader may see.

    Open transactions do not count; wait for them, as `read_topic` does.
    """
    seen = {(r.partition, r.offset) for r in read_topic(address, topic)}
    every = {(r.partition, r.offset) for r in read_topic(address, topic, committed=False)}
    assert seen <= every
    return len(every - seen)


def _drained(consumer: Consumer, left: dict[int, int], timeout_s: float) -> list[Record]:
    found: list[Record] = []
    deadline_s = time.monotonic() + timeout_s
    while left:
        assert time.monotonic() < deadline_s, f"partitions not read to their ends in time: {left}"
        for message in consumer.consume(10_000, timeout=0.2):
            error, record = message.error(), record_of(message)
            if error is None:
                found.append(record)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise AssertionError(str(error))
            # Transaction markers take offsets too, and only the end offset includes them.
            if record.offset + (error is None) >= left.get(record.partition, record.offset + 2):
                del left[record.partition]
    return found


def record_of(message: Message) -> Record:
    found: Any = message  # it has a place
    return Record(
        topic=found.topic(),
        partition=found.partition(),
        offset=found.offset(),
        key=found.key(),
        value=found.value(),
        headers=tuple(found.headers() or ()),
        timestamp_ms=found.timestamp()[1],
    )


def _until_known(address: str, topic: str, partitions: int) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while partitions_of(address, topic) != partitions:
        assert time.monotonic() < deadline_s, f"the broker does not know of topic {topic}"
        time.sleep(0.05)
