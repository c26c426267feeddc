"""The work of a sink whose tasks publish their own slices, each in its own slot."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from dedup.errors import SinkError, faults
from dedup.sinks.content import Content, content_of
from dedup.sinks.protocol import (
    Aborted,
    Batch,
    Fenced,
    SinkPort,
    SliceRows,
    SlotPort,
    StagedBatch,
    StagedSlice,
    publish_slice,
    publish_staged,
)
from dedup.sinks.work import SinkWork, TaskResult


class SliceStaging(Protocol):
    """Where the slices of one sink of one query are staged."""

    def write(self, batch_id: int, slot: int, rows: Iterable[pa.RecordBatch]) -> StagedSlice:
        """Write the rows of a slice, durably, and return what it holds."""

    def clean(self, batch_id: int) -> None:
        """Delete what was staged for a published micro-batch and for those before it."""


S = TypeVar("S", bound=SlotPort)


class SlotRows:
    """Rows of a slice that can be read once."""

    def __init__(
        self,
        rows: Iterable[pa.RecordBatch],
        stage: Callable[[Iterable[pa.RecordBatch]], StagedSlice] | None = None,
    ) -> None:
        self.rows, self._stage = iter(rows), stage
        #: Rows that were sent, and may have to be sent again.
        self.first: pa.RecordBatch | None = None

    def consume(self) -> Content:
        return sum(map(content_of, self._all()), Content())

    def stage(self) -> StagedSlice:
        """Write all rows to a durable file, or table, that readers do not see."""
        assert self._stage is not None, "these are staged already"
        return self._stage(self._all())

    def _all(self) -> Iterator[pa.RecordBatch]:
        if self.first is not None:
            yield self.first
        yield from self.rows


class SlotWork(SinkWork, Generic[S]):
    """The work of a sink with a slot for each task."""

    @property
    @abstractmethod
    def is_atomic(self) -> bool:
        """Whether the driver publishes each micro-batch in one transaction."""

    @abstractmethod
    def slot(self, batch: Batch, number: int) -> S:
        """Return a slot, for one attempt."""

    @abstractmethod
    def staging(self, batch: Batch) -> SliceStaging:
        """Return where slices are staged."""

    @abstractmethod
    def task_rows(
        self,
        rows: Iterable[pa.RecordBatch],
        stage: Callable[[Iterable[pa.RecordBatch]], StagedSlice],
    ) -> SliceRows[S]:
        """Return the rows of a task, which `stage` can stage."""

    @abstractmethod
    def sink(self, batch: Batch) -> SlotSink[S]:
        """Return all slots, for the driver."""

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        faults.point(f"{self.room}.task.begin")
        staging = self.staging(batch)

        def stage(rows: Iterable[pa.RecordBatch]) -> StagedSlice:
            faults.point(f"{self.room}.stage.before")
            staged = staging.write(batch.batch_id, slot, rows)
            faults.point(f"{self.room}.stage.after")
            return staged

        slice_rows = self.task_rows(rows, stage)
        held = self.slot(batch, slot)
        try:
            if self.is_atomic:
                return TaskResult(batch, slice_rows.stage())
            result = TaskResult(batch, publish_slice(batch, slot, held, slice_rows))
        except (Fenced, Aborted) as error:
            held.drop()
            raise SinkError(
                f"This attempt to write slice {slot} of micro-batch {batch.batch_id} is over, and "
                f"it published nothing: {error}. Another attempt owns the slice by now, or the "
                f"transaction was aborted{self.fenced_because}. Spark retries the task, or start "
                "the query again."
            ) from None
        except BaseException:
            held.drop()
            raise
        faults.point(f"{self.room}.task.end")
        return result

    def publish(self, staged: StagedBatch) -> Callable[[], None]:
        batch = staged.batch
        slices = [each for each in staged.slices if isinstance(each, StagedSlice)]
        atomic = (lambda: self.chosen(batch, slices)) if self.is_atomic else None
        sink = self.sink(batch)
        try:
            publish_staged(staged, sink, atomic=atomic)
        finally:
            sink.close()
        return lambda: self.staging(batch).clean(batch.batch_id)

    def chosen(self, batch: Batch, slices: Sequence[StagedSlice]) -> Sequence[StagedSlice]:
        """Return the slices to publish a whole micro-batch from."""
        return slices


class SlotSink(SinkPort[S]):
    """All slots of the sink in the hands of the driver."""

    def __init__(self, new_slot: Callable[[int], S]) -> None:
        self._new_slot = new_slot
        # The driver keeps what the slots hold until the micro-batch is published.
        self._slots: dict[int, S] = {}

    def slot(self, number: int) -> S:
        """Return a slot, always the same one for a number."""
        if number not in self._slots:
            self._slots[number] = self._new_slot(number)
        return self._slots[number]

    def close(self) -> None:
        """Give the slots up: the tasks of the next micro-batch own them."""
        for slot in self._slots.values():
            slot.drop()
