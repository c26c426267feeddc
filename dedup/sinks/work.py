"""The work of a sink in one micro-batch. Spark's tasks work first, then the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from dedup.errors import SinkError, faults
from dedup.sinks.batch import Batch, new_batch
from dedup.sinks.figures import WorkCounts, counted, measured, note_fenced, reported
from dedup.sinks.ledger import Ledger
from dedup.sinks.options import SinkOptions
from dedup.sinks.protocol import (
    Aborted,
    Fenced,
    PublishedSlice,
    SinkSlots,
    SliceRows,
    Slot,
    Stage,
    StagedBatch,
    StagedSlice,
    publish_slice,
    publish_staged,
)
from dedup.sinks.slice_store import SliceStore

S = TypeVar("S", bound=Slot)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result that a task of a sink returns to the driver.

    `undelivered` counts records that were lost since the worker's last task, without transactions.
    """

    batch: Batch
    slice: PublishedSlice | StagedSlice
    undelivered: int = 0
    figures: WorkCounts = field(default_factory=WorkCounts)


class SinkWork(ABC):
    """The work of one sink. Spark sends this object to the tasks, so it must pickle.

    `room` is the prefix of the sink's fault points. `fenced_because` is a part of error texts. It
    says what may have fenced a driver or task besides another start of the query. Micro-batches in
    which the driver has nothing to publish enter the ledger only if `notes_every_batch` is true.
    `crash_risk` says what a crash of the server can take of commits, and what to change.
    """

    room: ClassVar[str]
    fenced_because: ClassVar[str] = ""
    notes_every_batch: ClassVar[bool] = True
    crash_risk: tuple[str, str] | None = None
    options: SinkOptions

    @property
    def name(self) -> str:
        return self.options.name

    def run_task(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Do the work of a task by `write`, and count it."""
        from pyspark import TaskContext

        with measured() as figures:
            result = self.write(batch, slot, counted(rows, figures))
        context = TaskContext.get()
        figures.retries += context.attemptNumber() if context else 0
        return replace(result, figures=figures)

    def run_driver(self, results: Sequence[TaskResult]) -> None:
        """Do the work of the driver by `complete`, count it, and keep the micro-batch's figures."""
        tasks = [result.figures for result in results]
        if results:
            with reported(results[0].batch, tasks, sum(result.undelivered for result in results)):
                self.complete(results)

    @abstractmethod
    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Publish or stage the rows of a task.

        Raises DataError if the sink cannot store a record. Raises SinkError if nothing was
        published, so that the task or the query has to be started again.
        """

    def ledger(self, where: str, query_id: str) -> Ledger:
        return Ledger(where, query_id)

    def staging(self, query_id: str) -> SliceStore:
        """Return the files in which tasks stage slices, if this sink stages them so."""
        assert self.options.ledger is not None, "only sinks without markers have none"
        return SliceStore(self.options.ledger, query_id, self.room)

    def stage(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> StagedSlice:
        faults.point(f"{self.room}.stage.before")
        staged = self.staging(batch.query_id).write(batch.batch_id, slot, rows)
        faults.point(f"{self.room}.stage.after")
        return staged

    @abstractmethod
    def settle(self, ledger: Ledger, staged: StagedBatch) -> None:
        """Record in the ledger what must not change once the sink has published.

        Raises ConfigError or SinkError if it has changed.
        """

    @abstractmethod
    def publish(self, staged: StagedBatch) -> Callable[[], None] | None:
        """Publish what the tasks have staged, with `publish_staged` or `commit_batch`.

        Returns a function that deletes the staged rows. Returns None if the micro-batch has no rows
        and the sink has committed nothing.
        """

    def complete(self, results: Sequence[TaskResult]) -> None:
        """Publish, on the driver, what the tasks of a micro-batch have staged.

        Raises ConfigError if somebody has changed the output, or an option that must not change.
        Raises SinkError if published rows differ or are of a later micro-batch, or if another start
        publishes this micro-batch.
        """
        options = self.options
        if not results or options.ledger is None:
            return
        batch, slices = results[0].batch, [result.slice for result in results]
        ledger = self.ledger(options.ledger, batch.query_id)
        if any(isinstance(each, StagedSlice) for each in slices):
            faults.point(f"{self.room}.driver.before")
            known = None if options.accept_lost_markers else ledger.published()
            accept_difference = options.accept_difference == batch.batch_id
            staged = StagedBatch(batch, slices, known, accept_difference)
            self.settle(ledger, staged)
            try:
                clean = self.publish(staged)
            except Fenced as error:
                note_fenced()
                raise SinkError(
                    f"Another start of the query publishes micro-batch {batch.batch_id} now"
                    f"{self.fenced_because}: {error}. Let only one start run, and start it again: "
                    "it finds what is published already."
                ) from None
        elif self.notes_every_batch:
            clean = _nothing_staged
        else:
            return
        faults.point(f"{self.room}.driver.published")
        if clean is not None:
            ledger.note_published(batch.batch_id)
            clean()
        faults.point(f"{self.room}.driver.after")


def _nothing_staged() -> None:
    """Delete nothing, because the tasks have published all slices and staged none."""


class SlotWork(SinkWork, Generic[S]):
    """The work of a sink that has a slot for each task number."""

    @property
    @abstractmethod
    def is_atomic(self) -> bool:
        """Whether the driver publishes each micro-batch in one transaction."""

    @abstractmethod
    def task_rows(self, rows: Iterable[pa.RecordBatch], stage: Stage) -> SliceRows[S]:
        """Wrap the rows of a task. `stage` writes the rows if the slice has to be staged."""

    @abstractmethod
    def slots(self, query_id: str) -> SinkSlots[S]:
        """Return a handle of all slots, for one attempt of a task or for the driver."""

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        faults.point(f"{self.room}.task.begin")
        held = self.slots(batch.query_id).slot(slot)
        try:
            slice_rows = self.task_rows(rows, partial(self.stage, batch, slot))
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
        slots = self.slots(batch.query_id)
        try:
            publish_staged(staged, slots, atomic=atomic)
        finally:
            slots.close()
        return lambda: self.staging(batch.query_id).clean(batch.batch_id)

    def chosen(self, batch: Batch, slices: Sequence[StagedSlice]) -> Sequence[StagedSlice]:
        """Return the slices whose rows the driver publishes as the whole micro-batch."""
        return slices


def current_batch(name: str) -> tuple[Batch, int]:
    """Return the micro-batch and the number of the running task. `name` is the name of the sink."""
    from pyspark import TaskContext

    context = TaskContext.get()
    properties: list[Any] = [
        context.getLocalProperty(key) if context else None
        for key in ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")
    ]
    if context is None or None in properties:
        raise SinkError("This sink publishes micro-batches of a streaming query, and none runs.")
    # Spark's job group is the ID of this start of the query.
    query_id, batch_id, run_id = properties
    return new_batch(query_id, name, run_id, int(batch_id)), context.partitionId()
