"""Starts of a query into a user's sink, each in its own process, and the faults that strike them.

A process notes the steps of its start: the calls that the methods of the user's class make. At one
step it may get a signal, or lose the connection.
"""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeAlias

from pyspark import cloudpickle

from dedup.testing.custom_sinks import CustomSink, Rows, Sink

Fault: TypeAlias = "signal.Signals | type[Exception]"

#: The numbers of a micro-batch, divided among transactions. With several, tasks write.
SLICES = {False: ((0, 1, 2),), True: ((0, 1), (2,))}
WIDTH = 3
_LONG_S, _POLL_S = 180.0, 0.004
_METHODS = ("check", "begin", "read_marker", "write_rows", "write_marker", "commit", "rollback")
#: The purpose of a transaction, by the function of the kit that begins it.
_PURPOSES = {"all": "reading markers", "acquire": "owning slots", "_begin": "publishing"}


class SinkStep(NamedTuple):
    """A call that a method of the user's class makes has returned, or the method itself has.

    `methods` are those that the transaction has called so far. If `call` is empty, the last of them
    is about to run.
    """

    batch_id: int
    purpose: str
    methods: tuple[str, ...]
    call: str
    line: int

    @property
    def is_publishing(self) -> bool:
        """Whether the transaction publishes rows, or only a marker."""
        return self.purpose == _PURPOSES["_begin"]

    def __str__(self) -> str:
        call = f"after {self.call}" if self.call else f"before {self.methods[-1]}"
        methods = " > ".join(self.methods)
        return (
            f"in micro-batch {self.batch_id}, {self.purpose}: {methods}, {call} (line {self.line})"
        )


class SinkSteps:
    """A profile function, for `sys.setprofile`, that notes steps and strikes at one of them."""

    def __init__(self, start: Start) -> None:
        own = [c for c in type(start.sink).__mro__ if not c.__module__.startswith("dedup.")]
        functions = [inspect.unwrap(f) for c in own for f in vars(c).values() if callable(f)]
        self._codes: set[CodeType] = {f.__code__ for f in functions if inspect.isfunction(f)}
        self._start = start
        self.seen: dict[SinkStep, None] = {}
        self.batch_id = 0
        self._purpose = "starting"
        self._methods: tuple[str, ...] = ("check",)
        #: The frame in which a call returned last.
        self._last: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Look whether the event is a step."""
        if event == "c_return":
            if frame.f_code in self._codes:
                self._visit(frame, arg.__name__)
        elif event in ("call", "return"):
            caller, name = frame.f_back, frame.f_code.co_name
            if caller is not None and caller.f_code in self._codes:
                if event == "return" and not name.startswith("<"):  # not a generator's
                    self._visit(caller, name)
            elif frame.f_code in self._codes and caller is not None:
                if event == "call":
                    self._enter(frame, name, caller.f_code.co_name)
                elif frame is not self._last:
                    self._visit(frame, name)

    def _enter(self, frame: FrameType, name: str, caller: str) -> None:
        if name == "begin":
            self._purpose, self._methods = _PURPOSES.get(caller, caller), ()
        if name in _METHODS:
            self._methods = tuple(dict.fromkeys((*self._methods, name)))
        if name in ("write_rows", "commit"):
            self._visit(frame, "")

    def _visit(self, frame: FrameType, call: str) -> None:
        self._last = frame if call else None
        step = SinkStep(self.batch_id, self._purpose, self._methods, call, frame.f_lineno)
        if step in self.seen:
            return
        self.seen[step] = None
        if step != self._start.strike_at:
            return
        if isinstance(self._start.fault, signal.Signals):
            os.kill(os.getpid(), self._start.fault)
        elif self._start.fault is not None:
            raise self._start.fault("check_sink has lost the connection")


class Ended(NamedTuple):
    """What came of a start: an error or an empty text, its steps, and the modules it imported."""

    error: str
    steps: list[SinkStep]
    modules: set[str]


@dataclass(frozen=True)
class Start:
    """A start of the query, in its own process.

    A fault strikes at a step: a signal, or an exception of a class.
    """

    sink: Sink
    rows: Rows
    folder: Path
    run_id: str
    batches: int
    #: Whether the steps are noted, which takes time.
    watched: bool
    strike_at: SinkStep | None = None
    fault: Fault | None = None

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
                slices = [
                    [steps.batch_id * WIDTH + n for n in each]
                    for each in SLICES[self.sink.parallel]
                ]
                started.batch(self.run_id, steps.batch_id, *slices)
                if steps.batch_id == 0:
                    started.forget()  # Spark's tasks run in other processes than the driver
                with done.open("a") as file:
                    file.write(f"{steps.batch_id}\n")
        except Exception as failed:
            error = f"{type(failed).__name__}: {failed}"
        finally:
            sys.setprofile(None)
        ended = Ended(error, list(steps.seen), set(sys.modules) - loaded)
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
        program = (
            "import sys; from multiprocessing.connection import Connection; "
            "from dedup.testing.sink_processes import serve; serve(Connection(int(sys.argv[1])))"
        )
        self._server = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
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
        self._server.wait()

    def load(self, names: set[str]) -> list[str]:
        """Let the server import modules; return the names of those that it cannot import."""
        self._pipe.send(names)
        missing: list[str] = self._pipe.recv()
        return missing

    def start(self, start: Start) -> Process:
        """Start a process."""
        self._pipe.send(cloudpickle.dumps(start))  # type: ignore[no-untyped-call]
        return Process(start, self._pipe.recv(), self._pipe)


@dataclass
class Process:
    """A start that runs."""

    start: Start
    pid: int
    _pipe: Connection
    #: As ``os.waitpid`` returned it last.
    _status: int = 0
    _ended: bool = False

    def has_ended(self) -> bool:
        """Return whether it has ended, and take note if it stands still."""
        if not self._ended:
            self._pipe.send(self.pid)
            pid, status = self._pipe.recv()
            if pid:
                self._status, self._ended = status, not os.WIFSTOPPED(status)
        return self._ended

    def waits(self, patience_s: float) -> bool:
        """Return whether it does nothing for a while, or False once it has ended."""
        idle_since_s = time.monotonic()
        while not self.has_ended():
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "S":  # it runs, or wants to, or waits for the disk
                idle_since_s = time.monotonic()
            if time.monotonic() - idle_since_s > patience_s:
                return True
            time.sleep(_POLL_S)
        return False

    def end(self) -> Ended:
        """Wait until it has ended; return what came of it."""
        self._wait(lambda: False)
        assert self._status == 0, f"start {self.start.run_id} ended with status {self._status}"
        ended: Ended = pickle.loads(self.start.result.read_bytes())
        return ended

    def was_struck(self) -> bool:
        """Wait until it has ended or stands still; return whether its signal has struck it."""
        self._wait(lambda: os.WIFSTOPPED(self._status))
        status = self._status
        found = os.WTERMSIG(status) if self._ended else os.WSTOPSIG(status)
        return found == self.start.fault

    def _wait(self, is_over: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _LONG_S
        while not self.has_ended() and not is_over():
            assert time.monotonic() < deadline_s, f"start {self.start.run_id} does not end"
            time.sleep(_POLL_S)

    def wake(self) -> None:
        """Continue the process if it stands still."""
        if not self._ended:
            os.kill(self.pid, signal.SIGCONT)


def serve(pipe: Connection) -> None:
    """Fork a process for each start that comes, and wait for processes; end all at the end."""
    gc.disable()  # it would touch, and so copy, all memory in each short-lived process
    children: set[int] = set()
    with suppress(EOFError):
        while True:
            asked = pipe.recv()
            if isinstance(asked, set):
                pipe.send([name for name in asked if not _is_imported(name)])
                continue
            if isinstance(asked, int):
                found = os.waitpid(asked, os.WNOHANG | os.WUNTRACED)
                if found[0] and not os.WIFSTOPPED(found[1]):
                    children.remove(asked)
                pipe.send(found)
                continue
            if (pid := os.fork()) == 0:
                try:
                    pickle.loads(asked).run()
                    os._exit(0)
                finally:
                    os._exit(1)
            children.add(pid)
            pipe.send(pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _is_imported(name: str) -> bool:
    try:
        import_module(name)
    except Exception:
        return False
    return True
