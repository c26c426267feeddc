"""The harness of the Kafka sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from dedup.sinks.kafka import slots
from dedup.sinks.kafka.options import KafkaOptions, kafka_options
from dedup.sinks.kafka.preflight import check_topics
from dedup.sinks.kafka.records import record_shape
from dedup.sinks.kafka.slots import KafkaSlot
from dedup.sinks.kafka.work import KafkaWork
from dedup.sinks.work import TaskResult
from dedup.sources.kafka.client_options import client_settings
from dedup.testing.sinks import QUERY, SinkHarness
from tests.kafka.records import make_topic, read_topic

_COLUMNS = [("key", "binary"), ("value", "binary")]
_TYPES = {"topic": "string", "partition": "int", "timestamp": "timestamp",
          "headers": "array<struct<key:string,value:binary>>"}  # fmt: skip


def ready_options(address: str, topic: str, partitions: int, checkpoint: Path) -> KafkaOptions:
    """Options of a sink into a new topic, whose topic of markers is there."""
    make_topic(address, topic, partitions=partitions)
    servers = {"kafka.bootstrap.servers": address}
    check_topics(client_settings(servers), [topic], f"{topic}-markers")
    return kafka_options(servers | {"topic": topic, "checkpointLocation": str(checkpoint)})


def work_of(address: str, rows: pa.RecordBatch, **options: str | None) -> KafkaWork:
    """Return the work of a sink of such rows; names of options have underscores for dots."""
    named = {name.replace("_", "."): value for name, value in options.items() if value}
    given = {"kafka.bootstrap.servers": address, "kafka.log_level": "0"}
    made = kafka_options(given | named)
    types = {name: _TYPES.get(name, "binary") for name in rows.schema.names}
    return KafkaWork(made, record_shape([*types.items()], made))


class Sink(SinkHarness):
    """A sink into a topic, which exists with its topic of markers; it stages in a folder.

    Names of options have underscores for dots.
    """

    format = "dedup_kafka"

    def __init__(self, address: str, topic: str, folder: Path, **options: str) -> None:
        given = {
            "kafka.bootstrap.servers": address,
            "kafka.transaction.timeout.ms": "6000",
            "kafka.max.block.ms": "10000",
            "kafka.reconnect.backoff.max.ms": "200",
            "kafka.socket.timeout.ms": "1500",
            "kafka.log_level": "0",
            "topic": topic,
            "staging": str(folder),
        }
        self.topic, self._address = topic, address
        self.given = given | {name.replace("_", "."): value for name, value in options.items()}
        self.options: KafkaOptions = kafka_options(self.given)
        self.work = KafkaWork(self.options, record_shape(_COLUMNS, self.options))

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return records whose keys are numbers."""
        keys = [b"%d" % n for n in numbers]
        return pa.record_batch({"key": keys, "value": [b"v"] * len(keys)})

    def task_at_once(self, run: str, batch_id: int, slot: int, count: int) -> TaskResult:
        """Let a task write many records that come in one batch."""
        return self.send(run, batch_id, slot, [self.rows(range(count))])

    def numbers(self) -> Counter[int]:
        """Return how often each number is in the topic."""
        return numbers(self._address, self.topic)

    def slot(self, number: int) -> KafkaSlot:
        """The slot as this process holds it."""
        return KafkaSlot(self.options, QUERY, number)

    def transactional_id(self, slot: int) -> str:
        return self.options.transactional_id(QUERY, slot)

    def forget(self) -> None:
        forget_slots()


def forget_slots() -> None:
    """Discard all producers, as if this process had just started."""
    for held in slots._held.values():
        held.producer.purge()
    slots._held.clear()


def numbers(address: str, topic: str) -> Counter[int]:
    """Return how often a reader of committed records finds each number in a topic."""
    return Counter(int(record.key or b"-1") for record in read_topic(address, topic))
