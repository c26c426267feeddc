"""What is known of one query: its micro-batches, and whether a run of it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dedup.core.metrics import BatchMetrics
from dedup.monitor.health import ENDED
from dedup.monitor.metrics_log import FORMAT
from dedup.monitor.watched import Watched


@dataclass
class QueryLog:
    """What is known of a query by what was told of it, from a log's end or as it happens.

    Parameters
    ----------
    batches : list of (int, BatchMetrics)
        When each micro-batch was heard of, and what it did.
    heard_ms : int or None
        Last sign of life.
    ended : str or None
        Why the last run ended, None where that is past: a failure is until a later run has done a
        micro-batch or waits for input. That one was started again proves nothing.
    running : bool
        Whether a run goes on.
    ended_run : str or None
        Which run that was.
    failures : int
        How many runs have failed since.
    unreadable : int
        Lines that are no events of a metrics log.
    """

    query_id: str
    name: str | None = None
    batches: list[tuple[int, BatchMetrics]] = field(default_factory=list)
    heard_ms: int | None = None
    ended: str | None = None
    ended_run: str | None = None
    running: bool = False
    failures: int = 0
    unreadable: int = 0

    def batch(self, metrics: BatchMetrics, at_ms: int) -> bool:
        """Take in a micro-batch; False: it was told already, as two listeners do."""
        known = (one.batch_id for _, one in reversed(self.batches) if one.run_id == metrics.run_id)
        # Within a run numbers rise.
        if metrics.batch_id <= next(known, -1):
            return False
        self.batches.append((at_ms, metrics))
        self.name = metrics.query_name
        self.idle(at_ms)
        return True

    def has_done(self, run_id: str) -> bool:
        """Whether the newest micro-batch is that run's."""
        return bool(self.batches) and self.batches[-1][1].run_id == run_id

    def started(self, at_ms: int) -> None:
        """Take in that a run began."""
        self.heard_ms, self.running = at_ms, True
        if not self.failures:
            self.ended = None

    def idle(self, at_ms: int) -> None:
        """Take in that the query works, or waits for input."""
        self.heard_ms, self.running, self.ended, self.failures = at_ms, True, None, 0

    def over(self, run_id: str | None, error: str | None, at_ms: int) -> None:
        """Take in the end of a run, and why it failed if it did."""
        if not error:
            self.failures = 0
        elif self.ended is None or run_id != self.ended_run:  # else it is told twice
            self.failures += 1
        self.heard_ms, self.running = at_ms, False
        self.ended, self.ended_run = error or ENDED, run_id

    def take(self, line: dict[str, Any]) -> None:
        """Take in one line of a log; KeyError, TypeError or ValueError where it is none."""
        if line["format"] != FORMAT:
            raise ValueError(f"format {line['format']!r} is not {FORMAT}")
        event, at_ms = line["event"], int(line["at_ms"])
        if event == "batch":
            self.batch(BatchMetrics.from_json(line["batch"]), at_ms)
        elif event == "ended":
            self.over(line["run_id"], line["error"], at_ms)
        elif event == "started":
            self.started(at_ms)
        else:
            self.idle(at_ms)
        self.name = line["name"] or self.name

    def why(self) -> str | None:
        """Why the query does no work, in a line; None where it does."""
        told = self.ended
        if self.failures > 1:
            told = f"failed {self.failures} times in a row: {told}"
        if self.failures and self.running:
            told = f"{told}; started again, and no micro-batch is done since"
        return told

    def watched(self, now_ms: int, *, alive: bool = False) -> Watched:
        """The query at a moment, by the clock of who watches; `alive` as in `judge`."""
        return Watched.of(
            self.query_id,
            self.name,
            self.batches,
            now_ms=now_ms,
            heard_ms=self.heard_ms,
            ended=self.why(),
            alive=alive,
            unreadable=self.unreadable,
        )
