"""Record batches to a producer of Kafka, columns turned into lists once."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sinks.kafka.client_errors import described, final
from dedup.sinks.kafka.options import BY_KEY, BY_TASK, SinkOptions, load_partitioner
from dedup.sources.kafka.clients import confluent

#: Lets the client choose: by the hash of the key, as Java does, or any where there is no key.
_ANY = -1
_ASK_S = 10.0


class _Failure:
    """What a producer reports to, apart from the sender that holds the producer.

    Were it the sender itself, the two would hold each other, and the threads and connections of a
    producer that nobody uses any more would stay until the garbage collector comes by.
    """

    #: Error and message of the first record of a transaction that the brokers did not take.
    found: tuple[Any, Any] | None = None
    #: Why the brokers refuse the client, such as its password: its records only time out then.
    refused: Any = None

    def refuse(self, error: Any) -> None:
        if final(error, "") is not None:
            self.refused = error

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None and self.found is None:
            self.found = error, message


class Sender:
    """Hands records to one producer.

    Attributes
    ----------
    producer : confluent_kafka.Producer
        Set once it is made with `producer_settings`.
    """

    producer: Any

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._library = confluent()
        self._partitioner = (
            load_partitioner(options.partitioner)
            if isinstance(options.partitioner, str) and ":" in options.partitioner
            else options.partitioner
        )
        self._partitions: dict[str, int] = {}
        self.failure = _Failure()
        self._each: tuple[Any, ...] = ()

    @property
    def in_hand(self) -> str:
        """The record that was handed over last, for an error."""
        topic, value, key, *rest = self._each or ("none yet", None, None)
        return described(topic, value, key, rest[0] if rest else None)

    def producer_settings(self) -> dict[str, Any]:
        """Return what the producer must be made with: only failures are reported back."""
        given = self._options.clients.properties
        own = {
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
            # How long a topic that was just made may be unknown, before its records are refused:
            # shorter than any time limit of a transaction, which would say nothing of the topic.
            "topic.metadata.propagation.max.ms": 5_000,
        }
        defaults = {name: value for name, value in own.items() if name not in given}
        told = {"on_delivery": self.failure, "error_cb": self.failure.refuse}
        return defaults | {"delivery.report.only.error": True} | told

    def begin(self) -> None:
        """Forget the failures of the transaction before."""
        self.failure.found = self.failure.refused = None

    def send(self, records: pa.RecordBatch, task: int) -> None:
        """Hand records over, in their order.

        Parameters
        ----------
        records : RecordBatch
            With the columns of `dedup.sinks.kafka.record_shape.TYPES`.
        task : int
            Number of the slice.

        Raises
        ------
        KafkaException
            If the producer is of no use any more.
        """
        arguments = self._arguments(records, task)
        produce, poll = self.producer.produce, self.producer.poll
        for each in arguments:
            self._each = each
            while True:
                try:
                    produce(*each)
                    break
                except BufferError:  # the queue is full: let the brokers catch up
                    poll(0.05)
        poll(0)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises
        ------
        ConfigError
            If there is no such topic.
        """
        known = self._partitions.get(topic)
        if known is None:
            found = self.producer.list_topics(topic, _ASK_S).topics[topic]
            known = self._partitions[topic] = len(found.partitions)
        if not known:
            del self._partitions[topic]
            raise ConfigError(
                f"There is no topic {topic!r} at {self._options.clients.servers}: create it, or "
                "correct the option or column that names it."
            )
        return known

    def _arguments(self, records: pa.RecordBatch, task: int) -> Any:
        """Return an iterator over the arguments of `produce`, as few as the records need."""
        names = records.schema.names
        values = records.column("value").to_pylist()
        keys = records.column("key").to_pylist() if "key" in names else repeat(None)
        topics = repeat(self._options.topic)
        if "topic" in names:
            topics = records.column("topic").to_pylist()
        plain = {"headers", "timestamp", "partition"}.isdisjoint(names)
        if plain and self._partitioner == BY_KEY:
            return zip(topics, values, keys, strict=False)
        partitions = self._partitions_of(records, task)
        if {"headers", "timestamp"}.isdisjoint(names):
            return zip(topics, values, keys, partitions, strict=False)
        times = (
            (each or 0 for each in records.column("timestamp").to_pylist())
            if "timestamp" in names
            else repeat(0)
        )
        headers = _headers(records) if "headers" in names else repeat(None)
        nothing = repeat(None)
        return zip(topics, values, keys, partitions, nothing, nothing, times, headers, strict=False)

    def _partitions_of(self, records: pa.RecordBatch, task: int) -> Any:
        names = records.schema.names
        chosen: Any = repeat(_ANY)
        if self._partitioner == BY_TASK:
            chosen = self._by_topic(records, lambda _, count: task % count)
        elif callable(self._partitioner):
            chosen = self._chosen(records)
        if "partition" not in names:
            return chosen
        given = records.column("partition").to_pylist()
        return [own if own is not None else c for own, c in zip(given, chosen, strict=False)]

    def _by_topic(self, records: pa.RecordBatch, choose: Any) -> list[int]:
        if "topic" not in records.schema.names:
            assert self._options.topic is not None
            return [choose(0, self.partitions(self._options.topic))] * records.num_rows
        topics = records.column("topic").to_pylist()
        return [choose(row, self.partitions(topic)) for row, topic in enumerate(topics)]

    def _chosen(self, records: pa.RecordBatch) -> list[int]:
        """Return what the user's function chooses, topic by topic."""
        assert callable(self._partitioner)
        keys = (
            records.column("key")
            if "key" in records.schema.names
            else pa.nulls(records.num_rows, pa.binary())
        )
        values = records.column("value")
        topics = np.full(records.num_rows, self._options.topic, object)
        if "topic" in records.schema.names:
            topics = records.column("topic").to_numpy(zero_copy_only=False)
        chosen = np.empty(records.num_rows, np.int64)
        for topic in dict.fromkeys(topics):
            rows = np.flatnonzero(topics == topic)
            count = self.partitions(topic)
            found = np.asarray(self._partitioner(keys.take(rows), values.take(rows), count))
            if found.shape != rows.shape or found.dtype.kind not in "iu":
                raise ConfigError(
                    "The partitioner must return one whole number for each record; it returned "
                    f"{found.dtype} of shape {found.shape} for {len(rows)} records."
                )
            if len(found) and not (found.min() >= 0 and found.max() < count):
                raise ConfigError(
                    f"The partitioner chose partitions from {found.min()} to {found.max()}, and "
                    f"topic {topic!r} has {count}."
                )
            chosen[rows] = found
        return [int(partition) for partition in chosen]


def _headers(records: pa.RecordBatch) -> list[list[tuple[str, bytes | None]] | None]:
    return [
        None if each is None else [(header["key"], header["value"]) for header in each]
        for each in records.column("headers").to_pylist()
    ]
