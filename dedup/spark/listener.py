"""`DedupListener`: typed metrics of every micro-batch, where the query runs."""

from __future__ import annotations

import logging
import time
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

from dedup.core.metrics import BatchMetrics
from dedup.monitor.metrics_log import MetricsLog
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
        self.exporter: Exporter | None = None
        self.prometheus_port = prometheus_port
        if prometheus_port is not None:
            from dedup.monitor.prometheus import Exporter, serve

            self.exporter = Exporter()
            self.prometheus_port = serve(self.exporter, prometheus_port)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to do: whether it is a query of ours shows with its first micro-batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Hand on the micro-batch's metrics."""
        batch = from_progress(event.progress, self.metrics)
        if batch is None:
            return
        now_ms = time.time_ns() // 1_000_000
        if self.log is not None:
            self.log.batch(batch, now_ms)
        if self.exporter is not None:
            self.exporter.batch(batch, now_ms)
        try:
            self.on_batch(batch)
        except Exception:
            logger.exception("the callback of DedupListener failed on batch %d", batch.batch_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Note that the query lives."""
        if self.log is not None:
            self.log.idle(str(event.id), str(event.runId), time.time_ns() // 1_000_000)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Note the end of the run."""
        if self.log is not None:
            now_ms = time.time_ns() // 1_000_000
            self.log.ended(str(event.id), str(event.runId), event.exception, now_ms)
        if self.exporter is not None:
            self.exporter.ended(str(event.id))


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
