"""What a running query has completed, collected for the progress line and the figures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dedup.cli.figures import Figures
from dedup.cli.progress import Reporter
from dedup.cli.run.input.bad_rows import METRIC
from dedup.core.metrics import BatchMetrics, check_together
from dedup.spark.driver.file_log import FileLog

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class RunProgress:
    """Collects a query's micro-batches and reports them."""

    def __init__(
        self, checkpoint: Path, listed: Iterable[str], goes_on: frozenset[str], reporter: Reporter
    ) -> None:
        self.reporter = reporter
        self._goes_on = goes_on
        self._log = FileLog(checkpoint)
        # Those of a micro-batch that was begun, but not committed, are done in this run.
        self._before = self._log.count(self._log.committed())
        self._total = len(self._log.ahead(listed))
        self._batches: dict[int, BatchMetrics] = {}
        self._done: set[int] = set()
        self._bad: dict[int, int] = {}
        self._files = 0
        self._start_s = time.monotonic()

    @property
    def figures(self) -> Figures:
        """Figures so far."""
        batches = [self._batches[key] for key in sorted(self._batches)]
        return Figures.of(
            batches,
            goes_on=self._goes_on,
            files=self._files,
            seconds=time.monotonic() - self._start_s,
            bad=sum(self._bad.values()),
        )

    def look(self, query: StreamingQuery) -> None:
        """Take in what the query has completed since the last look.

        Raises
        ------
        StateError
            When a shard went on from a state that is older than that of others.
        """
        from dedup.spark.observations import from_progress

        last = query.lastProgress
        if last is not None and last.batchId not in self._done:
            for progress in query.recentProgress:
                self._done.add(progress.batchId)
                bad = progress.observedMetrics.get(METRIC)
                if bad is not None:
                    self._bad[progress.batchId] = int(bad["rows"] or 0)
                metrics = from_progress(progress)
                if metrics is not None:
                    check_together(metrics)
                    self._batches[metrics.batch_id] = metrics
            self._files = self._files_done(query.lastProgress)
        self.reporter.update(self.figures, max(self._total, self._files))

    def _files_done(self, progress: Any) -> int:
        self._log.refresh()
        return max(0, self._log.count(_log_offset(progress)) - self._before)


def _log_offset(progress: Any) -> int:
    try:
        return int(json.loads(progress.sources[0].endOffset)["logOffset"])
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        return int(progress.batchId)
