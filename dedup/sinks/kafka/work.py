"""The sink as Spark runs it: what each task does with its rows, and then the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dedup.errors import SinkError, faults
from dedup.sinks.content import Content
from dedup.sinks.kafka.client_errors import describe_message, permanent_error
from dedup.sinks.kafka.options import AT_LEAST_ONCE, ATOMIC, KafkaOptions, partitioner_key
from dedup.sinks.kafka.preflight import check_sink
from dedup.sinks.kafka.records import RecordShape, Sender, record_shape
from dedup.sinks.kafka.slots import KafkaSink, KafkaSlot, KafkaTaskRows
from dedup.sinks.kafka.staging import KafkaStaging
from dedup.sinks.ledger import Ledger
from dedup.sinks.protocol import (
    Aborted,
    Batch,
    Fenced,
    PublishedSlice,
    StagedSlice,
    publish_slice,
    publish_staged,
)
from dedup.sinks.work import SinkWork, TaskResult
from dedup.sources.kafka.clients import confluent, producer_config

logger = logging.getLogger("dedup")

#: Questions that this process has put to the cluster already.
_checked: set[tuple[object, ...]] = set()
#: Producers without transactions, by the settings they were made with.
_senders: dict[tuple[object, ...], Sender] = {}
_AGAIN = "Spark retries the task, or start the query again; records may then be duplicated."


@dataclass(frozen=True)
class KafkaWork(SinkWork):
    """The work of a Kafka sink; `ready` makes it."""

    options: KafkaOptions
    shape: RecordShape
    room = "kafka"
    fenced_because = ", or a transaction reached its time limit (kafka.transaction.timeout.ms)"

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Publish or stage the rows of a task."""
        faults.point("kafka.task.begin")
        if not self.options.transactional:
            return TaskResult(batch, PublishedSlice(slot, self._send(slot, rows)))
        slice_rows = KafkaTaskRows(rows, self.shape, self._staging(batch), batch.batch_id, slot)
        if self.options.mode == ATOMIC:
            return TaskResult(batch, slice_rows.stage())
        holder = KafkaSlot(self.options, batch.query_id, slot)
        try:
            result = TaskResult(batch, publish_slice(batch, slot, holder, slice_rows))
        except (Fenced, Aborted) as error:
            holder.drop()
            raise SinkError(
                f"This attempt to write slice {slot} of micro-batch {batch.batch_id} is over, and "
                f"it published nothing: {error}. Another attempt owns the slice by now, or the "
                "transaction was aborted, for example by its time limit "
                "(kafka.transaction.timeout.ms). Spark retries the task, or start the query again."
            ) from None
        except BaseException:
            holder.drop()  # the next owner settles an open transaction
            raise
        faults.point("kafka.task.end")
        return result

    def _send(self, slot: int, rows: Iterable[pa.RecordBatch]) -> Content:
        """Send rows without a transaction; return what they hold."""
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
        if self.options.mode == AT_LEAST_ONCE:
            failure = sender.failure
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
        return content

    def complete(self, results: Sequence[TaskResult]) -> None:
        """Publish what is staged; the driver has no work if tasks have published all slices."""
        if any(isinstance(result.slice, StagedSlice) for result in results):
            super().complete(results)

    def settle(self, ledger: Ledger, batch: Batch, slices: Sequence[StagedSlice]) -> None:
        """Fix where records and markers go, and the names of transactions."""
        options = self.options
        ledger.settle(
            {
                "topic": options.topic or "",
                "markers": options.markers,
                "transactional.id.prefix": options.transactional_id_prefix,
            }
        )

    def publish(
        self,
        batch: Batch,
        slices: Sequence[PublishedSlice | StagedSlice],
        *,
        known_batch_id: int | None,
        accept_difference: bool,
    ) -> Callable[[], None]:
        """Publish staged slices; in mode atomic, the manifest's slices in one transaction."""
        staging = self._staging(batch)
        staged = [piece for piece in slices if isinstance(piece, StagedSlice)]
        is_atomic = self.options.mode == ATOMIC
        sink = KafkaSink(self.options, batch.query_id, staging)
        try:
            publish_staged(
                batch,
                sink,
                slices,
                atomic=(lambda: staging.manifest(batch.batch_id, staged)) if is_atomic else None,
                known_batch_id=known_batch_id,
                accept_difference=accept_difference,
            )
        finally:
            sink.close()
        return lambda: staging.clean(batch.batch_id)

    def _staging(self, batch: Batch) -> KafkaStaging:
        assert self.options.staging is not None, "only modes without transactions have none"
        return KafkaStaging(self.options.staging, batch.query_id)


def ready(options: KafkaOptions, columns: Sequence[tuple[str, str]]) -> KafkaWork:
    """Return the work of a sink, after a check of the stream's columns and of the cluster.

    Parameters
    ----------
    options : KafkaOptions
    columns : sequence of (str, str)
        Names and Spark types of the stream's columns.
    """
    work = KafkaWork(options, record_shape(columns, options))
    clients, markers = options.clients, options.markers if options.transactional else None
    question = (
        clients.servers, options.topic, markers, clients.transaction_timeout_ms,
        options.accept_lost_markers,  # their topic, too, may have to be created again
    )  # fmt: skip
    if question not in _checked:
        topics = [] if options.topic is None else [options.topic]
        for note in check_sink(clients, topics, markers):
            logger.warning("%s", note)
        _checked.add(question)
    return work


def _not_written(error: Any, record: str) -> Exception:
    """Return the error for a record outside a transaction, which may leave others written."""
    text = f"{record} was rejected: {error.str()}"
    ending = "Other records of its slice may be in the topic."
    return permanent_error(error, text, ending) or SinkError(f"{text}. {_AGAIN}")


def _sender(options: KafkaOptions) -> Sender:
    clients, chooser = options.clients, partitioner_key(options.partitioner)
    key = (tuple(sorted(clients.properties.items())), options.topic, chooser)
    if key not in _senders:
        sender = Sender(options)
        sender.connect(producer_config(clients))
        _senders[key] = sender
    return _senders[key]
