"""The engine of all campaigns against sinks: random faults from a seed, without Spark.

Processes do the work of tasks and of the driver. The engine kills or freezes them at named steps,
runs attempts of a task one after the other or at the same time, and wakes frozen processes once
their successors have won. If a start of the query fails, another follows with its own run ID.
Sometimes Spark forgets that a micro-batch was committed, and it runs again. Half of the kills
strike where fewest have struck so far. At the end each armed fault must have fired.

A sink takes part with its `SinkHarness`, and a `Campaign` with the steps of the sink and all that
can happen to its output besides.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pickle
import random
import re
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

import pyarrow as pa

from dedup.sinks.work import TaskResult
from dedup.testing import faults
from dedup.testing.sinks import SinkHarness
from tests.support.processes import stands_still
from tests.support.proxy import Fault, Harm, Proxy

BATCHES = 8
#: Rows of a micro-batch.
WIDTH = 30
#: First number of a micro-batch, from one micro-batch to the next, if they have some in common.
STEP = 10
_ATTEMPTS, _STARTS = 4, 40
_LONG_S = 120.0
# Libraries of Kafka, Delta Lake and Iceberg have threads, which a plain fork does not survive.
_context = get_context("forkserver")
T = TypeVar("T")


def rows_of(batch_id: int) -> list[int]:
    """The numbers of a micro-batch that has some in common with the next two."""
    return list(range(batch_id * STEP, batch_id * STEP + WIDTH))


def due(batches: int, *, keyed: bool) -> Counter[tuple[int, str]]:
    """The rows of so many micro-batches of `rows_of`; with a key, each as its last one has it."""
    rows = [(n, f"b{b}") for b in range(batches) for n in rows_of(b)]
    return Counter(dict(rows).items()) if keyed else Counter(rows)


def send_named(
    sink: SinkHarness,
    rows: Callable[[Sequence[int], str], pa.RecordBatch],
    run_id: str,
    batch_id: int,
    slot: int,
    tasks: int,
) -> TaskResult:
    """Let a task write its part of `rows_of` in two record batches, which name the micro-batch."""
    numbers = rows_of(batch_id)[slot::tasks]
    half = len(numbers) // 2
    parts = (numbers[:half], numbers[half:])
    return sink.send(run_id, batch_id, slot, (rows(part, f"b{batch_id}") for part in parts))


def steps(*prefixes: str) -> tuple[str, ...]:
    """Return the named steps with one of some prefixes."""
    return tuple(name for name in faults.POINTS if name.startswith(prefixes))


#: The steps of a sink on the kit that has a write-ahead log.
WRITE_AHEAD = steps("kit.task.", "kit.stage.", "kit.driver.", "kit.manifest.", "kit.send.")


def keep_reports(path: Path) -> None:
    """Append the reports of rows that this process sends again to a file."""
    logging.getLogger("dedup").addHandler(logging.FileHandler(path))


def reported(path: Path) -> Counter[int]:
    """Return how often each micro-batch was reported as sent again."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = (re.search(r"sends micro-batch (\d+) again: .* its \d+ rows", each) for each in lines)
    return Counter(int(match[1]) for match in found if match)


def without_reported(
    found: Counter[T], expected: Counter[T], reports: Counter[int], batch_of: Callable[[T], int]
) -> Counter[T]:
    """Return the rows that are there, each once less for each report of its micro-batch.

    A row that is not repeated stays.
    """
    return found - (Counter({row: reports[batch_of(row)] for row in expected}) & (found - expected))


def transactional_steps(*, whole: bool = False) -> tuple[str, ...]:
    """Return the steps of a sink on the kit that has transactions.

    Where the driver publishes whole micro-batches, a task has ended when it has staged its rows.
    """
    others = ("kit.manifest.", "kit.send.", *(["kit.task.end"] if whole else []))
    return tuple(name for name in steps("kit.") if not name.startswith(others))


class Worker:
    """A process that does the work of tasks, or of the driver, one after another.

    There it calls `sink` until none of the errors `away` comes. What is sent must pickle.
    """

    def __init__(
        self, sink: Callable[[], SinkHarness], away: tuple[type[Exception], ...] = ()
    ) -> None:
        self._ours, theirs = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(theirs, sink, away), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, work: Callable[..., object], *arguments: Any) -> None:
        with suppress(OSError):
            self._ours.send((work, arguments))

    def answer(self) -> Any:
        """Return the result (or True) or the error; None if it was killed or stands still."""
        deadline_s = time.monotonic() + _LONG_S
        while time.monotonic() < deadline_s:
            with suppress(EOFError, OSError):
                if self._ours.poll(0.01):
                    return pickle.loads(self._ours.recv())
            if not self.lives:
                return None
        raise AssertionError("a worker does not come back")

    @property
    def lives(self) -> bool:
        return self.process.is_alive() and not stands_still(self.process.pid or 0)


def _serve(
    pipe: Connection, sink: Callable[[], SinkHarness], away: tuple[type[Exception], ...]
) -> None:
    while True:
        try:
            mine = sink()
            break
        except away:
            time.sleep(0.05)
    with suppress(EOFError, OSError):
        while True:
            work, arguments = pipe.recv()
            try:
                found = work(mine, *arguments) or True
            except Exception as error:
                found = error if isinstance(error, RuntimeError) else RuntimeError(str(error))
            pipe.send(pickle.dumps(found))


@dataclass
class Round:
    """What came of one query."""

    seed: int
    mode: str
    options: dict[str, str] = field(default_factory=dict)
    armed: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    besides: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    #: Anything wrong that a reader saw while the query ran.
    seen_wrong: str = ""

    @property
    def kills(self) -> int:
        return sum(n for place, n in self.fired.items() if place.endswith(" kill"))

    @property
    def wrong(self) -> str:
        harm = f"{self.lost} lost, {self.duplicated} too many"
        return self.seen_wrong or (harm if self.lost or self.duplicated else "")

    def to_json(self) -> dict[str, Any]:
        names = ("armed", "fired", "besides")
        counts = {name: dict(sorted(getattr(self, name).items())) for name in names}
        sums = {name: getattr(self, name) for name in ("starts", "rows", "lost", "duplicated")}
        return {"seed": self.seed, "mode": self.mode} | counts | sums

    @property
    def line(self) -> str:
        left = self.armed - self.fired
        return (
            f"seed {self.seed}, {self.mode}: {self.kills} kills, {self.fired.total()} of "
            f"{self.armed.total()} faults fired, {dict(self.besides)}, {self.starts} starts: "
            f"{self.wrong or 'every row once'}" + (f"; not fired: {dict(left)}" if left else "")
        )

    @property
    def fine(self) -> bool:
        return not self.wrong and self.armed == self.fired


class Campaign(ABC):
    """A query whose processes are killed and frozen.

    The seed chooses one of the modes, which are options of the sink by name. `before` has the kills
    by point in earlier rounds.
    """

    #: Parts of errors that no fault excuses.
    never: tuple[str, ...] = (
        "gives other rows", "divided into", "older than the sink", "Markers of this sink",
        "has lost what it had committed", "which is gone",
    )  # fmt: skip

    def __init__(
        self, seed: int, modes: Mapping[str, dict[str, str]], before: Counter[str]
    ) -> None:
        self.rng, self._before = random.Random(seed), before
        self._folder = Path(os.environ[faults.VARIABLE])
        for path in self._folder.iterdir():
            path.unlink()
        mode = self.rng.choice(list(modes))
        self.result = Round(seed, mode, modes[mode])
        self._run_id = ""
        self.zombies: list[Worker] = []
        self._number = 0

    @abstractmethod
    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""

    @abstractmethod
    def worker(self) -> Worker:
        """A new process."""

    @staticmethod
    def part(sink: SinkHarness, run_id: str, batch_id: int, slot: int, tasks: int) -> TaskResult:
        """Let a task write its part of a micro-batch, in two record batches."""
        numbers = range(batch_id * WIDTH, (batch_id + 1) * WIDTH)[slot::tasks]
        half = len(numbers) // 2
        parts = (numbers[:half], numbers[half:])
        return sink.send(run_id, batch_id, slot, (sink.rows(part) for part in parts))

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield steps and kinds of faults for a micro-batch, besides its kill."""
        if self.rng.random() < 0.3:
            yield self.rng.choice(self.points()), "freeze"

    def around_a_batch(self) -> AbstractContextManager[None]:
        """Do something else to the output during a micro-batch."""
        return nullcontext()

    def around_a_start(self) -> AbstractContextManager[None]:
        """Do something else to the output during one start."""
        return nullcontext()

    @contextmanager
    def harmed(self, proxy: Proxy, fault: Fault) -> Iterator[None]:
        """Count an armed fault of the network if it fires; let what was held arrive at the end."""
        yield
        if fault.fired.is_set():
            self.result.besides[fault.harm.name.lower()] += 1
            if fault.harm is Harm.HOLD:
                fault.release()
        proxy.disarm()

    @contextmanager
    def meanwhile(self, what: str, strike: Callable[[], None], within_s: float) -> Iterator[None]:
        """Do something to the server at a random moment."""
        timer = Timer(self.rng.random() * within_s, strike)
        timer.start()
        yield
        timer.join()
        self.result.besides[what] += 1

    def before_a_replay(self) -> None:  # noqa: B027 - most sinks need nothing here
        """Do something else to the output before a micro-batch runs again."""

    def tasks(self, tasks: int) -> int:
        """Return the number of tasks at a start, from the number at the first start."""
        return tasks

    def complete(self, batch_id: int, results: list[TaskResult]) -> bool:
        """Let the driver commit a micro-batch; return whether it did."""
        self.driver.send(SinkHarness.finish, results)
        return self.is_done(self.driver.answer())

    def go(self) -> int:
        """Run the query to its end; return how many micro-batches it had."""
        self._workers = [self.worker() for _ in range(2)]
        self.driver = self.worker()
        done = 0
        # What is armed waits for its visit.
        while done < BATCHES or (self._armed() and done < 2 * BATCHES):
            self._batch(done, calm=done >= BATCHES)
            done += 1
        self._wake(all_of_them=True)
        time.sleep(0.2)
        return done

    def end(self) -> Round:
        """End all processes; return what came of it."""
        for worker in (*self._workers, self.driver, *self.zombies):
            worker.process.kill()
        for point, kind, _ in faults.fired(self._folder):
            self.result.fired[f"{point} {kind}"] += 1
        return self.result

    def _batch(self, batch_id: int, *, calm: bool) -> None:
        tasks = self.rng.randint(1, 4)
        if calm:
            # Some steps are visited only in the first micro-batch of a start, others only later.
            if batch_id % 2 == 0:
                self._new_start()
        else:
            self._arm(self._place_to_kill(), "kill")
            for point, kind in self.faults():
                self._arm(point, kind)
        with nullcontext() if calm else self.around_a_batch():
            self._to_the_end(batch_id, tasks)
        if self.rng.random() < 0.25:  # Spark forgets that it was committed
            self.result.besides["replay"] += 1
            self.before_a_replay()
            self._new_start()
            self._to_the_end(batch_id, tasks)
        self._wake()

    def _place_to_kill(self) -> str:
        points = self.points()
        if self.rng.random() < 0.5:
            return self.rng.choice(points)
        return min(points, key=lambda p: self._before[p] + self.result.armed[f"{p} kill"])

    def _to_the_end(self, batch_id: int, tasks: int) -> None:
        """Start the query until the micro-batch is done."""
        for _ in range(_STARTS):
            if not self._run_id or self.rng.random() < 0.1:
                self._new_start()
            count = self.tasks(tasks)
            with self.around_a_start():
                results = self.run_tasks(batch_id, count)
                if results is not None and self.complete(batch_id, results):
                    return
            if not self.driver.lives:
                self.zombies.append(self.driver)
                self.driver = self.worker()
            self._new_start()
        raise AssertionError(f"micro-batch {batch_id} is never done")

    def run_tasks(self, batch_id: int, tasks: int) -> list[TaskResult] | None:
        """Run the tasks of a micro-batch; return None if one of them failed too often."""
        results = [self._slice(batch_id, slot, tasks) for slot in range(tasks)]
        return None if None in results else results  # type: ignore[return-value]

    def _slice(self, batch_id: int, slot: int, tasks: int) -> TaskResult | None:
        """Attempts of a task, now and then two at a time, until one has ended well."""
        for _ in range(_ATTEMPTS):
            at_once = self.rng.sample(range(2), self.rng.choice((1, 1, 1, 2)))
            for number in at_once:
                self._workers[number].send(self.part, self._run_id, batch_id, slot, tasks)
            answers = [self._workers[number].answer() for number in at_once]
            for number in at_once:
                if not self._workers[number].lives:
                    self.zombies.append(self._workers[number])
                    self._workers[number] = self.worker()
            for answer in answers:
                if self.is_done(answer):
                    return answer  # type: ignore[no-any-return]
        return None

    def is_done(self, answer: Any) -> bool:
        """Return whether a process did its work; an error that no fault excuses is raised."""
        if isinstance(answer, RuntimeError):
            if any(text in str(answer) for text in self.never):
                raise AssertionError(str(answer))
            return False
        return answer is not None

    def _new_start(self) -> None:
        self._number += 1
        self.result.starts += 1
        self._run_id = f"run{self._number}"

    def _wake(self, *, all_of_them: bool = False) -> None:
        for worker in self.zombies:
            chosen = worker.process.is_alive() and (all_of_them or self.rng.random() < 0.5)
            if chosen and not worker.lives:
                os.kill(worker.process.pid or 0, signal.SIGCONT)
                self.result.besides["woken"] += 1

    def _arm(self, point: str, kind: str) -> None:
        arm_next(self._folder, point, kind, self.rng.choice((0, 0, 1, 3)))
        self.result.armed[f"{point} {kind}"] += 1

    def _armed(self) -> list[str]:
        names = [p.name for p in self._folder.iterdir() if not p.name.startswith("fired~")]
        return [name for name in names if not name.endswith("skip")]

    def judge(self, expected: Counter[Any], found: Counter[Any]) -> None:
        """Count what is lost, and what is too many."""
        self.result.rows = expected.total()
        self.result.lost = (expected - found).total()
        self.result.duplicated = (found - expected).total()


def arm_next(folder: Path, point: str, kind: str, visits: int) -> None:
    """Arm a fault behind those of its point, and after some more visits that go by."""
    names = (path.name.removeprefix("fired~").split("~") for path in folder.iterdir())
    used = [int(number) for name, number, *_ in names if name == point]
    number = max(used, default=-1) + 1
    for skipped in range(number, number + visits):
        faults.arm(folder, point, "skip", skipped)
    faults.arm(folder, point, kind, number + visits)


def run_campaign(
    about: str | None,
    points: Sequence[str],
    round_of: Callable[[int, Counter[str]], Round],
    options: argparse.ArgumentParser | None = None,
) -> int:
    """Run rounds as the command line says, until enough kills have struck; return the exit code.

    `round_of` returns the result of a round from its seed, and from the kills by step so far.
    """
    options = options or argparse.ArgumentParser()
    options.description = (about or "").partition("\n")[0]
    options.add_argument("--kills", type=int, default=0, help="at least so many in all")
    options.add_argument("--each", type=int, default=0, help="at least so many at each step")
    options.add_argument("--seed", type=int, default=1, help="seed of the first round")
    options.add_argument("--results", type=Path, help="file to keep the rounds in")
    arguments = options.parse_args()
    rounds: list[Round] = []
    kills: Counter[str] = Counter()
    while kills.total() < arguments.kills or min(kills[p] for p in points) < arguments.each:
        rounds.append(round_of(arguments.seed + len(rounds), kills))
        kills += _kills_of(rounds[-1])
        print(rounds[-1].line, flush=True)
        if arguments.results:
            arguments.results.parent.mkdir(exist_ok=True)
            kept = [each.to_json() for each in rounds]
            arguments.results.write_text(json.dumps(kept, indent=1) + "\n")
        if not rounds[-1].fine:
            return 1
    print(table(rounds, points))
    return 0


def _kills_of(found: Round) -> Counter[str]:
    """The kills of a round by point."""
    places = (place.rpartition(" ") for place in found.fired.elements())
    return Counter(point for point, _, kind in places if kind == "kill")


def table(rounds: list[Round], points: Sequence[str]) -> str:
    """Return a Markdown table of the faults of some rounds, and the sums."""
    armed: Counter[str] = sum((each.armed for each in rounds), Counter())
    fired: Counter[str] = sum((each.fired for each in rounds), Counter())
    besides: Counter[str] = sum((each.besides for each in rounds), Counter())
    lines = [
        "| where | kind | armed | fired | lost | duplicated |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind in faults.KINDS:
        for point in points:
            place = f"{point} {kind}"
            if n := armed[place]:
                struck = [each for each in rounds if place in each.armed]
                harm = [sum(getattr(e, what) for e in struck) for what in ("lost", "duplicated")]
                lines.append(
                    f"| `{point}` | {kind} | {n} | {fired[place]} | {harm[0]} | {harm[1]} |"
                )
    sums = {
        name: sum(getattr(each, name) for each in rounds)
        for name in ("kills", "starts", "rows", "lost", "duplicated")
    }
    lines += [
        "",
        f"{len(rounds)} queries, {sums['starts']:,} starts, {sums['rows']:,} rows: "
        f"{sums['kills']:,} kills, {fired.total():,} faults at named steps, all of which fired"
        + "".join(f"; {what} {n:,}" for what, n in sorted(besides.items()))
        + f": {sums['lost']} lost, {sums['duplicated']} duplicated.",
    ]
    return "\n".join(lines)
