"""Faults against the sink over a real server, again and again, from a seed, without a Spark.

    python -m tests.postgres.campaign --each 30 --seed 1 --results tests/postgres/results/kills.json

Workers are processes that are kept and replaced, as Spark's are; one of them does the driver's
part. They are killed or frozen at named points (`dedup.faults`), attempts of a task run twice or at
the same time, frozen ones go on once their successor has won, the server crashes and comes back,
and commits are lost, cut off or late. A start of the query that fails is followed by another, with
a run ID of its own; now and then Spark forgets that a micro-batch was committed. In the end each
armed fault must have fired, and every row be there once, as its last micro-batch had it. Half of
the kills strike where fewest have struck so far.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg

if __name__ == "__main__":  # before `dedup.faults` looks for it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-postgres-faults-")

from dedup import faults
from dedup.errors import SinkError
from dedup.postgres.connections import forget_connections
from dedup.sinks.work import Answer, new_batch
from tests.faults.subject import stands_still
from tests.postgres.proxy import CommitProxy, Harm
from tests.postgres.server import Server, own_server
from tests.postgres.tables import QUERY, Sink, batch_of, run

MODES: tuple[dict[str, str], ...] = (
    {}, {"mode": "atomic"}, {"mode": "upsert", "key": "n"}, {"mode": "atomic", "key": "n"},
    {"quarantine": "refused"}, {"mode": "upsert", "key": "n", "quarantine": "refused"},
)  # fmt: skip
#: Points of a task in a mode that publishes slice by slice, of one that stages, of the driver.
TASK = (
    "postgres.task.begin", "postgres.own.before", "postgres.own.after", "postgres.begun",
    "postgres.rows.sent", "postgres.marker.before", "postgres.marker.after",
    "postgres.commit.before", "postgres.commit.after", "postgres.task.end",
)  # fmt: skip
STAGE = ("postgres.stage.before", "postgres.stage.after")
DRIVER = (
    "postgres.driver.before", "postgres.rows.moved", "postgres.driver.published",
    "postgres.driver.after",
)  # fmt: skip
POINTS = (*TASK, *STAGE, *DRIVER)
BATCHES, STEP, WIDTH = 8, 10, 30
#: What a query may never be refused with: these are refusals of what no fault has done.
_NEVER = ("gives other rows", "divided into", "older than the sink", "Markers of this sink",
          "has lost what it had committed")  # fmt: skip
_ATTEMPTS, _STARTS = 4, 40
_LONG_S = 60.0


class Worker:
    """A process that does the work of tasks, or of the driver, one after another."""

    def __init__(self, sink: Callable[[], Sink]) -> None:
        context = get_context("fork")
        self._ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, sink), daemon=True)
        self.process.start()
        theirs.close()

    def send(self, name: str, *arguments: Any) -> None:
        with suppress(OSError):
            self._ours.send((name, arguments))

    def answer(self) -> Any:
        """What it answers: the error that it met; None where it was killed or stands still."""
        deadline_s = time.monotonic() + _LONG_S
        while time.monotonic() < deadline_s:
            with suppress(EOFError, OSError):
                if self._ours.poll(0.01):
                    return pickle.loads(self._ours.recv())
            if not self.process.is_alive() or stands_still(self.process.pid or 0):
                return None
        raise AssertionError("a worker does not come back")


def _serve(pipe: Connection, sink: Callable[[], Sink]) -> None:
    while True:
        try:
            mine = sink()
            break
        except (SinkError, psycopg.OperationalError):  # the server is away
            time.sleep(0.05)
    with suppress(EOFError, OSError):
        while True:
            name, arguments = pipe.recv()
            try:
                found = getattr(mine, name)(*arguments)
            except Exception as error:
                found = error if isinstance(error, RuntimeError) else RuntimeError(str(error))
            pipe.send(pickle.dumps(found))


class CampaignSink(Sink):
    """A sink whose rows follow from micro-batch, slot and number of tasks."""

    def part(self, run_id: str, batch_id: int, slot: int, tasks: int) -> Answer:
        numbers = rows_of(batch_id)[slot::tasks]
        half = len(numbers) // 2
        rows = [batch_of(part, f"b{batch_id}") for part in (numbers[:half], numbers[half:])]
        return self.work.write(new_batch(QUERY, self.work.name, run_id, batch_id), slot, iter(rows))

    def finish(self, answers: list[Answer]) -> bool:
        self.work.complete(answers)
        return True


def rows_of(batch_id: int) -> list[int]:
    """The numbers of a micro-batch; where there is a key, micro-batches have some in common."""
    return list(range(batch_id * STEP, batch_id * STEP + WIDTH))


@dataclass
class Round:
    """What came of one query."""

    seed: int
    options: dict[str, str]
    armed: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    besides: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    rows: int = 0
    lost: int = 0
    duplicated: int = 0

    @property
    def kills(self) -> int:
        return sum(n for place, n in self.fired.items() if place.endswith(" kill"))

    @property
    def wrong(self) -> str:
        harm = f"{self.lost} lost, {self.duplicated} too many"
        return harm if self.lost or self.duplicated else ""

    @property
    def mode(self) -> str:
        key = ", key" if self.options.get("mode") == "atomic" and "key" in self.options else ""
        aside = ", quarantine" if "quarantine" in self.options else ""
        return self.options.get("mode", "append") + key + aside

    def to_json(self) -> dict[str, Any]:
        names = ("armed", "fired", "besides")
        counts = {name: dict(sorted(getattr(self, name).items())) for name in names}
        sums = {name: getattr(self, name) for name in ("starts", "rows", "lost", "duplicated")}
        return {"seed": self.seed, "mode": self.mode} | counts | sums

    @property
    def line(self) -> str:
        mode = self.mode
        left = self.armed - self.fired
        return (
            f"seed {self.seed}, {mode}: {self.kills} kills, {self.fired.total()} of "
            f"{self.armed.total()} faults fired, {dict(self.besides)}, {self.starts} starts: "
            f"{self.wrong or 'every row once'}" + (f"; not fired: {dict(left)}" if left else "")
        )

    @property
    def fine(self) -> bool:
        return not self.wrong and self.armed == self.fired


class Campaign:
    """A query over a server, whose processes are killed and frozen."""

    def __init__(self, server: Server, seed: int, before: Counter[str] | None = None) -> None:
        self._server, self._rng = server, random.Random(seed)
        #: Kills by point, of earlier rounds.
        self._before: Counter[str] = before or Counter()
        self._folder = Path(os.environ[faults.VARIABLE])
        for path in self._folder.iterdir():
            path.unlink()
        self.result = Round(seed, self._rng.choice(MODES))
        self._run_id = ""
        self._sink: Callable[[], CampaignSink]
        self._zombies: list[Worker] = []
        self._number = 0

    def run(self) -> Round:
        """Run it to its end and judge it."""
        database = f"c{self.result.seed}"
        run(self._server.dsn(), f"CREATE DATABASE {database}")
        with (
            CommitProxy(self._server.port) as proxy,
            tempfile.TemporaryDirectory(prefix="dedup-postgres-ledger-") as ledger,
        ):
            dsn = self._server.dsn(database).replace(str(self._server.port), str(proxy.port))
            table = self.result.options
            self._sink = lambda: CampaignSink(dsn, Path(ledger), **table)
            self._sink()
            if "quarantine" in table:
                run(self._server.dsn(database), "ALTER TABLE numbers ADD CHECK (n % 10 <> 3)")
            forget_connections()  # processes that are forked must have their own
            self._workers = [Worker(self._sink) for _ in range(2)]
            self._driver = Worker(self._sink)
            done = 0
            # What is armed waits for its visit.
            while done < BATCHES or (self._armed() and done < 2 * BATCHES):
                self._batch(done, proxy, calm=done >= BATCHES)
                done += 1
            self._wake(all_of_them=True)
            time.sleep(0.2)
            self._judge(self._server.dsn(database), done)
            for worker in (*self._workers, self._driver, *self._zombies):
                worker.process.kill()
        for point, kind, _ in faults.fired(self._folder):
            self.result.fired[f"{point} {kind}"] += 1
        return self.result

    def _batch(self, batch_id: int, proxy: CommitProxy, *, calm: bool = False) -> None:
        tasks, besides = self._rng.randint(1, 4), None
        if not calm:
            self._arm(self._place_to_kill(), "kill")
            if self._rng.random() < 0.3:
                self._arm(self._rng.choice(self._points()), "freeze")
            if self._rng.random() < 0.25:
                besides = self._rng.choice(list(Harm))
                proxy.arm(besides, after=self._rng.randint(0, 6))
        self._to_the_end(batch_id, tasks)
        if besides is not None:
            if proxy.struck.is_set():
                self.result.besides[besides.name.lower()] += 1
                if besides is Harm.HOLD:
                    proxy.release()
            proxy.disarm()
        if self._rng.random() < 0.25:  # Spark forgets that it was committed
            self.result.besides["replay"] += 1
            self._new_start()
            self._to_the_end(batch_id, tasks)
        self._wake()

    def _place_to_kill(self) -> str:
        points = self._points()
        if self._rng.random() < 0.5:
            return self._rng.choice(points)
        return min(points, key=lambda p: self._before[p] + self.result.armed[f"{p} kill"])

    def _points(self) -> tuple[str, ...]:
        atomic = self.result.options.get("mode") == "atomic"
        return (*STAGE, *DRIVER, "postgres.own.before") if atomic else POINTS

    def _to_the_end(self, batch_id: int, tasks: int) -> None:
        """Start the query until the micro-batch is done."""
        for _ in range(_STARTS):
            if not self._run_id or self._rng.random() < 0.1:
                self._new_start()
            with self._a_crash():
                answers = [self._slice(batch_id, slot, tasks) for slot in range(tasks)]
                if None not in answers:
                    self._driver.send("finish", answers)
                    if self._is_done(self._driver.answer()):
                        return
            if not self._lives(self._driver):
                self._replace_driver()
            self._new_start()
        raise AssertionError(f"micro-batch {batch_id} is never done")

    def _slice(self, batch_id: int, slot: int, tasks: int) -> Answer | None:
        """Attempts of a task, now and then two at a time, until one has ended well."""
        for _ in range(_ATTEMPTS):
            at_once = self._rng.sample(range(2), self._rng.choice((1, 1, 1, 2)))
            for number in at_once:
                self._workers[number].send("part", self._run_id, batch_id, slot, tasks)
            answers = [self._workers[number].answer() for number in at_once]
            for number in at_once:
                if not self._lives(self._workers[number]):
                    self._zombies.append(self._workers[number])
                    self._workers[number] = Worker(self._sink)
            for answer in answers:
                if self._is_done(answer):
                    return answer  # type: ignore[no-any-return]
        return None

    def _is_done(self, answer: Any) -> bool:
        if isinstance(answer, RuntimeError):
            if any(text in str(answer) for text in _NEVER):
                raise AssertionError(str(answer))
            return False
        return answer is not None

    def _new_start(self) -> None:
        self._number += 1
        self.result.starts += 1
        self._run_id = f"run{self._number}"

    def _replace_driver(self) -> None:
        self._zombies.append(self._driver)
        self._driver = Worker(self._sink)

    def _lives(self, worker: Worker) -> bool:
        return worker.process.is_alive() and not stands_still(worker.process.pid or 0)

    @contextmanager
    def _a_crash(self) -> Iterator[None]:
        """Now and then the server crashes, or restarts, within."""
        if self._rng.random() > 0.15:
            yield
            return

        def strike() -> None:
            time.sleep(pause_s)
            getattr(self._server, how)()
            if how == "crash":
                self._server.start()

        pause_s, how = self._rng.random() * 0.2, self._rng.choice(("crash", "restart"))
        thread = threading.Thread(target=strike)
        thread.start()
        yield
        thread.join()
        self.result.besides[f"server {how}"] += 1

    def _wake(self, *, all_of_them: bool = False) -> None:
        for worker in self._zombies:
            if worker.process.is_alive() and (all_of_them or self._rng.random() < 0.5):
                os.kill(worker.process.pid or 0, signal.SIGCONT)
                self.result.besides["woken"] += 1

    def _arm(self, point: str, kind: str) -> None:
        names = (p.name.removeprefix("fired~") for p in self._folder.iterdir())
        used = [int(name.split("~")[1]) for name in names if name.split("~")[0] == point]
        number = max(used, default=-1) + 1
        for _ in range(self._rng.choice((0, 0, 1, 3))):
            faults.arm(self._folder, point, "skip", number)
            number += 1
        faults.arm(self._folder, point, kind, number)
        self.result.armed[f"{point} {kind}"] += 1

    def _armed(self) -> list[str]:
        names = [p.name for p in self._folder.iterdir() if not p.name.startswith("fired~")]
        return [name for name in names if not name.endswith("skip")]

    def _judge(self, dsn: str, batches: int) -> None:
        expected: Counter[tuple[int, str]] = Counter()
        newest: dict[int, str] = {}
        for batch_id in range(batches):
            for n in rows_of(batch_id):
                expected[n, f"b{batch_id}"] += 1
                newest[n] = f"b{batch_id}"
        if self.result.options.get("key"):
            expected = Counter(newest.items())
        found = Counter((n, text) for n, text in run(dsn, "SELECT n, text FROM numbers"))
        if "quarantine" in self.result.options:
            everything = Counter((n, f"b{b}") for b in range(batches) for n in rows_of(b))
            taken = Counter({row: k for row, k in expected.items() if row[0] % 10 != 3})
            expected = taken + Counter(
                {row: k for row, k in everything.items() if row[0] % 10 == 3}
            )
            aside = run(dsn, "SELECT (record::json->>'n')::int, record::json->>'text' FROM refused")
            found += Counter((n, text) for n, text in aside)
        self.result.rows = expected.total()
        self.result.lost = (expected - found).total()
        self.result.duplicated = (found - expected).total()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--kills", type=int, default=0, help="at least so many in all")
    options.add_argument("--each", type=int, default=0, help="at least so many at each step")
    options.add_argument("--seed", type=int, default=1, help="of the first round")
    options.add_argument("--results", type=Path, help="file to keep the rounds in")
    arguments = options.parse_args()
    rounds: list[Round] = []
    kills: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="dedup-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = own_server(Path(folder, "data"))
        if isinstance(server, str):
            print(server)
            return 2
        with server:
            while kills.total() < arguments.kills or min(kills[p] for p in POINTS) < arguments.each:
                rounds.append(Campaign(server, arguments.seed + len(rounds), kills).run())
                kills += kills_of(rounds[-1])
                print(rounds[-1].line, flush=True)
                if arguments.results:
                    arguments.results.parent.mkdir(exist_ok=True)
                    told = [each.to_json() for each in rounds]
                    arguments.results.write_text(json.dumps(told, indent=1) + "\n")
                if not rounds[-1].fine:
                    return 1
    print(table(rounds))
    return 0


def kills_of(found: Round) -> Counter[str]:
    """The kills of a round by point."""
    places = {place.removesuffix(" kill"): n for place, n in found.fired.items()}
    return Counter({point: places[point] for point in POINTS if point in places})


def table(rounds: list[Round]) -> str:
    """All faults of some rounds, as a table of Markdown, and the sums."""
    armed: Counter[str] = sum((each.armed for each in rounds), Counter())
    fired: Counter[str] = sum((each.fired for each in rounds), Counter())
    besides: Counter[str] = sum((each.besides for each in rounds), Counter())
    lines = [
        "| where | kind | armed | fired | lost | duplicated |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind in ("kill", "freeze"):
        for point in POINTS:
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
        f"{sums['kills']:,} kills, {fired.total():,} faults at named steps, all of which fired; "
        + ", ".join(f"{what} {n}" for what, n in sorted(besides.items()))
        + f": {sums['lost']} lost, {sums['duplicated']} duplicated.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
