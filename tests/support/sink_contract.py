"""The contract of every sink that publishes a micro-batch once: a test class to inherit from.

    class TestContract(SinkContract):
        @pytest.fixture(params=["append", "atomic"])
        def output(self, request, dsn, tmp_path):
            return Output(lambda checkpoint, **options: Sink(...), lose_markers=...)

Each case gets an empty output. A new sink on the same output and checkpoint is a new start of the
query, which knows only what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dedup.errors import SinkError
from tests.support.sink_double import SinkDouble, once


@dataclass(frozen=True)
class Output:
    """An output, into which a test starts the sink as often as it likes.

    Parameters
    ----------
    sink : callable
        From the checkpoint's folder, and options with underscores for dots, to the sink.
    lose_markers : callable
        Removes the markers of micro-batches from the output.
    one_commit : bool
        Whether the driver commits whole micro-batches. A replay may then divide the rows otherwise.
    compares : bool
        Whether the sink compares a replay with the output. If not, it ignores the replay.
    shared : bool
        Whether several sinks may write to the output, each under its own name.
    leftovers : callable
        Returns the names of what tasks have staged and nobody has removed.
    """

    sink: Callable[..., SinkDouble]
    folder: Path
    lose_markers: Callable[[], None]
    one_commit: bool
    compares: bool = True
    shared: bool = True
    leftovers: Callable[[], list[str]] = list

    def start(self, checkpoint: str = "checkpoint", **options: str) -> SinkDouble:
        """Start the query again, which forgets what its process knew."""
        made = self.sink(self.folder / checkpoint, **options)
        made.forget()
        return made


class SinkContract:
    """What holds for every sink, format and store."""

    def test_every_row_is_there_once(self, output: Output) -> None:
        """Replays in the same start and in the next one, and empty slices, change nothing."""
        sink = output.start()
        sink.batch("run1", 0, [0, 1], [], [2])
        sink.batch("run1", 1, [3], [4, 5])
        sink.batch("run1", 1, [3], [4, 5])
        sink = output.start()
        sink.batch("run2", 1, [3], [4, 5])
        sink.batch("run2", 2, [], [6])
        assert sink.numbers() == once(7)
        assert output.leftovers() == []

    def test_a_micro_batch_without_rows(self, output: Output) -> None:
        sink = output.start()
        sink.batch("run1", 0, [], [])
        sink.batch("run1", 1, [0])
        sink.batch("run1", 2, [])
        output.start().batch("run2", 2, [])
        sink = output.start()
        sink.batch("run3", 3, [1])
        assert sink.numbers() == once(2)

    def test_a_replay_in_another_division(self, output: Output) -> None:
        """Either the rows are recognised, or the replay is rejected; nothing is written."""
        output.start().batch("run1", 0, [0, 1], [2])
        sink = output.start()
        if output.one_commit:
            sink.batch("run2", 0, [2], [1, 0], [])
        else:
            with pytest.raises(SinkError, match=r"is divided into|gives other rows"):
                sink.batch("run2", 0, [0], [1], [2])
        assert sink.numbers() == once(3)

    def test_other_rows_are_rejected(self, output: Output) -> None:
        output.start().batch("run1", 0, [0, 1], [2])
        sink = output.start()
        if output.compares:
            with pytest.raises(SinkError, match="gives other rows than when it ran") as rejected:
                sink.batch("run2", 0, [0, 9], [2])
            assert rejected.value.remedy == "sink-differs"
        accepting = output.start(accept_difference="0")
        accepting.batch("run3", 0, [0, 9], [2])
        accepting.batch("run3", 1, [3])
        assert accepting.numbers() == once(4)
        assert output.leftovers() == []

    def test_a_checkpoint_that_is_older_than_the_output(self, output: Output) -> None:
        sink = output.start()
        for number in range(3):
            sink.batch("run1", number, [number])
        for number in (0, 1):
            with pytest.raises(SinkError, match="The checkpoint is older than the sink") as old:
                output.start().batch("run2", number, [number])
            assert old.value.remedy == "sink-older-checkpoint"
        assert sink.numbers() == once(3)

    def test_a_checkpoint_that_was_put_back_as_a_whole(self, output: Output) -> None:
        """It also lacks what the sink had noted in it."""
        sink = output.start()
        for number in range(3):
            sink.batch("run1", number, [number])
        with pytest.raises(SinkError, match="The checkpoint is older than the sink"):
            output.start("put-back").batch("run2", 1, [1])
        assert sink.numbers() == once(3)

    def test_lost_markers(self, output: Output) -> None:
        """The next start refuses to guess; the user may accept the loss."""
        output.start().batch("run1", 0, [0], [1])
        output.lose_markers()
        with pytest.raises(SinkError, match="Markers of this sink are lost") as lost:
            output.start().batch("run2", 1, [2])
        assert lost.value.remedy == "sink-markers"
        sink = output.start(accept_lost_markers="true")
        sink.batch("run3", 1, [2])
        sink.batch("run3", 2, [3])
        assert sink.numbers() == once(4)

    def test_a_task_that_fails_midway_leaves_nothing(self, output: Output) -> None:
        def rows() -> Iterator[int]:
            yield 1
            raise RuntimeError("the rows end here")

        sink = output.start()
        sink.batch("run1", 0, [0])
        with pytest.raises(RuntimeError, match="the rows end here"):
            sink.task("run1", 1, 0, rows())
        assert sink.numbers() == once(1)
        assert output.leftovers() == []
        sink.batch("run1", 1, [1])
        assert sink.numbers() == once(2)

    def test_two_attempts_of_a_task(self, output: Output) -> None:
        sink = output.start()
        sink.batch("run1", 0, [0])
        sink.task("run1", 1, 0, [1])
        sink.finish([sink.task("run1", 1, 0, [1]), sink.task("run1", 1, 1, [2])])
        sink.batch("run1", 2, [3])
        assert sink.numbers() == once(4)

    def test_a_start_that_was_killed_after_its_tasks(self, output: Output) -> None:
        sink = output.start()
        sink.batch("run1", 0, [0])
        sink.tasks("run1", 1, [1], [2])
        sink = output.start()
        sink.batch("run2", 1, [1], [2])
        assert sink.numbers() == once(3)

    def test_a_driver_that_comes_late(self, output: Output) -> None:
        """Another start has published the micro-batch, and the next one."""
        late = output.start()
        results = late.tasks("run1", 0, [0], [1])
        sink = output.start()
        sink.batch("run2", 0, [0], [1])
        late.finish(results)
        assert sink.numbers() == once(2)
        sink.batch("run2", 1, [2])
        with pytest.raises(SinkError, match="older than the sink"):
            late.finish(results)
        assert sink.numbers() == once(3)

    def test_an_adopted_query_needs_a_new_name_of_the_sink(self, output: Output) -> None:
        """The new checkpoint has the ID of the old query, and counts micro-batches from 0."""
        for number in range(3):
            output.start().batch("run1", number, [number])
        with pytest.raises(SinkError, match="After `dedup catalog adopt` the sink needs a new"):
            output.start("new").batch("run1", 0, [3])
        if output.shared:
            again = output.start("new", name="again")
            again.batch("run2", 0, [3])
            again.batch("run2", 1, [4])
        assert output.start().numbers() == once(3 + 2 * output.shared)

    def test_two_sinks_of_one_query(self, output: Output) -> None:
        if not output.shared:
            pytest.skip("each sink has an output of its own")
        sinks = [output.start(), output.start(name="other")]
        for number in range(2):
            for which, sink in enumerate(sinks):
                sink.batch("run1", number, [2 * number + which])
        assert sinks[0].numbers() == once(4)
