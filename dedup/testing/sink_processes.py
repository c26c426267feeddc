"""Starts of a query into a user's sink, each in its own process, and the faults that strike them.

A process notes the kit's steps, and the calls that the methods of the user's class make. At one of
them it may get a signal, or lose the connection.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from pyspark import cloudpickle

from dedup.errors import faults
from dedup.sinks.kit.transactional import TransactionalSink
from dedup.testing.custom_sinks import CustomSink, Rows, Sink
from dedup.testing.faults import POINTS

#: Rows of a micro-batch, without updates.
WIDTH = 3
#: If readers see the newest row of a key, number n + UPDATE has the same key as number n.
UPDATE = 50
_LONG_S, _POLL_S = 180.0, 0.004
_POINT = faults.point.__code__
#: The steps of the kit at which faults strike.
_STRUCK = (
    "kit.begun", "kit.commit.before", "kit.commit.after", "kit.manifest.after", "kit.send.after",
    "kit.driver.published",
)  # fmt: skip


class SinkStep(NamedTuple):
    """A step of the kit, the start of `send`, or a call in a method of the user's class.

    `point` is the last step of the kit. `visit` counts how often the same step has come.
    """

    batch_id: int
    point: str
    method: str = ""
    when: str = ""
    call: str = ""
    line: int = 0
    visit: int = 1

    def __str__(self) -> str:
        visit = f", visit {self.visit}" if self.visit > 1 else ""
        call = f" {self.when} {self.call} (line {self.line}{visit})" if self.call else ""
        method = f"in {self.method}{call}, " if self.method else ""
        state = POINTS.get(self.point, "no task has begun")
        return f"in micro-batch {self.batch_id}, {method}when {state}"


class SinkSteps:
    """A profile function, for `sys.setprofile`, that notes steps and strikes at one of them."""

    def __init__(self, start: Start) -> None:
        own = [c for c in type(start.sink).__mro__ if "dedup.sinks.kit" not in c.__module__]
        functions = [inspect.unwrap(f) for c in own for f in vars(c).values() if callable(f)]
        self._codes: set[CodeType] = {f.__code__ for f in functions if inspect.isfunction(f)}
        self._start = start
        self._seen: Counter[SinkStep] = Counter()
        self.batch_id, self._point = 0, ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Look whether the event is a step."""
        if event in ("c_call", "c_return"):
            self._visit(frame, event, arg.__name__)
        elif frame.f_code is _POINT:
            if event == "call":
                self._point = frame.f_locals["name"]
                if self._point in _STRUCK:
                    self._strike(SinkStep(self.batch_id, self._point))
        elif event in ("call", "return") and frame.f_back is not None:
            self._visit(frame.f_back, event, frame.f_code.co_name)
            is_own = frame.f_code in self._codes and frame.f_back.f_code not in self._codes
            if event == "call" and is_own and frame.f_code.co_name == "send":
                self._strike(SinkStep(self.batch_id, self._point, "send"))

    def _visit(self, frame: FrameType, event: str, call: str) -> None:
        if frame.f_code in self._codes and not call.startswith("<"):  # not a generator's
            when = "before" if event.endswith("call") else "after"
            where = frame.f_code.co_name, when, call, frame.f_lineno
            self._strike(SinkStep(self.batch_id, self._point, *where))

    def _strike(self, step: SinkStep) -> None:
        self._seen[step] += 1
        if step._replace(visit=self._seen[step]) != self._start.strike_at:
            return
        if isinstance(self._start.fault, signal.Signals):
            os.kill(os.getpid(), self._start.fault)
        elif self._start.fault is not None:
            raise self._start.fault("check_sink has lost the connection")

    def first_and_last(self) -> list[SinkStep]:
        """Return the first and the last visit of each step."""
        visits = [(step, {1, last}) for step, last in self._seen.items()]
        return [step._replace(visit=n) for step, numbers in visits for n in sorted(numbers)]


class Ended(NamedTuple):
    """What came of a start: an error or an empty text, steps, reports, and imported modules."""

    error: str
    steps: list[SinkStep]
    rows_sent_again: int
    modules: set[str]


@dataclass(frozen=True)
class Start:
    """A start of the query, in its own process.

    A fault strikes at a step: a signal, or an exception of a class.
    """

    sink: Sink
    rows: Rows
    folder: Path
    #: Whether micro-batches update rows of earlier ones.
    updates: bool
    #: Micro-batches beyond those after which a start repeats its steps.
    more: int = 0
    run_id: str = ""
    #: Whether the steps are noted, which takes time.
    watched: bool = False
    strike_at: SinkStep | None = None
    fault: signal.Signals | type[Exception] | None = None

    @property
    def batches(self) -> int:
        """How many micro-batches the query has at the end."""
        return 2 + (isinstance(self.sink, TransactionalSink) and self.sink.parallel) + self.more

    def slices(self, batch_id: int) -> list[list[int]]:
        """Return the numbers that the tasks of a micro-batch write."""
        first = batch_id * WIDTH
        updates = [first - WIDTH + UPDATE] if self.updates and batch_id else []
        # First, so that an update has no greater row number than the row that it replaces.
        if isinstance(self.sink, TransactionalSink) and not self.sink.parallel:
            return [[*updates, first, first + 1, first + 2]]
        return [[*updates, first, first + 1], [first + 2]]

    def run(self) -> None:
        """Run the micro-batches that no earlier start has completed."""
        steps = SinkSteps(self)
        done, error = self.folder / "done", ""
        first = len(set(done.read_text().split())) if done.exists() else 0
        loaded = set(sys.modules)
        if self.watched:
            sys.setprofile(steps)
        try:
            started = CustomSink(self.sink, self.rows, list, self.folder / "checkpoint")
            for steps.batch_id in range(first, self.batches):
                started.batch(self.run_id, steps.batch_id, *self.slices(steps.batch_id))
                if steps.batch_id == 0:
                    started.forget()  # Spark's tasks run in other processes than the driver
                with done.open("a") as file:
                    file.write(f"{steps.batch_id}\n")
        except Exception as failed:
            error = f"{type(failed).__name__}: {failed}"
        finally:
            sys.setprofile(None)
        again = getattr(self.sink, "rows_sent_again", 0)
        ended = Ended(error, steps.first_and_last(), again, set(sys.modules) - loaded)
        self.result.write_bytes(pickle.dumps(ended))

    @property
    def result(self) -> Path:
        """The file for what came of it."""
        return self.folder / f"{self.run_id}.result"


class Processes:
    """Starts processes which share nothing with this one.

    A server process imports what all of them need, and forks each.
    """

    def __init__(self, users: Sequence[Any]) -> None:
        self._pipe, theirs = Pipe()
        self._server = get_context("spawn").Process(target=serve, args=(theirs,))
        self._server.start()
        theirs.close()
        names = {user.__module__ for user in users} - {"__main__"}
        # The server cannot import, for example, a test that pytest has not imported by its name.
        self._by_value = [sys.modules[name] for name in self.load(names) if name in sys.modules]

    def __enter__(self) -> Processes:
        for module in self._by_value:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._by_value:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
        self._pipe.close()
        self._server.join()

    def load(self, names: set[str]) -> Any:
        """Let the server import modules; return the names of those that it cannot import."""
        self._pipe.send(names)
        return self._pipe.recv()

    def start(self, start: Start) -> Process:
        """Start a process."""
        self._pipe.send(cloudpickle.dumps(start))  # type: ignore[no-untyped-call]
        return Process(start, self._pipe.recv())


@dataclass(frozen=True)
class Process:
    """A start that runs."""

    start: Start
    pid: int

    @property
    def _state(self) -> str:
        """The letter that Linux shows, Z if the process has ended."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "Z"

    def comes_to(self, states: str, patience_s: float = _LONG_S) -> bool:
        """Wait until it is in one of some states; return False once it has slept for a while.

        Only time between two looks that both find it asleep counts: on a busy machine a look may
        come late, and what polls for a lock may be found running by any of them.
        """
        slept_s, looked_s, slept = 0.0, 0.0, False
        while (state := self._state) not in states:
            sleeps, last_s, looked_s = state not in "RD", looked_s, time.monotonic()
            slept_s += looked_s - last_s if slept and sleeps else 0
            if slept_s > patience_s:
                return False
            slept = sleeps
            time.sleep(_POLL_S)
        return True

    def end(self) -> Ended:
        """Wait until it has ended; return what came of it."""
        assert self.comes_to("Z"), f"start {self.start.run_id} does not end"
        assert self.start.result.exists(), f"the process of start {self.start.run_id} has crashed"
        return Ended(*pickle.loads(self.start.result.read_bytes()))

    def was_struck(self) -> bool:
        """Wait until it has ended or stands still; return whether its signal has struck it."""
        return self.comes_to("TZ") and not self.start.result.exists()

    def wake(self) -> None:
        """Continue the process if it stands still."""
        if self._state == "T":
            os.kill(self.pid, signal.SIGCONT)


def serve(pipe: Connection) -> None:
    """Fork a process for each start that comes; end all processes at the end."""
    gc.disable()  # it would touch, and so copy, all memory in each short-lived process
    logging.getLogger("dedup").addHandler(logging.NullHandler())
    children: set[int] = set()
    with suppress(EOFError):
        while True:
            message = pipe.recv()
            children = {pid for pid in children if os.waitpid(pid, os.WNOHANG) == (0, 0)}
            if isinstance(message, set):
                for name in message:
                    with suppress(Exception):
                        import_module(name)
                pipe.send(message - sys.modules.keys())
                continue
            if (pid := os.fork()) == 0:
                try:
                    pickle.loads(message).run()
                    os._exit(0)
                finally:
                    os._exit(1)
            children.add(pid)
            pipe.send(pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
