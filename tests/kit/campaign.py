"""Faults against a user's sink over SQLite, again and again, from a seed, without a Spark.

    python -m tests.kit.campaign --each 30 --seed 1

tests/support/sink_campaign.py has the faults. A process that is frozen inside a transaction locks
the whole database. The campaign wakes it once a start has failed because of the lock.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before `dedup.errors.faults` reads it
    os.environ["DEDUP_FAULTS"] = tempfile.mkdtemp(prefix="dedup-kit-faults-")

from dedup.sinks.work import TaskResult
from dedup.testing.custom_sinks import CustomSink
from tests.kit.sqlite_sink import SqliteSink, create, read, rows
from tests.support.sink_campaign import (
    WIDTH,
    Campaign,
    Round,
    Worker,
    run_campaign,
    transactional_steps,
)

MODES: dict[str, dict[str, str]] = {"driver": {}, "tasks": {"parallel": "true"}}
POINTS = transactional_steps()
_PATIENCE_S = 1.0


class ImpatientSqlite(SqliteSink):  # type: ignore[misc, valid-type]
    """Waits for a lock for a short time only."""

    def begin(self) -> sqlite3.Connection:
        """Open a transaction."""
        db = sqlite3.connect(self.path, timeout=_PATIENCE_S, isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        return db


def numbers_sink(path: str, folder: Path, parallel: bool) -> CustomSink:
    """Return the sink. Its class does not pickle by name, so each process makes its own."""
    sink: Any = ImpatientSqlite(path)
    sink.parallel = parallel
    return CustomSink(sink, rows, read, folder)


class KitCampaign(Campaign):
    """A query into a database of SQLite."""

    def __init__(self, seed: int, before: Counter[str]) -> None:
        super().__init__(seed, MODES, before)
        self._sink: partial[CustomSink]

    def run(self) -> Round:
        """Run it to its end and judge it."""
        with tempfile.TemporaryDirectory(prefix="dedup-kit-") as folder:
            path = f"{folder}/numbers.db"
            create(path)
            parallel = "parallel" in self.result.options
            self._sink = partial(numbers_sink, path, Path(folder, "checkpoint"), parallel)
            sink = self._sink()
            done = self.go()
            self.judge(Counter(range(done * WIDTH)), sink.numbers())
            return self.end()

    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""
        return transactional_steps(whole="parallel" not in self.result.options)

    def worker(self) -> Worker:
        """A new process, which waits for a locked database."""
        return Worker(self._sink, (sqlite3.OperationalError,))

    def run_tasks(self, batch_id: int, tasks: int) -> list[TaskResult] | None:
        """Wake frozen processes if the tasks failed, because one may hold the lock."""
        results = super().run_tasks(batch_id, tasks)
        if results is None:
            self._wake(all_of_them=True)
        return results

    def complete(self, batch_id: int, results: list[TaskResult]) -> bool:
        """Wake frozen processes likewise if the driver failed."""
        done = super().complete(batch_id, results)
        if not done:
            self._wake(all_of_them=True)
        return done


def main() -> int:
    return run_campaign(__doc__, POINTS, lambda *given: KitCampaign(*given).run())


if __name__ == "__main__":
    sys.exit(main())
