"""Faults against the sinks over real tables, again and again, from a seed, without a Spark.

    python -m tests.lakehouse.campaign --each 30 --seed 1

Besides the faults of tests/support/sink_campaign.py, commits lose their answer, two drivers of a
query commit at the same time, other writers append in between, tables are compacted and their
history expires, and each start divides the rows among another number of tasks.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # before `dedup.errors.faults` looks for it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-lakehouse-faults-")

from dedup.sinks.lakehouse.options import DELTA
from dedup.sinks.work import TaskResult
from tests.lakehouse.lakes import FORMATS, Lake, Sink
from tests.support.sink_campaign import WIDTH, Campaign, Round, Worker, run_campaign, steps

POINTS = steps("lakehouse.")
#: First number that other writers add.
_THEIRS = 1_000_000


class LakeRows(Sink):
    """A sink into the table of a folder."""

    def __init__(self, format_name: str, folder: Path) -> None:
        super().__init__(Lake(format_name, folder / "lake"), folder / "checkpoint")


class LakeCampaign(Campaign):
    """A query into a table that others write and maintain as well."""

    # A table has one commit for each micro-batch, for any number of tasks.
    never = ("gives other rows", "older than the sink", "Markers of this sink",
             "could not be committed")  # fmt: skip

    def __init__(self, folder: Path, seed: int, before: Counter[str]) -> None:
        super().__init__(seed, {name: {} for name in FORMATS}, before)
        self._folder_of_tables, self._theirs = folder, 0
        self._lake = LakeRows(self.result.mode, folder).lake

    def run(self) -> Round:
        """Run it to its end and judge it."""
        done = self.go()
        theirs = range(_THEIRS, _THEIRS + self._theirs)
        self.judge(Counter([*range(done * WIDTH), *theirs]), self._lake.found())
        return self.end()

    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""
        return POINTS

    def worker(self) -> Worker:
        """A new process."""
        return Worker(partial(LakeRows, self.result.mode, self._folder_of_tables))

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield now and then a commit without an answer as well."""
        yield from super().faults()
        if self.rng.random() < 0.3:
            yield "lakehouse.commit.after", "raise"

    def tasks(self, tasks: int) -> int:
        """Return another number of tasks at each start."""
        return self.rng.randint(1, 3)

    def complete(self, batch_id: int, results: list[TaskResult]) -> bool:
        """Let two drivers commit at the same time now and then, each with its own tasks."""
        if self.rng.random() > 0.25:
            return super().complete(batch_id, results)
        others = self.run_tasks(batch_id, self.tasks(0))
        if others is None:
            return False
        self.result.besides["two drivers"] += 1
        second = self.worker()
        self.zombies.append(second)
        self.driver.send(Sink.finish, results)
        second.send(Sink.finish, others)
        done = [self.is_done(worker.answer()) for worker in (self.driver, second)]
        return any(done)

    @contextmanager
    def around_a_start(self) -> Iterator[None]:
        """Append a row as another writer now and then."""
        yield
        if self.rng.random() < 0.3:
            self._lake.add(_THEIRS + self._theirs)
            self._theirs += 1
            self.result.besides["other writer"] += 1

    def before_a_replay(self) -> None:
        """Compact the table, or let its history expire."""
        self.result.besides["upkeep"] += 1
        if self.result.mode == DELTA:
            from deltalake import DeltaTable

            with suppress(Exception):  # a commit came first
                DeltaTable(str(self._lake.folder / "numbers")).optimize.compact()
            DeltaTable(str(self._lake.folder / "numbers")).create_checkpoint()
            return
        table = self._lake.iceberg()
        last = table.current_snapshot()
        old = [s.snapshot_id for s in table.snapshots() if last and s != last]
        with suppress(Exception):
            table.maintenance.expire_snapshots().by_ids(old).commit()


def one_round(seed: int, before: Counter[str]) -> Round:
    with tempfile.TemporaryDirectory(prefix="dedup-lakehouse-") as folder:
        return LakeCampaign(Path(folder), seed, before).run()


if __name__ == "__main__":
    sys.exit(run_campaign(__doc__, POINTS, one_round))
