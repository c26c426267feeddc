"""The contract of every sink that publishes a micro-batch once: test classes to inherit from.

    class TestContract(SinkContract):
        @pytest.fixture(params=["append", "atomic"])
        def output(self, request, dsn, tmp_path):
            return Output(lambda checkpoint, **options: Sink(...), lose_markers=...)

Each case gets an empty output. A new sink on the same output and checkpoint is a new start of the
query, which knows only what is stored. `QueryContract` is the same for Spark queries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from dedup import dedup_by_id
from dedup.errors import SinkError
from dedup.testing import faults
from tests.support.file_query import FileQuery
from tests.support.sink_double import SinkDouble, once


@dataclass(frozen=True)
class Output:
    """An output, into which a test starts the sink as often as it likes."""

    #: From the checkpoint's folder, and options with underscores for dots, to the sink.
    sink: Callable[..., SinkDouble]
    folder: Path
    #: Removes the markers of micro-batches from the output.
    lose_markers: Callable[[], None]
    #: Whether the driver commits whole micro-batches. A replay may then divide the rows otherwise.
    one_commit: bool
    #: Whether the sink compares a replay with the output. If not, it ignores the replay.
    compares: bool = True
    #: Whether several sinks may write to the output, each under its own name.
    shared: bool = True
    #: Returns the names of what tasks have staged and nobody has removed.
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

    def test_attempts_of_a_task(self, output: Output) -> None:
        """In the same worker, and in a worker that knows nothing of the sink."""
        sink = output.start()
        sink.batch("run1", 0, [0])
        for _ in range(2):
            sink.task("run1", 1, 0, [1])
        sink.forget()
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
        assert output.leftovers() == []

    def test_a_start_that_was_killed_between_its_tasks(self, output: Output) -> None:
        """Rows that a task has published keep their division."""
        sink = output.start()
        sink.batch("run1", 0, [0])
        sink.task("run1", 1, 0, [1, 2])  # one of two
        sink = output.start()
        if not output.one_commit:
            with pytest.raises(SinkError, match=r"is divided into|gives other rows"):
                sink.batch("run2", 1, [1], [2], [3])
            assert sink.numbers() == once(3)
        sink.batch("run3", 1, [1, 2], [3])
        assert sink.numbers() == once(4)

    def test_a_task_of_an_earlier_start_comes_late(self, output: Output) -> None:
        """The next start has published the micro-batch since."""
        late = output.start()
        late.batch("run1", 0, [0], [1])
        sink = output.start()
        sink.batch("run2", 1, [2, 3])  # by one task, where the first start had two
        late.task("run1", 1, 1, [3])
        assert sink.numbers() == once(4)
        sink.batch("run2", 2, [4])
        assert sink.numbers() == once(5)

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

    def test_what_is_published_is_inspected_with_the_options_of_the_sink(
        self, output: Output
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
        (found,) = sink.inspected(checkpoint)
        assert (found["query_id"], found["sink"]) == (sink.query, sink.work.name)
        assert sum(slot["rows"] for slot in found["slots"] if slot["batch_id"] == 1) == 3
        assert "micro-batch 2 again, of which nothing is published" in found["restart"]

    def test_two_sinks_of_one_query(self, output: Output) -> None:
        if not output.shared:
            pytest.skip("each sink has an output of its own")
        sinks = [output.start(), output.start(name="other")]
        for number in range(2):
            for which, sink in enumerate(sinks):
                sink.batch("run1", number, [2 * number + which])
        assert sinks[0].numbers() == once(4)


class QueryContract:
    """What holds for a query into every sink; a test class gives the fixture `query`."""

    def test_every_micro_batch_is_there_once(self, query: FileQuery, tmp_path: Path) -> None:
        """A replay reads the operator's plan to its end, although its rows are there already."""
        operator = dedup_by_id("n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2)
        query.change = lambda rows: rows.transform(operator)
        query.numbers(range(30), range(20, 50))
        query.run()
        assert query.forget_commit() == 1  # Spark runs the last micro-batch again
        query.numbers(range(40, 60))
        query.run()
        assert query.found() == once(60)

    @pytest.mark.slow
    def test_kills_at_every_step(self, query: FileQuery, fault_folder: Path) -> None:
        self.kill(query, fault_folder, query.steps)

    def kill(self, query: FileQuery, fault_folder: Path, steps: Sequence[str]) -> None:
        """Spark runs a task again; a query whose driver's part dies ends, and is started again."""
        for number, step in enumerate(steps):
            starts = range(30 * number, 30 * number + 30, 10)
            first, second, third = (range(n, n + 10) for n in starts)
            query.numbers(first)
            running = query.start(once=False)
            running.processAllAvailable()
            # From now on tasks publish on their own, if the sink lets them.
            faults.arm(fault_folder, step, "kill")
            query.numbers(second)
            with suppress(StreamingQueryException):
                running.processAllAvailable()
            running.stop()
            query.numbers(third)
            query.run_to_the_end()
            assert query.found() == once(30 * number + 30), step
            assert len(faults.fired(fault_folder)) == number + 1, step

    def test_what_the_format_of_a_sink_is_not_for(self, query: FileQuery) -> None:
        with pytest.raises(Exception, match="publishes the micro-batches"):
            query.spark.range(3).write.format(query.sink).mode("append").save()
        with pytest.raises(Exception, match="is a sink"):
            query.spark.read.format(query.sink).load()
