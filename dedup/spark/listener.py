"""`DedupListener`: typed metrics of every micro-batch, where the query runs."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from dedup.core.health import HISTORY
from dedup.core.metrics import BatchMetrics, check_together
from dedup.core.watched import Watched
from dedup.errors import StateError
from dedup.monitor.metrics_log import STOPPED, MetricsLog, QueryLog, cause_of
from dedup.monitor.series import MAX_QUERIES
from dedup.spark.metrics import from_progress

if TYPE_CHECKING:
    from dedup.monitor.prometheus import Exporter

logger = logging.getLogger("dedup")


class DedupListener(StreamingQueryListener):
    """Calls back with the `BatchMetrics` of every micro-batch of every query in the session.

    Add it with ``spark.streams.addListener(DedupListener(log="metrics"))``.

    Parameters
    ----------
    on_batch : callable, optional
        Takes a BatchMetrics; called on Spark's listener thread, so keep it short. An exception
        in it is logged and goes no further. Default: log a line to the ``dedup`` logger.
    metrics : str
        The operator's `metrics` option.
    log : path, optional
        Folder on the driver's disk for the metrics log (`dedup.monitor.metrics_log`), which
        ``dedup watch`` reads. It is rotated and never grows beyond 64 MiB a query.
    prometheus_port : int, optional
        Serve the metrics under ``http://<driver>:<port>/metrics`` (needs ``dedup[metrics]``);
        0: any free port, which the attribute `prometheus_port` then tells.

    Raises
    ------
    ConfigError
        When the folder of the log cannot be made, or the port is taken.
    MissingExtraError
        When the port is given and prometheus-client is not installed.
    """

    def __init__(
        self,
        on_batch: Callable[[BatchMetrics], Any] | None = None,
        *,
        metrics: str = "dedup",
        log: str | Path | None = None,
        prometheus_port: int | None = None,
    ) -> None:
        self.on_batch = on_batch or log_batch
        self.metrics = metrics
        self.log = None if log is None else MetricsLog(log)
        # A start is told of by the thread that starts the query, all else by Spark's.
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, QueryLog] = OrderedDict()
        self._runs: dict[str, str] = {}
        self.exporter: Exporter | None = None
        self.prometheus_port = prometheus_port
        if prometheus_port is not None:
            from dedup.monitor.prometheus import Exporter, serve

            self.exporter = Exporter()
            self.prometheus_port = serve(self.exporter, prometheus_port)

    def watched(self) -> list[Watched]:
        """Every query as it is now: its health, rates and sizes, as ``dedup watch`` shows them.

        ``listener.watched()[0].health.status`` is the verdict; `to_json` gives all of it.
        """
        now_ms = _now_ms()
        return [log.watched(now_ms) for log in list(self._logs.values())]

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Note that a known query runs again; one of ours shows by its first micro-batch."""
        self._lives(str(event.id), str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Hand on the micro-batch's metrics."""
        batch = from_progress(event.progress, self.metrics)
        if batch is None:
            return
        now_ms = _now_ms()
        try:
            check_together(batch)
        except StateError as error:
            logger.error("query %s: %s", batch.query_name or batch.query_id, error)
        with self._lock:
            self._remember(batch, now_ms)
            if self.exporter is not None:
                self.exporter.batch(batch, now_ms)
            if self.log is not None:
                self.log.batch(batch, now_ms)
        try:
            self.on_batch(batch)
        except Exception:
            logger.exception("the callback of DedupListener failed on batch %d", batch.batch_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Note that the query lives."""
        self._lives(str(event.id), str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note the end of the run."""
        now_ms = _now_ms()
        cause = cause_of(event.exception) if event.exception else None
        query_id, run_id = str(event.id), str(event.runId)
        with self._lock:
            # Spark may tell of it when the next run has begun.
            if query_id in self._logs and self._runs.get(query_id) == run_id:
                self._logs[query_id].ended = cause or STOPPED
            if self.exporter is not None:
                self.exporter.ended(query_id, run_id)
            if self.log is not None:
                self.log.ended(query_id, run_id, cause, now_ms)

    def _lives(self, query_id: str, run_id: str) -> None:
        now_ms = _now_ms()
        with self._lock:
            if query_id in self._logs:
                self._runs[query_id] = run_id
                self._logs[query_id].heard_ms, self._logs[query_id].ended = now_ms, None
            if self.exporter is not None:
                self.exporter.lives(query_id, run_id, now_ms)
            if self.log is not None:
                self.log.idle(query_id, run_id, now_ms)

    def _remember(self, batch: BatchMetrics, now_ms: int) -> None:
        log = self._logs.setdefault(batch.query_id, QueryLog(batch.query_id))
        log.batches = [*log.batches[1 - HISTORY :], (now_ms, batch)]
        log.name, log.heard_ms, log.ended = batch.query_name, now_ms, None
        self._runs[batch.query_id] = batch.run_id
        self._logs.move_to_end(batch.query_id)
        while len(self._logs) > MAX_QUERIES:
            self._runs.pop(self._logs.popitem(last=False)[0], None)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def log_batch(batch: BatchMetrics) -> None:
    """One line per micro-batch at INFO, with the numbers as `extra`."""
    logger.info(
        "batch %d: %d in, %d unique, %d duplicate, %d late, GC lag %s ms",
        batch.batch_id,
        batch.records_in,
        batch.unique,
        batch.duplicate,
        batch.late,
        batch.gc_lag_newest_ms,
        extra={"dedup": batch},
    )
