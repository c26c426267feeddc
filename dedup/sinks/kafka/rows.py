"""Rows on their way to a slot: those of a task, or of staged slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from dedup.errors import faults
from dedup.sinks.content import Content, content_of
from dedup.sinks.kafka.record_shape import RecordShape
from dedup.sinks.kafka.slots import KafkaSlot
from dedup.sinks.kafka.staging import Staging
from dedup.sinks.protocol import Aborted, StagedSlice


class Rows:
    """Rows that can be read once; implements `dedup.sinks.protocol.RowsToSend`.

    Parameters
    ----------
    batches : iterable of RecordBatch
        With the columns of `dedup.sinks.kafka.record_shape.TYPES`.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._first: pa.RecordBatch | None = None
        self._content = Content()

    def send_first(self, slot: KafkaSlot) -> None:
        """Send some rows within the open transaction and wait for the broker to take them."""
        if self._first is None:
            self._first = next((batch for batch in self._batches if batch.num_rows), None)
        if self._first is not None:
            slot.send(self._first)
            slot.flush()
            faults.point("kafka.rows.first")
        elif not slot.is_just_owned:
            raise Aborted("without rows nothing tells whether the slot is still this process's own")

    def send_rest(self, slot: KafkaSlot) -> Content:
        """Send the other rows within the open transaction; return what the slice holds."""
        if self._first is not None:
            self._content = content_of(self._first)
        for batch in self._batches:
            slot.send(batch)
            self._content += content_of(batch)
        faults.point("kafka.rows.sent")
        return self._content

    def _all(self) -> Iterator[pa.RecordBatch]:
        if self._first is not None:
            yield self._first
        yield from self._batches


class TaskRows(Rows):
    """The rows that Spark hands to a task; implements `dedup.sinks.protocol.SliceRows`.

    Parameters
    ----------
    rows : iterable of RecordBatch
        As Spark gives them.
    shape : RecordShape
    staging : Staging
    batch_id, slot : int
        Where they are staged.
    """

    def __init__(
        self,
        rows: Iterable[pa.RecordBatch],
        shape: RecordShape,
        staging: Staging,
        batch_id: int,
        slot: int,
    ) -> None:
        super().__init__(_records(rows, shape))
        self._staging, self._batch_id, self._slot = staging, batch_id, slot

    def consume(self) -> Content:
        """Read all rows and send none; return what the slice holds."""
        return sum((content_of(batch) for batch in self._all()), Content())

    def stage(self) -> StagedSlice:
        """Write all rows to a durable file that nobody reads as output."""
        faults.point("kafka.stage.before")
        staged = self._staging.write(self._batch_id, self._slot, self._all())
        faults.point("kafka.stage.after")
        return staged


def _records(rows: Iterable[pa.RecordBatch], shape: RecordShape) -> Iterator[pa.RecordBatch]:
    before = 0
    for batch in rows:
        yield shape.records(batch, before)
        before += batch.num_rows
