"""Faults against sinks of the kit, into SQLite and a file, again and again, from a seed.

    python -m tests.kit.campaign --each 30 --seed 31 --results tests/kit/results/kills.json

tests/support/sink_campaign.py has the faults. A process that is frozen inside a transaction locks
the whole database. The campaign wakes it once a start has failed because of the lock. The sinks
into a file have a write-ahead log. One reader of the file ignores repeated keys, and the other one
sees a row once, and at most once more for each report.
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
from tests.kit.line_sink import LineSink, read_each_key, read_each_line
from tests.kit.sqlite_sink import SqliteSink, create, read, rows
from tests.support.sink_campaign import (
    WIDTH,
    WRITE_AHEAD,
    Campaign,
    Round,
    Worker,
    keep_reports,
    reported,
    run_campaign,
    transactional_steps,
    without_reported,
)

MODES: dict[str, dict[str, str]] = {
    kind: {"kind": kind} for kind in ("driver", "tasks", "keys", "no keys")
}
_PATIENCE_S = 1.0


class ImpatientSqlite(SqliteSink):  # type: ignore[misc, valid-type]
    """Waits for a lock for a short time only."""

    def begin(self) -> sqlite3.Connection:
        """Open a transaction."""
        db = sqlite3.connect(self.path, timeout=_PATIENCE_S, isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        return db


def sink_of(kind: str, folder: Path) -> CustomSink:
    """Return the sink. Its class does not pickle by name, so each process makes its own."""
    if kind in ("driver", "tasks"):
        sink: Any = ImpatientSqlite(str(folder / "numbers.db"))
        create(sink.path)
        sink.parallel = kind == "tasks"
        return CustomSink(sink, rows, read, folder / "checkpoint")
    keep_reports(folder / "reports")
    read_lines = read_each_key if kind == "keys" else read_each_line
    return CustomSink(LineSink(folder / "numbers"), rows, read_lines, folder / "checkpoint")


class KitCampaign(Campaign):
    """A query into a database of SQLite, or into a file."""

    def __init__(self, seed: int, before: Counter[str]) -> None:
        super().__init__(seed, MODES, before)
        self._sink: partial[CustomSink]

    def run(self) -> Round:
        """Run it to its end and judge it."""
        with tempfile.TemporaryDirectory(prefix="dedup-kit-") as folder:
            self._sink = partial(sink_of, self.result.mode, Path(folder))
            done = self.go()
            expected, found = Counter(range(done * WIDTH)), self._sink().numbers()
            reports = reported(Path(folder, "reports"))
            self.result.besides["repeated rows"] += (found - expected).total()
            self.result.besides["reports"] += reports.total()
            if self.result.mode == "no keys":
                found = without_reported(found, expected, reports, lambda number: number // WIDTH)
            self.judge(expected, found)
            return self.end()

    def points(self) -> tuple[str, ...]:
        """Where faults are armed."""
        if self.result.mode in ("keys", "no keys"):
            return WRITE_AHEAD
        return transactional_steps(whole=self.result.mode == "driver")

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
    points = dict.fromkeys((*transactional_steps(), *WRITE_AHEAD))
    return run_campaign(__doc__, list(points), lambda *given: KitCampaign(*given).run())


if __name__ == "__main__":
    sys.exit(main())
