"""The contract of every sink that publishes a micro-batch once: cases for pytest.

Inherit from `SinkContract`, with a fixture that gives each case an empty output:

    class TestContract(SinkContract):
        @pytest.fixture(params=["append", "atomic"])
        def output(self, request, dsn, tmp_path):
            sink = partial(Sink, dsn, mode=request.param)  # a subclass of SinkHarness
            return SinkOutput(sink, tmp_path, lose_markers=..., one_commit=...)

A new sink on the same output and checkpoint is a new start of the query.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dedup.errors import SinkError
from dedup.sinks.batch import Batch, new_batch
from dedup.sinks.work import TaskResult
from dedup.tools import inspect_output

QUERY = "11111111-2222-3333-4444-555555555555"
_CHECKPOINT = "checkpointLocation"


class SinkHarness(ABC):
    """A real sink of numbered rows, whose tasks and driver a test calls itself, without Spark."""

    #: Has the methods `write`, which tasks call, and `complete`, which the driver calls.
    work: Any
    #: Name of the sink's format, and options as a user gives them.
    format: str
    given: dict[str, str]
    #: ID of the query.
    query = QUERY

    @abstractmethod
    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of some numbers."""

    @abstractmethod
    def numbers(self) -> Counter[int]:
        """Return how often each row number is in the output, by a reader without this package."""

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

    def finish(self, results: Sequence[TaskResult]) -> None:
        """Let the driver end the micro-batch."""
        self.work.complete(results)

    def batch(self, run_id: str, batch_id: int, *slices: Iterable[int]) -> None:
        """Run a micro-batch, one task for each slice."""
        self.finish(self.tasks(run_id, batch_id, *slices))

    def inspected(self, checkpoint: Path | None) -> list[dict[str, Any]]:
        """Return what the sinks of the output have published, from the options of this one."""
        options = {name: value for name, value in self.given.items() if name != _CHECKPOINT}
        if checkpoint is not None:
            options[_CHECKPOINT] = str(checkpoint)
        sinks: list[dict[str, Any]] = inspect_output(self.format, options).to_json()["sinks"]
        return sinks

    def forget(self) -> None:  # noqa: B027 - most sinks remember nothing
        """Forget everything that this process knows of the sink, as if it had just started."""

    def assert_once(self, count: int) -> None:
        """Raise AssertionError unless a plain reader finds each number below `count` once."""
        copies, due = self.numbers(), once(count)
        wrong = f"lost {dict(due - copies)}, too many {dict(copies - due)}"
        assert copies == due, f"{wrong} (number: copies)"


@dataclass(frozen=True)
class SinkOutput:
    """An output, into which a test starts the sink as often as it likes."""

    #: Makes the sink from its checkpoint's folder, and from options with underscores for dots.
    sink: Callable[..., SinkHarness]
    #: The test's own folder, for checkpoints.
    folder: Path
    #: Removes the markers of micro-batches from the output.
    lose_markers: Callable[[], None]
    #: Whether the driver commits whole micro-batches. A replay may then divide the rows otherwise.
    one_commit: bool
    #: Whether the sink compares a replay with the output. If not, it ignores the replay.
    compares: bool = True
    #: Whether several sinks may write to the output, each under its own name.
    shared: bool = True
    #: Whether the output has markers, and not only the checkpoint.
    has_markers: bool = True
    #: Whether rows that are sent again are there again.
    repeats: bool = False
    #: Returns the names of what tasks have staged and nobody has removed.
    leftovers: Callable[[], list[str]] = list

    def start(self, checkpoint: str = "checkpoint", **options: str) -> SinkHarness:
        """Start the query again, which forgets what its process knew."""
        made = self.sink(self.folder / checkpoint, **options)
        made.forget()
        return made

    def assert_nothing_left(self) -> None:
        """Raise AssertionError if something staged is left."""
        assert not (left := self.leftovers()), f"staged and not removed: {left}"


class SinkContract:
    """What holds for every sink, format and store."""

    def test_every_row_is_there_once(self, output: SinkOutput) -> None:
        """Replays in the same start and in the next one, and empty slices, change nothing."""
        sink = output.start()
        sink.batch("run1", 0, [0, 1], [], [2])
        sink.batch("run1", 1, [3], [4, 5])
        sink.batch("run1", 1, [3], [4, 5])
        sink = output.start()
        sink.batch("run2", 1, [3], [4, 5])
        sink.batch("run2", 2, [], [6])
        sink.assert_once(7)
        output.assert_nothing_left()

    def test_a_micro_batch_without_rows(self, output: SinkOutput) -> None:
        sink = output.start()
        sink.batch("run1", 0, [], [])
        sink.batch("run1", 1, [0])
        sink.batch("run1", 2, [])
        output.start().batch("run2", 2, [])
        sink = output.start()
        sink.batch("run3", 3, [1])
        sink.assert_once(2)

    def test_a_replay_in_another_division(self, output: SinkOutput) -> None:
        """Either the rows are recognised, or the replay is rejected; nothing is written."""
        output.start().batch("run1", 0, [0, 1], [2])
        sink = output.start()
        if output.one_commit:
            sink.batch("run2", 0, [2], [1, 0], [])
        else:
            with pytest.raises(SinkError, match=r"is divided into|gives other rows"):
                sink.batch("run2", 0, [0], [1], [2])
        sink.assert_once(3)

    def test_other_rows_are_rejected(self, output: SinkOutput) -> None:
        output.start().batch("run1", 0, [0, 1], [2])
        sink = output.start()
        if output.compares:
            with pytest.raises(SinkError, match="gives other rows than when it ran") as rejected:
                sink.batch("run2", 0, [0, 9], [2])
            assert rejected.value.remedy == "sink-differs"
        accepting = output.start(accept_difference="0")
        accepting.batch("run3", 0, [0, 9], [2])
        accepting.batch("run3", 1, [3])
        accepting.assert_once(4)
        output.assert_nothing_left()

    def test_a_checkpoint_that_is_older_than_the_output(self, output: SinkOutput) -> None:
        sink = output.start()
        for number in range(3):
            sink.batch("run1", number, [number])
        for number in (0, 1):
            with pytest.raises(SinkError, match="The checkpoint is older than the sink") as old:
                output.start().batch("run2", number, [number])
            assert old.value.remedy == "sink-older-checkpoint"
        sink.assert_once(3)

    def test_a_checkpoint_that_was_put_back_as_a_whole(self, output: SinkOutput) -> None:
        """It also lacks what the sink had noted in it. Without markers, rows are sent again."""
        sink = output.start()
        for number in range(3):
            sink.batch("run1", number, [number])
        again = output.start("put-back")
        if output.has_markers:
            with pytest.raises(SinkError, match="The checkpoint is older than the sink"):
                again.batch("run2", 1, [1])
        else:
            again.batch("run2", 1, [1])
        if output.repeats:
            assert not (lost := once(3) - sink.numbers()), f"lost {dict(lost)}"
        else:
            sink.assert_once(3)

    def test_lost_markers(self, output: SinkOutput) -> None:
        """The next start refuses to guess; the user may accept the loss."""
        output.start().batch("run1", 0, [0], [1])
        output.lose_markers()
        with pytest.raises(SinkError, match="Markers of this sink are lost") as lost:
            output.start().batch("run2", 1, [2])
        assert lost.value.remedy == "sink-markers"
        sink = output.start(accept_lost_markers="true")
        sink.batch("run3", 1, [2])
        sink.batch("run3", 2, [3])
        sink.assert_once(4)

    def test_a_task_that_fails_midway_leaves_nothing(self, output: SinkOutput) -> None:
        def rows() -> Iterator[int]:
            yield 1
            raise RuntimeError("the rows end here")

        sink = output.start()
        sink.batch("run1", 0, [0])
        with pytest.raises(RuntimeError, match="the rows end here"):
            sink.task("run1", 1, 0, rows())
        sink.assert_once(1)
        output.assert_nothing_left()
        sink.batch("run1", 1, [1])
        sink.assert_once(2)

    def test_attempts_of_a_task(self, output: SinkOutput) -> None:
        """In the same worker, and in a worker that knows nothing of the sink."""
        sink = output.start()
        sink.batch("run1", 0, [0])
        for _ in range(2):
            sink.task("run1", 1, 0, [1])
        sink.forget()
        sink.finish([sink.task("run1", 1, 0, [1]), sink.task("run1", 1, 1, [2])])
        sink.batch("run1", 2, [3])
        sink.assert_once(4)

    def test_a_start_that_was_killed_after_its_tasks(self, output: SinkOutput) -> None:
        sink = output.start()
        sink.batch("run1", 0, [0])
        sink.tasks("run1", 1, [1], [2])
        sink = output.start()
        sink.batch("run2", 1, [1], [2])
        sink.assert_once(3)
        output.assert_nothing_left()

    def test_a_start_that_was_killed_between_its_tasks(self, output: SinkOutput) -> None:
        """Rows that a task has published keep their division."""
        sink = output.start()
        sink.batch("run1", 0, [0])
        sink.task("run1", 1, 0, [1, 2])  # one of two
        sink = output.start()
        if not output.one_commit:
            with pytest.raises(SinkError, match=r"is divided into|gives other rows"):
                sink.batch("run2", 1, [1], [2], [3])
            sink.assert_once(3)
        sink.batch("run3", 1, [1, 2], [3])
        sink.assert_once(4)

    def test_a_task_of_an_earlier_start_comes_late(self, output: SinkOutput) -> None:
        """The next start has published the micro-batch since."""
        late = output.start()
        late.batch("run1", 0, [0], [1])
        sink = output.start()
        sink.batch("run2", 1, [2, 3])  # by one task, where the first start had two
        late.task("run1", 1, 1, [3])
        sink.assert_once(4)
        sink.batch("run2", 2, [4])
        sink.assert_once(5)

    def test_a_driver_that_comes_late(self, output: SinkOutput) -> None:
        """Another start has published the micro-batch, and the next one."""
        late = output.start()
        results = late.tasks("run1", 0, [0], [1])
        sink = output.start()
        sink.batch("run2", 0, [0], [1])
        late.finish(results)
        sink.assert_once(2)
        sink.batch("run2", 1, [2])
        with pytest.raises(SinkError, match="older than the sink"):
            late.finish(results)
        sink.assert_once(3)

    def test_an_adopted_query_needs_a_new_name_of_the_sink(self, output: SinkOutput) -> None:
        """The new checkpoint has the ID of the old query, and counts micro-batches from 0."""
        for number in range(3):
            output.start().batch("run1", number, [number])
        if output.has_markers:
            with pytest.raises(SinkError, match="After `dedup catalog adopt` the sink needs a new"):
                output.start("new").batch("run1", 0, [3])
        if output.shared:
            again = output.start("new", name="again")
            again.batch("run2", 0, [3])
            again.batch("run2", 1, [4])
        output.start().assert_once(3 + 2 * output.shared)

    def test_what_is_published_is_inspected_with_the_options_of_the_sink(
        self, output: SinkOutput
    ) -> None:
        if not output.shared:
            pytest.skip("each sink has an output of its own")
        sink, checkpoint = output.start(), output.folder / "checkpoint"
        for name, entries in (("offsets", "012"), ("commits", "01")):
            (checkpoint / name).mkdir(parents=True)
            for entry in entries:
                (checkpoint / name / entry).write_text("v1\n{}")
        (checkpoint / "metadata").write_text(json.dumps({"id": sink.query}))
        assert sink.inspected(checkpoint) == []
        sink.batch("run1", 0, [0], [1, 2])
        sink.batch("run1", 1, [3], [4, 5])
        (state,) = sink.inspected(checkpoint)
        assert (state["query_id"], state["sink"]) == (sink.query, sink.work.name)
        assert sum(slot["rows"] for slot in state["slots"] if slot["batch_id"] == 1) == 3
        assert "micro-batch 2 again, of which nothing is published" in state["restart"]
        (without_checkpoint,) = sink.inspected(None)
        assert without_checkpoint["slots"] == state["slots"]

    def test_two_sinks_of_one_query(self, output: SinkOutput) -> None:
        if not output.shared:
            pytest.skip("each sink has an output of its own")
        sinks = [output.start(), output.start(name="other")]
        for number in range(2):
            for which, sink in enumerate(sinks):
                sink.batch("run1", number, [2 * number + which])
        sinks[0].assert_once(4)


def once(count: int) -> Counter[int]:
    """Return each number below `count`, once."""
    return Counter(range(count))
