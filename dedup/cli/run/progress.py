"""Progress of a running query: figures for the progress line, and metrics for other programs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent
from pyspark.sql.streaming.query import StreamingQuery

from dedup.cli.figures import Figures
from dedup.cli.progress import Reporter
from dedup.cli.run.input.bad_rows import BAD, METRIC
from dedup.cli.run.options import RunOptions
from dedup.core.metrics import BatchMetrics, check_together
from dedup.sources.files.file_log import FileLog
from dedup.spark.observations import from_progress
from dedup.tools.watch.listener import DedupListener

#: Spark reports the end of a query on another thread, within this time.
_END_S = 5.0


class RunProgress:
    """Collects the micro-batches of a run's queries, and reports them."""

    def __init__(
        self, checkpoint: Path, listed: Iterable[str], emitted: frozenset[str], reporter: Reporter
    ) -> None:
        self.reporter = reporter
        self._emitted = emitted
        self._log = FileLog(checkpoint)
        # A micro-batch that was begun but not committed belongs to this run.
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
        return Figures.of(
            [self._batches[key] for key in sorted(self._batches)],
            emitted=self._emitted,
            files=self._files,
            seconds=time.monotonic() - self._start_s,
            bad=sum(self._bad.values()),
        )

    def look(self, query: StreamingQuery) -> None:
        """Collect the micro-batches that were completed since the last look.

        Raises StateError if a shard continued from an older state than the others.
        """
        last = query.lastProgress
        if last is not None and last.batchId not in self._done:
            for progress in query.recentProgress:
                self._done.add(progress.batchId)
                bad = progress.observedMetrics.get(METRIC)
                if bad is not None:
                    self._bad[progress.batchId] = int(bad[BAD] or 0)
                metrics = from_progress(progress)
                if metrics is not None:
                    check_together(metrics)
                    self._batches[metrics.batch_id] = metrics
            self._log.refresh()
            done = self._log.count(_log_offset(query.lastProgress))
            self._files = max(0, done - self._before)
        self.reporter.update(self.figures, max(self._total, self._files))


def _log_offset(progress: Any) -> int:
    try:
        return int(json.loads(progress.sources[0].endOffset)["logOffset"])
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        return int(progress.batchId)


class _Listener(DedupListener):
    """A listener that also knows whether queries are running."""

    def __init__(self, options: RunOptions) -> None:
        super().__init__(
            lambda batch: None,
            log=options.log,
            prometheus_port=options.prometheus_port,
            prometheus_address=options.prometheus_address,
        )
        self.at_rest = threading.Event()
        self.at_rest.set()
        self._running = set[str]()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._running.add(str(event.runId))
        self.at_rest.clear()
        super().onQueryStarted(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        super().onQueryTerminated(event)
        self._running.discard(str(event.runId))
        if not self._running:
            self.at_rest.set()


@contextmanager
def publish_metrics(
    spark: SparkSession, options: RunOptions, note: Callable[[str], None]
) -> Iterator[None]:
    """Write the metrics log of the run's queries, and serve Prometheus if a port is given.

    Raises ConfigError if the log's folder cannot be made or the port is taken, and
    MissingExtraError for a port without prometheus-client.
    """
    listener = _Listener(options)
    spark.streams.addListener(listener)
    try:
        if listener.prometheus_port is not None:
            address = options.prometheus_address
            host = f"[{address}]" if ":" in address else address
            note(f"Metrics are served at http://{host}:{listener.prometheus_port}/metrics")
        yield
    finally:
        listener.at_rest.wait(_END_S)
        spark.streams.removeListener(listener)
