"""The work of a sink in which each task publishes its slice in a slot (`dedup.sinks.protocol`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

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

S = TypeVar("S", bound=SlotPort)
#: Writes the rows of a task where readers of the sink do not see them.
Stage: TypeAlias = Callable[[Iterable[pa.RecordBatch]], StagedSlice]


class SlotRows:
    """The rows of a slice. They can be read only once. `room` is the prefix of fault points."""

    room: ClassVar[str]

    def __init__(self, rows: Iterable[pa.RecordBatch], stage: Stage | None = None) -> None:
        self.rows, self._stage = iter(rows), stage
        #: The rows that were sent first. They may have to be sent again.
        self.first: pa.RecordBatch | None = None

    def consume(self) -> Content:
        return sum(map(content_of, self._all()), Content())

    def send_rest(self, slot: Any) -> Content:
        content = Content() if self.first is None else content_of(self.first)
        for batch in self.rows:
            if batch.num_rows:
                slot.send(batch)
                content += content_of(batch)
        faults.point(f"{self.room}.rows.sent")
        return content

    def stage(self) -> StagedSlice:
        assert self._stage is not None, "these are staged already"
        return self._stage(self._all())

    def _all(self) -> Iterator[pa.RecordBatch]:
        if self.first is not None:
            yield self.first
        yield from self.rows


class SlotWork(SinkWork, Generic[S]):
    """The work of a sink that has a slot for each task number."""

    @property
    @abstractmethod
    def is_atomic(self) -> bool:
        """Whether the driver publishes each micro-batch in one transaction."""

    @abstractmethod
    def slot(self, batch: Batch, number: int) -> S:
        """Return a handle of a slot for one attempt of a task."""

    @abstractmethod
    def task_rows(self, rows: Iterable[pa.RecordBatch], stage: Stage) -> SliceRows[S]:
        """Wrap the rows of a task. `stage` writes the rows if the slice has to be staged."""

    @abstractmethod
    def sink(self, batch: Batch) -> SlotSink[S]:
        """Return a handle of all slots for the driver."""

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        faults.point(f"{self.room}.task.begin")
        staging = self.staging(batch)

        def stage(rows: Iterable[pa.RecordBatch]) -> StagedSlice:
            faults.point(f"{self.room}.stage.before")
            staged = staging.write(batch.batch_id, slot, rows)
            faults.point(f"{self.room}.stage.after")
            return staged

        held = self.slot(batch, slot)
        try:
            slice_rows = self.task_rows(rows, stage)
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
        """Return the slices whose rows the driver publishes as the whole micro-batch."""
        return slices


class SlotSink(SinkPort[S]):
    """A handle with which the driver uses all slots of a sink."""

    def __init__(self, new_slot: Callable[[int], S]) -> None:
        self._new_slot = new_slot
        # Keep the slots, with their connections, until the micro-batch is published.
        self._slots: dict[int, S] = {}

    def slot(self, number: int) -> S:
        """Return the slot of a number. Later calls return the same object."""
        if number not in self._slots:
            self._slots[number] = self._new_slot(number)
        return self._slots[number]

    def close(self) -> None:
        """Give up all slots, so that the tasks of the next micro-batch can own them."""
        for slot in self._slots.values():
            slot.drop()
