"""Slots of the sink as tasks and the driver hold them, without a Spark around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.sinks.kafka.options import KafkaOptions, kafka_options
from dedup.sinks.kafka.preflight import check_sink
from dedup.sinks.kafka.records import record_shape
from dedup.sinks.kafka.slots import KafkaSlot, forget_slots
from dedup.sinks.kafka.work import KafkaWork
from dedup.sinks.work import TaskResult, new_batch
from dedup.sources.kafka.client_options import client_settings
from tests.kafka.records import make_topic, read_topic

QUERY = "11111111-2222-3333-4444-555555555555"
_COLUMNS = [("key", "binary"), ("value", "binary")]


def ready_options(address: str, topic: str, partitions: int, checkpoint: Path) -> KafkaOptions:
    """Options of a sink into a new topic, whose topic of markers is there."""
    make_topic(address, topic, partitions=partitions)
    servers = {"kafka.bootstrap.servers": address}
    check_sink(client_settings(servers), [topic], f"{topic}-markers")
    return kafka_options(servers | {"topic": topic, "checkpointLocation": str(checkpoint)})


class Sink:
    """A sink whose tasks and driver the test calls.

    Parameters
    ----------
    address, topic : str
        The topic, and that of its markers, exist.
    folder : Path
        Of what it stages.
    """

    def __init__(self, address: str, topic: str, folder: Path, **options: str) -> None:
        given = {
            "kafka.bootstrap.servers": address,
            "kafka.transaction.timeout.ms": "10000",
            "kafka.max.block.ms": "10000",
            "kafka.reconnect.backoff.max.ms": "200",
            "kafka.socket.timeout.ms": "1500",
            "kafka.log_level": "0",
            "topic": topic,
            "staging": str(folder),
        }
        self.topic = topic
        self.options: KafkaOptions = kafka_options(given | options)
        self._task = KafkaWork(self.options, record_shape(_COLUMNS, self.options))

    def task(self, run: str, batch_id: int, slot: int, numbers: Iterable[int]) -> TaskResult:
        """Let a task write numbers, each in a batch of its own."""
        rows = (pa.record_batch({"key": [b"%d" % n], "value": [b"v"]}) for n in numbers)
        return self._task.write(new_batch(QUERY, "kafka", run, batch_id), slot, rows)

    def task_at_once(self, run: str, batch_id: int, slot: int, count: int) -> TaskResult:
        """Let a task write many records that come in one batch."""
        keys = [b"%d" % n for n in range(count)]
        rows = [pa.record_batch({"key": keys, "value": [b"v"] * count})]
        return self._task.write(new_batch(QUERY, "kafka", run, batch_id), slot, rows)

    def finish(self, *answers: TaskResult) -> None:
        """Let the driver end the micro-batch."""
        self._task.complete(answers)

    def batch(self, run: str, batch_id: int, *slices: Iterable[int]) -> None:
        """Run a micro-batch, a task for each slice."""
        self.finish(*(self.task(run, batch_id, n, rows) for n, rows in enumerate(slices)))

    def slot(self, number: int) -> KafkaSlot:
        """The slot as this process holds it."""
        return KafkaSlot(self.options, QUERY, number)

    def transactional_id(self, slot: int) -> str:
        return self.options.transactional_id(QUERY, slot)

    def forget(self) -> None:
        """Forget all producers, as if their process had died."""
        forget_slots()


def numbers(address: str, topic: str, **how: Any) -> Counter[int]:
    """How often each number is in a topic, for readers of committed records."""
    return Counter(int(record.key or b"-1") for record in read_topic(address, topic, **how))
