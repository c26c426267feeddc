"""The work of a Kafka sink. Each task publishes or stages its rows, then the driver works."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dedup.errors import SinkError
from dedup.sinks.batch import Batch
from dedup.sinks.content import Content
from dedup.sinks.kafka.client_errors import describe_message, permanent_error
from dedup.sinks.kafka.options import (
    AT_LEAST_ONCE,
    ATOMIC,
    BY_TASK,
    NONE,
    KafkaOptions,
    partitioner_key,
)
from dedup.sinks.kafka.preflight import check_topics
from dedup.sinks.kafka.records import RecordShape, Sender, record_shape
from dedup.sinks.kafka.slots import KafkaRows, KafkaSlot, KafkaSlots
from dedup.sinks.kafka.undelivered import Undelivered
from dedup.sinks.ledger import Ledger
from dedup.sinks.protocol import PublishedSlice, Stage, StagedBatch, StagedSlice
from dedup.sinks.work import SlotWork, TaskResult
from dedup.sources.kafka.clients import confluent, producer_config
from dedup.sources.kafka.cluster import Cluster

logger = logging.getLogger("dedup")

#: Keys of the checks of a cluster that this process has already made.
_checked: set[tuple[object, ...]] = set()
#: Servers and topics whose partitions this process has compared with the number of tasks.
_warned: set[tuple[str, str | None]] = set()
#: Senders without transactions, keyed by their settings.
_senders: dict[tuple[object, ...], Sender] = {}
_AGAIN = "Spark retries the task, or start the query again; records may then be duplicated."


@dataclass(frozen=True)
class KafkaWork(SlotWork[KafkaSlot]):
    """The work of a Kafka sink. The function `ready` makes it."""

    options: KafkaOptions
    shape: RecordShape
    room = "kafka"
    fenced_because = ", or a transaction reached its time limit (kafka.transaction.timeout.ms)"
    # The driver does nothing in a micro-batch if the tasks have published all slices.
    notes_every_batch = False

    @property
    def is_atomic(self) -> bool:
        return self.options.mode == ATOMIC

    def task_rows(self, rows: Iterable[pa.RecordBatch], stage: Stage) -> KafkaRows:
        return KafkaRows(_records(rows, self.shape), stage)

    def slots(self, query_id: str) -> KafkaSlots:
        return KafkaSlots(self.options, query_id, self.staging(query_id))

    def chosen(self, batch: Batch, slices: Sequence[StagedSlice]) -> Sequence[StagedSlice]:
        return self.staging(batch.query_id).manifest(batch.batch_id, slices)

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        if not self.options.transactional:
            content, undelivered = self._send(slot, rows)
            return TaskResult(batch, PublishedSlice(slot, content), undelivered)
        return super().write(batch, slot, rows)

    def _send(self, slot: int, rows: Iterable[pa.RecordBatch]) -> tuple[Content, int]:
        """Send rows without transactions.

        Returns the content, and the number of records that are lost since the last task.
        """
        sender = _sender(self.options)
        sender.begin()
        content, left = Content(), 0
        try:
            for batch in rows:
                sender.send(self.shape.records(batch, content.rows), slot)
                content += Content(batch.num_rows)
            if self.options.mode == AT_LEAST_ONCE:
                left = sender.producer.flush(self.options.clients.transaction_timeout_ms / 1000)
        except confluent().KafkaException as error:
            raise _not_written(error.args[0], sender.last_record) from None
        failure = sender.failure
        if isinstance(failure, Undelivered):
            return content, failure.count()
        if failure.client is not None and (left or failure.first):
            raise _not_written(failure.client, sender.last_record)
        if failure.first is not None:
            reason, message = failure.first
            raise _not_written(reason, describe_message(message))
        if left:
            raise SinkError(
                f"Some records of slice {slot} were not written, because the brokers do not "
                f"answer. {_AGAIN}"
            )
        return content, 0

    def complete(self, results: Sequence[TaskResult]) -> None:
        super().complete(results)
        if results:
            self._warn_of_empty_partitions(len(results))
        if undelivered := sum(result.undelivered for result in results):
            logger.warning(
                "Sink %s lost %d records of micro-batch %d or earlier ones: the brokers did not "
                "take them, and mode none does not send them again. The log of the executors has "
                "the reasons.",
                self.name,
                undelivered,
                results[0].batch.batch_id,
            )

    def _warn_of_empty_partitions(self, tasks: int) -> None:
        options = self.options
        question = options.clients.servers, options.topic
        if options.partitioner != BY_TASK or options.topic is None or question in _warned:
            return
        _warned.add(question)
        topic = Cluster(options.clients).topic(options.topic)
        if topic is not None and tasks < topic.partitions:
            logger.warning(
                "Option partitioner=task: this micro-batch had %d tasks, so %d of the %d "
                "partitions of topic %s got no records. Give the stream at least as many tasks "
                "(repartition), or use partitioner=key.",
                tasks,
                topic.partitions - tasks,
                topic.partitions,
                options.topic,
            )

    def settle(self, ledger: Ledger, staged: StagedBatch) -> None:
        options = self.options
        ledger.settle(
            {
                "topic": options.topic or "",
                "markers": options.markers,
                "transactional.id.prefix": options.transactional_id_prefix,
            }
        )


def _records(rows: Iterable[pa.RecordBatch], shape: RecordShape) -> Iterator[pa.RecordBatch]:
    before = 0
    for batch in rows:
        yield shape.records(batch, before)
        before += batch.num_rows


def ready(options: KafkaOptions, columns: Sequence[tuple[str, str]]) -> KafkaWork:
    work = KafkaWork(options, record_shape(columns, options))
    clients, markers = options.clients, options.markers if options.transactional else None
    question = (
        clients.servers, options.topic, markers, clients.transaction_timeout_ms,
        options.accept_lost_markers,  # the topic of markers may have to be created again
    )  # fmt: skip
    if question not in _checked:
        topics = [] if options.topic is None else [options.topic]
        check_topics(clients, topics, markers)
        _checked.add(question)
    return work


def _not_written(error: Any, record: str) -> Exception:
    text = f"{record} was rejected: {error.str()}"
    ending = "Other records of its slice may be in the topic."
    return permanent_error(error, text, ending) or SinkError(f"{text}. {_AGAIN}")


def _sender(options: KafkaOptions) -> Sender:
    clients, chooser = options.clients, partitioner_key(options.partitioner)
    key = (tuple(sorted(clients.properties.items())), options.topic, chooser, options.mode)
    if key not in _senders:
        undelivered = Undelivered() if options.mode == NONE else None
        sender = Sender(options, producer_config(clients), undelivered)
        if undelivered is not None:
            undelivered.watch(sender.producer)
        _senders[key] = sender
    return _senders[key]
