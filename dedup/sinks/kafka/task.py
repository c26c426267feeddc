"""A task of the sink: the rows of one partition of a micro-batch, in the mode that was chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dedup.errors import SinkError, faults
from dedup.sinks.content import Content
from dedup.sinks.kafka.client_errors import final, of_message
from dedup.sinks.kafka.options import AT_LEAST_ONCE, ATOMIC, SinkOptions, partitioner_key
from dedup.sinks.kafka.produce import Sender
from dedup.sinks.kafka.record_shape import RecordShape
from dedup.sinks.kafka.rows import TaskRows
from dedup.sinks.kafka.slots import KafkaSlot
from dedup.sinks.kafka.staging import Staging
from dedup.sinks.kafka.work import complete
from dedup.sinks.protocol import Aborted, Batch, Fenced, PublishedSlice, publish_slice
from dedup.sinks.work import TaskResult
from dedup.sources.kafka.clients import confluent, producer_config


@dataclass(frozen=True, slots=True)
class SinkTask:
    """What every task of a sink does; implements `dedup.sinks.work.SinkWork`."""

    options: SinkOptions
    shape: RecordShape

    @property
    def name(self) -> str:
        """Of the sink within its query."""
        return self.options.name

    def complete(self, answers: Sequence[TaskResult]) -> None:
        """Publish, on the driver, what the tasks of a micro-batch left to it."""
        complete(self.options, answers)

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Publish or stage the rows of a task; return what it tells the driver.

        Raises
        ------
        SinkError
            When nothing was published, and the task or the query has to be started again.
        """
        faults.point("kafka.task.begin")
        if not self.options.transactional:
            return TaskResult(batch, PublishedSlice(slot, self._send(slot, rows)))
        assert self.options.staging is not None
        staging = Staging(self.options.staging, batch.query_id)
        slice_rows = TaskRows(rows, self.shape, staging, batch.batch_id, slot)
        if self.options.mode == ATOMIC:
            return TaskResult(batch, slice_rows.stage())
        holder = KafkaSlot(self.options, batch.query_id, slot)
        try:
            answer = TaskResult(batch, publish_slice(batch, slot, holder, slice_rows))
        except (Fenced, Aborted) as error:
            holder.drop()
            raise _attempt_ended(error, batch, slot) from None
        except BaseException:
            holder.drop()  # a transaction that is open is the next owner's to settle
            raise
        faults.point("kafka.task.end")
        return answer

    def _send(self, slot: int, rows: Iterable[pa.RecordBatch]) -> Content:
        """Send rows without a transaction; return what they hold."""
        sender = _sender(self.options)
        sender.begin()
        content, left = Content(), 0
        try:
            for batch in rows:
                records = self.shape.records(batch, content.rows)
                sender.send(records, slot)
                content += Content(records.num_rows)
            if self.options.mode == AT_LEAST_ONCE:
                left = sender.producer.flush(self.options.clients.transaction_timeout_ms / 1000)
        except confluent().KafkaException as error:
            raise _not_written(error.args[0], sender.in_hand) from None
        if self.options.mode == AT_LEAST_ONCE:
            failure = sender.failure
            if failure.refused is not None and (left or failure.found):
                raise _not_written(failure.refused, sender.in_hand)
            if failure.found is not None:
                reason, message = failure.found
                raise _not_written(reason, of_message(message))
            if left:
                raise SinkError(
                    f"Some records of slice {slot} were not written: the brokers are silent. "
                    f"{_AGAIN}"
                )
        return content


#: What follows a failure without a transaction.
_AGAIN = "Spark tries the task again, or start the query again; records may then be there twice."


def _not_written(error: Any, record: str) -> Exception:
    """Return what it means that a record was not written, and others of its slice may have been."""
    said = f"{record} was not taken: {error.str()}"
    found = final(error, said, "Other records of its slice may be in the topic.")
    return found or SinkError(f"{said}. {_AGAIN}")


def _attempt_ended(error: Fenced | Aborted, batch: Batch, slot: int) -> SinkError:
    """Return the error that tells the user why an attempt came to its end."""
    if isinstance(error, Fenced):
        return SinkError(
            f"Another attempt writes slice {slot} of micro-batch {batch.batch_id} by now, or the "
            "transaction ran into its time limit (kafka.transaction.timeout.ms); this attempt goes "
            f"no further: {error}. Spark tries the task again, or start the query again."
        )
    return SinkError(
        f"The transaction of slice {slot} of micro-batch {batch.batch_id} was aborted, and nothing "
        f"of it was published: {error}. Spark tries the task again, or start the query again."
    )


#: Producers without transactions, by the settings they were made with.
_senders: dict[tuple[object, ...], Sender] = {}


def _sender(options: SinkOptions) -> Sender:
    clients, chooser = options.clients, partitioner_key(options.partitioner)
    key = (tuple(sorted(clients.properties.items())), options.topic, chooser)
    if key not in _senders:
        sender = Sender(options)
        config = producer_config(clients) | sender.producer_settings()
        sender.producer = confluent().Producer(config)
        _senders[key] = sender
    return _senders[key]
