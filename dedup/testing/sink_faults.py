"""`check_sink`, which tests a user's class for `custom_sink` against faults of all kinds."""

from __future__ import annotations

import inspect
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest

from dedup.sinks.kit.function import kind_of, pickled
from dedup.sinks.kit.transactional import TransactionalSink
from dedup.testing.custom_sinks import Read, Rows, Sink, custom_output
from dedup.testing.sink_processes import UPDATE, Ended, Process, Processes, SinkStep, Start
from dedup.testing.sinks import SinkContract
from dedup.values.option import choice

#: How often the query starts after a fault. A start may fail while the fault has consequences.
_STARTS = 3
#: A start that has slept for so long, and twice the usual time, waits for a frozen one.
_PATIENCE_S = 0.25
_PUBLISHING = ("kit.begun", "kit.rows.", "kit.marker.", "kit.commit.", "kit.send.")
_OTHER_PATH = "this start took another path than the same start before"


def check_sink(
    new_sink: Callable[[], Sink],
    *,
    rows: Rows,
    read: Read,
    connection_error: type[Exception] = ConnectionError,
    readers_see: Literal["once", "newest", "repeats"] = "once",
    shared: bool = True,
) -> None:
    """Test that your sink publishes each micro-batch once, through faults of all kinds.

    Call it in a test for pytest, without a Spark session. It first runs all cases of
    `dedup.testing.sinks.SinkContract`: replays, other numbers of tasks, empty micro-batches,
    restored checkpoints, lost markers, late tasks and drivers, two sinks. Then it runs a query of
    two or three micro-batches again and again, each start in its own process:

    - It kills the query after each call that a method of the class makes, and between the methods,
      and starts it again.
    - It freezes the query between methods and within `send`, starts it again, and wakes the frozen
      process.
    - It loses the request or the reply of each call that a method makes.

    Parameters
    ----------
    new_sink : callable
        Returns an object of your class, with a new and empty output at each call. The object must
        pickle.
    rows : callable
        Returns the rows for some numbers (0 to 99, no number twice), as a `pyarrow.RecordBatch`.
    read : callable
        Returns all numbers that a reader of a sink's output sees now.
    connection_error : type of exception
        The exception that your client library raises if it loses the connection. It is made with
        one text.
    readers_see : str
        ``once``: each row once. ``newest``: the newest row of each key. Then `rows` must give the
        numbers n and n + 50 the same key. ``repeats``: a `WriteAheadSink` uses neither keys nor
        versions, and a row may be there once more for each time that it was counted in
        `rows_sent_again`.
    shared : bool
        False if an output takes the rows of one sink of one query only.

    Raises
    ------
    ConfigError
        If `new_sink` returns no `TransactionalSink` or `WriteAheadSink`, or one that does not
        pickle, or if `readers_see` has another value.
    AssertionError
        If rows are lost or repeated, if a reader sees part of a transaction, or if a start fails
        for no reason. The error names the case, the step and the numbers.
    """
    choice("once", "newest", "repeats").check(readers_see, "readers_see")
    kind_of(sink := new_sink(), "")
    pickled(sink, "check_sink has to send it to other processes", "send, or in its first call")
    repeats, updates = readers_see == "repeats", readers_see == "newest"
    for name, test in inspect.getmembers(SinkContract, inspect.isfunction):
        with _case(f"SinkContract.{name}") as folder:
            output = custom_output(new_sink(), rows, read, folder, shared=shared, repeats=repeats)
            assert not (numbers := output.start().numbers()), (
                f"new_sink must return a new and empty output each time: read finds {dict(numbers)}"
            )
            test(SinkContract(), output)

    @contextmanager
    def query(name: str, more: int = 1) -> Iterator[_SinkQuery]:
        with _case(name) as folder:
            start = Start(new_sink(), rows, folder, updates)
            yield (sink_query := _SinkQuery(start, read, processes, repeats))
            sink_query.end(more)

    with Processes([type(sink), rows]) as processes:
        # The first one takes longer, and ends with an update whose version has one digit more.
        for more in (2, 1):
            began_s = time.monotonic()
            with query("without a fault", more) as whole:
                steps, modules = whole.run()
                processes.load(modules)
        patience_s = _PATIENCE_S + 2 * (time.monotonic() - began_s)
        assert {"commit", "send"} & {step.method for step in steps}, (
            "check_sink sees no calls in the methods of this class. Write them in Python."
        )
        # Most mistakes show while the sink publishes.
        for step in sorted(steps, key=lambda step: not step.point.startswith(_PUBLISHING)):
            if step.when != "before":
                with query(f"killed {step}") as killed:
                    killed.kill(step)
            # In the first micro-batch the driver publishes. In the third tasks do, if they may.
            if step.batch_id not in (0, 2) or (step.call and step.visit > 1):
                continue
            if not step.call or (step.when == "after" and step.point.startswith("kit.send.")):
                with query(f"frozen {step}") as frozen:
                    frozen.freeze(step, patience_s)
            if step.call:
                with query(f"connection lost {step}") as disconnected:
                    disconnected.disconnect(step, connection_error)


@contextmanager
def _case(name: str) -> Iterator[Path]:
    """Yield a folder for a case, and let each failure name the case."""
    try:
        with tempfile.TemporaryDirectory(prefix="dedup-check-sink-") as folder:
            yield Path(folder)
    except pytest.skip.Exception:
        return
    except (Exception, pytest.fail.Exception) as error:
        of_sink = isinstance(error, AssertionError | pytest.fail.Exception)
        reason = str(error) if of_sink else f"{type(error).__name__}: {error}"
        raise AssertionError(f"{name}: {reason}") from error


@dataclass
class _SinkQuery:
    """A query into a new output, and its starts."""

    first: Start
    read: Read
    processes: Processes
    repeats: bool
    _starts: int = 0
    #: Number of rows that were reported as sent again.
    _reported: int = 0

    def run(self) -> tuple[list[SinkStep], set[str]]:
        """Run the query without a fault; return its steps and the modules that it imports."""
        ended = self._ended(self._start(watched=True))
        assert not ended.error, ended.error
        return ended.steps, ended.modules

    def kill(self, step: SinkStep) -> None:
        """Kill a start at a step; check that readers see each transaction whole, or not at all."""
        self._strike(step, signal.SIGKILL)
        copies = self._numbers()
        is_whole = isinstance(self.first.sink, TransactionalSink)
        for batch_id in range(self.first.batches if is_whole else 0):
            for numbers in self.first.slices(batch_id):
                # An update may have replaced a number.
                seen = {copies[n] + copies[n + UPDATE] for n in numbers}
                assert seen in ({0}, {1}), (
                    f"readers see part of a transaction of micro-batch {batch_id}: {dict(copies)} "
                    "(number: copies)"
                )

    def freeze(self, step: SinkStep, patience_s: float) -> None:
        """Freeze a start at a step, and wake it once the next start has won or waits for it."""
        frozen = self._strike(step, signal.SIGSTOP)
        successor = self._start()
        successor.comes_to("Z", patience_s)
        frozen.wake()
        self._ended(successor)
        self._ended(frozen)

    def disconnect(self, step: SinkStep, error: type[Exception]) -> None:
        """Lose the connection of a start at a step."""
        start = self._start(watched=True, strike_at=step, fault=error)
        assert step in self._ended(start).steps, _OTHER_PATH

    def end(self, more: int) -> None:
        """Let the next start run more micro-batches, and check that each number is there once."""
        self._check(Counter(set(self._numbers())))
        last = replace(self.first, more=more)
        for _ in range(_STARTS):
            error = self._ended(self._start(more=more)).error
            if not error:
                break
        assert not error, f"the next start fails: {error}"
        numbers = {n for batch_id in range(last.batches) for n in chain(*last.slices(batch_id))}
        self._check(Counter(n for n in numbers if n + UPDATE not in numbers))

    def _strike(self, step: SinkStep, fault: signal.Signals) -> Process:
        struck = self._start(watched=True, strike_at=step, fault=fault)
        assert struck.was_struck(), _OTHER_PATH
        return struck

    def _start(self, **changes: Any) -> Process:
        self._starts += 1
        return self.processes.start(replace(self.first, run_id=f"run{self._starts}", **changes))

    def _ended(self, start: Process) -> Ended:
        ended = start.end()
        self._reported += ended.rows_sent_again
        return ended

    def _numbers(self) -> Counter[int]:
        return Counter(self.read(self.first.sink))

    def _check(self, due: Counter[int]) -> None:
        copies = self._numbers()
        lost, too_many = due - copies, copies - due
        wrong = f"lost {dict(lost)}, too many {dict(too_many)} (number: copies)"
        if self.repeats and copies.keys() == due.keys():
            wrong += f", and {self._reported} rows were reported as sent again"
            assert too_many.total() <= self._reported, wrong
        else:
            assert copies == due, wrong
