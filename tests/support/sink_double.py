"""A sink whose tasks and driver a test calls itself, without Spark: the double of every sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa

from dedup.sinks.protocol import Batch
from dedup.sinks.work import TaskResult, new_batch
from dedup.tools import inspect_format

QUERY = "11111111-2222-3333-4444-555555555555"
#: Rows of a micro-batch in a campaign.
WIDTH = 30


class SinkDouble(ABC):
    """A sink of numbered rows."""

    #: What the tasks and the driver of the sink call: `write` and `complete`.
    work: Any
    #: Name of its format, and options as a user gives them.
    format: str
    given: dict[str, str]
    #: ID of the query.
    query = QUERY

    @abstractmethod
    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of some numbers."""

    @abstractmethod
    def numbers(self) -> Counter[int]:
        """Return how often a plain reader finds each number in the output."""

    def batch_of(self, run_id: str, batch_id: int) -> Batch:
        """Return a micro-batch of the query."""
        return new_batch(self.query, self.work.name, run_id, batch_id)

    def send(
        self, run_id: str, batch_id: int, slot: int, rows: Iterable[pa.RecordBatch]
    ) -> TaskResult:
        """Let a task write record batches."""
        result: TaskResult = self.work.write(self.batch_of(run_id, batch_id), slot, iter(rows))
        return result

    def task(self, run_id: str, batch_id: int, slot: int, numbers: Iterable[int]) -> TaskResult:
        """Let a task write numbers, each in its own record batch."""
        return self.send(run_id, batch_id, slot, (self.rows([n]) for n in numbers))

    def tasks(self, run_id: str, batch_id: int, *slices: Iterable[int]) -> list[TaskResult]:
        """Let tasks write numbers, one task for each slice."""
        return [self.task(run_id, batch_id, slot, each) for slot, each in enumerate(slices)]

    def finish(self, results: Sequence[TaskResult]) -> bool:
        """Let the driver end the micro-batch."""
        self.work.complete(results)
        return True

    def batch(self, run_id: str, batch_id: int, *slices: Iterable[int]) -> None:
        """Run a micro-batch, one task for each slice."""
        self.finish(self.tasks(run_id, batch_id, *slices))

    def part(self, run_id: str, batch_id: int, slot: int, tasks: int) -> TaskResult:
        """Let a task of a campaign write its part of a micro-batch, in two record batches."""
        numbers = range(batch_id * WIDTH, (batch_id + 1) * WIDTH)[slot::tasks]
        half = len(numbers) // 2
        parts = (numbers[:half], numbers[half:])
        return self.send(run_id, batch_id, slot, (self.rows(part) for part in parts))

    def inspected(self, checkpoint: Path) -> list[dict[str, Any]]:
        """Return what the sinks of the output have published, from the options of this one."""
        given = self.given | {"checkpointLocation": str(checkpoint)}
        found: list[dict[str, Any]] = inspect_format(self.format, given).to_json()["sinks"]
        return found

    def forget(self) -> None:  # noqa: B027 - most sinks remember nothing
        """Forget everything that this process knows of the sink, as if it had just started."""


def once(count: int) -> Counter[int]:
    """Return each number once."""
    return Counter(range(count))


@contextmanager
def frozen_task(
    sink: SinkDouble, batch_id: int, before: Sequence[int], after: Sequence[int]
) -> Iterator[list[BaseException]]:
    """Let a task write slice 0 in a thread, which stands still between some rows and others.

    It continues at the end of the block. The list then has the error with which it failed.
    """
    begun, thaw = Event(), Event()
    failed: list[BaseException] = []

    def rows() -> Iterator[int]:
        yield from before
        begun.set()
        assert thaw.wait(60)
        yield from after

    def attempt() -> None:
        try:
            sink.task("run1", batch_id, 0, rows())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=attempt)
    thread.start()
    assert begun.wait(30)
    yield failed
    thaw.set()
    thread.join()
