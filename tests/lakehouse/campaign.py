"""Faults against the sinks over real tables, again and again, from a seed, without a Spark.

    python -m tests.lakehouse.campaign --kills 300 --seed 1

Processes do the work of tasks and of drivers. They are killed or frozen at named points
, commits lose their answer, two drivers of a query commit at the same time, other
writers append in between, tables are compacted and their history expires, and micro-batches run
again after they were committed, also by another number of tasks. Frozen drivers go on once others
are further. In the end each armed fault must have fired, and every row be there once.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before `dedup.errors.faults` reads it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-lakehouse-faults-")

from dedup.sinks.lakehouse.options import DELTA
from dedup.testing import faults
from tests.faults.subject import stands_still
from tests.lakehouse.lakes import FORMATS, Lake, Sink

POINTS = tuple(name for name in faults.POINTS if name.startswith("lakehouse."))
BATCHES, ROWS = 12, 24
#: What a query may never be refused with: these are refusals of what no fault has done.
_NEVER = (
    "gives other rows",
    "older than the sink",
    "Markers of this sink",
    "could not be committed",
)
_STARTS, _LONG_S = 30, 120.0
#: Numbers that other writers add.
_THEIRS = 1_000_000

_context = get_context("forkserver")


class Worker:
    """A process that does the work of tasks, or of a driver, one after another."""

    def __init__(self, format_name: str, folder: Path) -> None:
        self._ours, theirs = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(theirs, format_name, folder))
        self.process.daemon = True
        self.process.start()
        theirs.close()

    def send(self, name: str, *arguments: Any) -> None:
        with suppress(OSError):
            self._ours.send((name, arguments))

    def answer(self) -> Any:
        """What it answers; None where it was killed or stands still."""
        deadline_s = time.monotonic() + _LONG_S
        while time.monotonic() < deadline_s:
            with suppress(EOFError, OSError):
                if self._ours.poll(0.01):
                    return self._ours.recv()
            if not self.lives():
                return None
        os.kill(self.process.pid or 0, signal.SIGUSR1)
        time.sleep(1)
        raise AssertionError("a worker does not come back")

    def lives(self) -> bool:
        return self.process.is_alive() and not stands_still(self.process.pid or 0)


def _serve(pipe: Connection, format_name: str, folder: Path) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    lake = Lake(format_name, folder / "lake")
    sink = Sink(lake, folder / "checkpoint")
    with suppress(EOFError, OSError):
        while True:
            name, arguments = pipe.recv()
            try:
                if name == "task":
                    run_id, batch_id, slot, tasks = arguments
                    pipe.send(sink.tasks(run_id, batch_id, *_slices(batch_id, tasks))[slot])
                else:
                    sink.work.complete(*arguments)
                    pipe.send("done")
            except Exception as error:
                pipe.send(f"failed: {error}")


def _slices(batch_id: int, tasks: int) -> list[list[int]]:
    """The numbers of a micro-batch, for each task."""
    numbers = range(batch_id * ROWS, (batch_id + 1) * ROWS)
    return [list(numbers[slot::tasks]) for slot in range(tasks)]


class Campaign:
    """A query into a table, whose processes are killed and frozen."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._rng, self._folder, self._seed = random.Random(seed), folder, seed
        self._faults = Path(os.environ[faults.VARIABLE])
        for path in self._faults.iterdir():
            path.unlink()
        self._format = FORMATS[seed % len(FORMATS)]
        self._lake = Lake(self._format, folder / "lake")
        Sink(self._lake, folder / "checkpoint")
        self._workers = [Worker(self._format, folder) for _ in range(3)]
        self._zombies: list[Worker] = []
        self._number = self._theirs = 0
        self._armed: Counter[str] = Counter()
        #: By point and kind, and what else was done.
        self.fired: Counter[str] = Counter()
        self.besides: Counter[str] = Counter()

    @property
    def kills(self) -> int:
        return sum(n for place, n in self.fired.items() if place.endswith(" kill"))

    def run(self) -> str:
        """Run the query to its end; return what is wrong, or nothing."""
        done = 0
        while done < BATCHES or (self._waiting() and done < 3 * BATCHES):
            if done < BATCHES:
                self._arm(self._rng.choice(POINTS), "kill")
                if self._rng.random() < 0.4:
                    self._arm(self._rng.choice(POINTS), "freeze")
                if self._rng.random() < 0.3:
                    self._arm("lakehouse.commit.after", "raise")
            self._to_the_end(done)
            if self._rng.random() < 0.3:
                self.besides["replay"] += 1
                self._upkeep()
                self._to_the_end(done)
            self._wake(0.5)
            done += 1
        self._wake(1.0)
        time.sleep(0.3)
        for worker in (*self._workers, *self._zombies):
            worker.process.kill()
            worker.process.join()
        for point, kind, _ in faults.fired(self._faults):
            self.fired[f"{point} {kind}"] += 1
        if self.fired != self._armed:
            return f"armed {self._armed - self.fired} that did not fire"
        wanted = Counter(range(done * ROWS))
        wanted += Counter(range(_THEIRS, _THEIRS + self._theirs))
        found = self._lake.found()
        lost, more = wanted - found, found - wanted
        return f"{lost.total()} lost, {more.total()} too many" if lost or more else ""

    def _to_the_end(self, batch_id: int) -> None:
        """Start the query until the micro-batch is done."""
        for _ in range(_STARTS):
            self._number += 1
            drivers = self._rng.choice((1, 1, 1, 2))
            asked = []
            for number in range(drivers):
                answers = self._tasks(f"run{self._number}", batch_id)
                asked.append(self._workers[number])
                asked[-1].send("complete", answers)
            if self._rng.random() < 0.3:
                self._lake.add(_THEIRS + self._theirs)
                self._theirs += 1
                self.besides["other writer"] += 1
            self.besides["two drivers"] += drivers == 2
            found = [worker.answer() for worker in asked]
            self._replace()
            if any(self._is_done(each) for each in found):
                return
        raise AssertionError(f"micro-batch {batch_id} is never done")

    def _tasks(self, run_id: str, batch_id: int) -> list[Any]:
        """Let the tasks of a micro-batch run, each until it has ended well."""
        tasks, answers = self._rng.randint(1, 3), []
        for slot in range(tasks):
            answer = None
            while answer is None:
                worker = self._workers[2]
                worker.send("task", run_id, batch_id, slot, tasks)
                answer = worker.answer()
                self._replace()
                if isinstance(answer, str):  # another driver has committed, and cleaned up
                    self._is_done(answer)
                    answer = None
            answers.append(answer)
        return answers

    def _is_done(self, answer: Any) -> bool:
        if isinstance(answer, str) and any(text in answer for text in _NEVER):
            raise AssertionError(answer)
        return bool(answer == "done")

    def _replace(self) -> None:
        for number, worker in enumerate(self._workers):
            if not worker.lives():
                self._zombies.append(worker)
                self._workers[number] = Worker(self._format, self._folder)

    def _wake(self, share: float) -> None:
        for worker in self._zombies:
            if worker.process.is_alive() and self._rng.random() < share:
                os.kill(worker.process.pid or 0, signal.SIGCONT)
                self.besides["woken"] += 1

    def _upkeep(self) -> None:
        """Compact the table, or let its history expire, as somebody does beside the query."""
        self.besides["upkeep"] += 1
        if self._format == DELTA:
            from deltalake import DeltaTable

            table = DeltaTable(str(self._lake.folder / "numbers"))
            with suppress(Exception):  # a commit came first
                table.optimize.compact()
            DeltaTable(str(self._lake.folder / "numbers")).create_checkpoint()
            return
        table = self._lake.iceberg()
        last = table.current_snapshot()
        old = [s.snapshot_id for s in table.snapshots() if last and s != last]
        with suppress(Exception):
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def _arm(self, point: str, kind: str) -> None:
        names = (path.name.removeprefix("fired~") for path in self._faults.iterdir())
        used = [int(name.split("~")[1]) for name in names if name.split("~")[0] == point]
        number = max(used, default=-1) + 1
        for _ in range(self._rng.choice((0, 0, 1))):
            faults.arm(self._faults, point, "skip", number)
            number += 1
        faults.arm(self._faults, point, kind, number)
        self._armed[f"{point} {kind}"] += 1

    def _waiting(self) -> bool:
        names = [path.name for path in self._faults.iterdir()]
        return any(not n.startswith("fired~") and not n.endswith("skip") for n in names)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--kills", type=int, default=300, help="stop after so many")
    options.add_argument("--seed", type=int, default=1, help="of the first query")
    arguments = options.parse_args()
    _context.set_forkserver_preload(["tests.lakehouse.lakes", "deltalake", "pyiceberg.table"])
    fired: Counter[str] = Counter()
    besides: Counter[str] = Counter()
    kills = queries = 0
    while kills < arguments.kills:
        with tempfile.TemporaryDirectory(prefix="dedup-lakehouse-") as folder:
            campaign = Campaign(Path(folder), arguments.seed + queries)
            wrong = campaign.run()
        queries += 1
        kills += campaign.kills
        fired += campaign.fired
        besides += campaign.besides
        seed = arguments.seed + queries - 1
        print(f"seed {seed}: {campaign.kills} kills: {wrong or 'every row once'}", flush=True)
        if wrong:
            return 1
    for place, number in sorted((fired + besides).items()):
        print(f"{number:6} {place}")
    print(f"{queries} queries, {kills} kills: every row once.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
