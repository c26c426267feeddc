"""`check_sink`, which tests a user's class for `custom_sink` against faults of all kinds."""

from __future__ import annotations

import inspect
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dedup.sinks.kit.transactional import TransactionalSink
from dedup.testing.custom_sinks import CustomSink, Read, Rows, Sink, custom_output
from dedup.testing.sink_processes import SLICES, WIDTH, Fault, Process, Processes, SinkStep, Start
from dedup.testing.sinks import SinkContract

#: How often the query starts after a fault. A start may fail while the fault has consequences.
_STARTS = 3
#: A start that sleeps for so long, and twice the usual time, waits for a frozen one.
_PATIENCE_S = 0.1
_OTHER_PATH = "this start took another path than the same start before"


def check_sink(
    new_sink: Callable[[], Sink],
    *,
    rows: Rows,
    read: Read,
    connection_error: type[Exception] = ConnectionError,
) -> None:
    """Test that your sink publishes each micro-batch once, through faults of all kinds.

    Call it in a test for pytest, without a Spark session. It first runs all cases of
    `dedup.testing.sinks.SinkContract`: replays, other numbers of tasks, empty micro-batches,
    restored checkpoints, lost markers, late tasks and drivers, two sinks. Then it runs a query of
    two or three micro-batches again and again, each start in its own process:

    - It kills the query after each call that a method of the class makes, and starts it again.
    - It freezes the query between methods, starts it again, and wakes the frozen process.
    - It loses the reply of each call that a method makes, and the request of each commit.

    Parameters
    ----------
    new_sink : callable
        Returns an object of your class, with a new and empty output at each call.
    rows : callable
        Returns the rows for some numbers (0 to 99, no number twice), as a `pyarrow.RecordBatch`.
    read : callable
        Returns all numbers that a reader of a sink's output sees now.
    connection_error : type of exception
        The exception that your client library raises if it loses the connection. It is made with
        one text.

    Raises
    ------
    TypeError
        If `new_sink` returns another object than a `TransactionalSink`.
    AssertionError
        If rows are lost or repeated, if a reader sees part of a transaction, or if a start fails
        for no reason. The error names the case, the step and the numbers.
    """
    if not isinstance(sink := new_sink(), TransactionalSink):
        raise TypeError(f"check_sink tests subclasses of TransactionalSink, not {sink!r:.80}.")
    for name, case in inspect.getmembers(SinkContract, inspect.isfunction):
        with _case(f"SinkContract.{name}"), tempfile.TemporaryDirectory() as folder:
            case(SinkContract(), custom_output(new_sink(), rows, read, Path(folder)))
    with Processes([type(sink), rows]) as processes:
        _Faults(new_sink, rows, read, processes, connection_error).run()


@contextmanager
def _case(name: str) -> Iterator[None]:
    """Let each failure name the case."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        of_sink = isinstance(error, AssertionError | pytest.fail.Exception)
        told = str(error) if of_sink else f"{type(error).__name__}: {error}"
        raise AssertionError(f"{name}: {told}") from error


@dataclass
class _SinkQuery:
    """A query into a new output, and its starts."""

    sink: Sink
    rows: Rows
    read: Read
    folder: Path
    processes: Processes
    _starts: int = 0

    @property
    def batches(self) -> int:
        """How many micro-batches a start runs, until they repeat its steps."""
        return 3 if self.sink.parallel else 2

    def start(self, strike_at: SinkStep | None = None, fault: Fault | None = None) -> Process:
        """Start the query again, and note its steps. A fault may strike at one of them."""
        return self._start(self.batches, True, strike_at, fault)

    def kill(self, step: SinkStep) -> None:
        """Kill a start at a step; check that readers see each transaction whole, or not at all."""
        assert self.start(step, signal.SIGKILL).was_struck(), _OTHER_PATH
        found = self._output().numbers()
        for batch_id in range(self.batches):
            for numbers in SLICES[self.sink.parallel]:
                seen = {found[batch_id * WIDTH + n] for n in numbers}
                assert seen in ({0}, {1}), (
                    f"readers see part of a transaction of micro-batch {batch_id}: {dict(found)} "
                    "(number: copies)"
                )

    def freeze(self, step: SinkStep, patience_s: float) -> None:
        """Freeze a start at a step, and wake it once the next start has won or waits for it."""
        frozen = self.start(step, signal.SIGSTOP)
        assert frozen.was_struck(), _OTHER_PATH
        successor = self._start(self.batches, False)
        if successor.waits(patience_s):
            frozen.wake()
        successor.end()
        frozen.wake()
        frozen.end()

    def disconnect(self, step: SinkStep, error: type[Exception]) -> None:
        """Lose the connection of a start at a step."""
        assert step in self.start(step, error).end().steps, _OTHER_PATH

    def _start(self, *given: Any) -> Process:
        self._starts += 1
        start = Start(self.sink, self.rows, self.folder, f"run{self._starts}", *given)
        return self.processes.start(start)

    def end(self) -> None:
        """Let the next start run one micro-batch more, and check that each number is there once."""
        twice = {number: n for number, n in self._output().numbers().items() if n > 1}
        assert not twice, f"readers see numbers more than once: {twice} (number: copies)"
        for _ in range(_STARTS):
            error = self._start(self.batches + 1, False).end().error
            if not error:
                break
        assert not error, f"the next start fails: {error}"
        self._output().assert_once((self.batches + 1) * WIDTH)

    def _output(self) -> CustomSink:
        return CustomSink(self.sink, self.rows, self.read, self.folder / "checkpoint")


@dataclass
class _Faults:
    """The cases in which a fault strikes a start at one of its steps."""

    new_sink: Callable[[], Sink]
    rows: Rows
    read: Read
    processes: Processes
    connection_error: type[Exception]

    def run(self) -> None:
        """Run all cases."""
        with _case("without a fault"), self._query() as query:
            first = query.start().end()
            assert not first.error, first.error
            self.processes.load(first.modules)
            query.end()
        with _case("without a fault"), self._query() as query:
            began_s = time.monotonic()
            steps = query.start().end().steps
            patience_s = _PATIENCE_S + 2 * (time.monotonic() - began_s)
            assert any("commit" in step.methods for step in steps), (
                "check_sink sees no calls in the methods of this class. Write them in Python."
            )
        # One micro-batch in which the driver publishes, and, if tasks may, one in which they do.
        chosen = [step for step in steps if step.batch_id in (0, 2)]
        ends_of_methods = {step[:3]: step for step in chosen}.values()
        # Most mistakes show while the sink publishes.
        for step in sorted(steps, key=lambda step: not step.is_publishing):
            with _case(f"killed {step}"), self._query() as query:
                query.kill(step)
                query.end()
            if step in ends_of_methods or (step in chosen and not step.call):
                with _case(f"frozen {step}"), self._query() as query:
                    query.freeze(step, patience_s)
                    query.end()
            if step in chosen:
                with _case(f"connection lost {step}"), self._query() as query:
                    query.disconnect(step, self.connection_error)
                    query.end()

    @contextmanager
    def _query(self) -> Iterator[_SinkQuery]:
        with tempfile.TemporaryDirectory(prefix="dedup-check-sink-") as folder:
            yield _SinkQuery(self.new_sink(), self.rows, self.read, Path(folder), self.processes)
