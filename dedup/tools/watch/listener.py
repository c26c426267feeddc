"""`DedupListener`: typed metrics of every micro-batch, in the driver."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from dedup.core.metrics import BatchMetrics, Metrics
from dedup.core.sequence_metrics import SequenceMetrics
from dedup.errors import ConfigError, StateError
from dedup.errors.cause import cause_of
from dedup.sinks.figures import SinkMetrics, figures_of
from dedup.spark.machine import home_path, wall_clock_ms
from dedup.spark.observations import from_progress, sequences_from_progress
from dedup.storage.uri import scheme_of
from dedup.tools.watch.live_runs import Runs
from dedup.tools.watch.metrics_log import MetricsLog
from dedup.tools.watch.watched import Watched

logger = logging.getLogger("dedup")
#: Longest time that Python waits at exit for Spark to deliver its last events.
_LAST_EVENT_MS = 5_000
#: Line of the log for each kind of metrics, and the fields in it.
_LINES: dict[type[Metrics], tuple[str, tuple[str, ...]]] = {
    BatchMetrics: (
        "batch %d: %d in, %d unique, %d duplicate, %d late, GC lag %s ms",
        ("batch_id", "records_in", "unique", "duplicate", "late", "gc_lag_newest_ms"),
    ),
    SequenceMetrics: (
        "batch %d: %d in, %d accepted, %d duplicate, %d out of order, %d missing, %d producers",
        ("batch_id", "records_in", "accept", "duplicate", "gap", "missing", "producers"),
    ),
    SinkMetrics: (
        "batch %d, sink %s: %s rows, %s bytes, %s retries, %s fenced, %d undelivered, driver %d us",
        ("batch_id", "sink", "rows", "bytes", "retries", "fenced", "undelivered", "driver_us"),
    ),
}


class DedupListener(StreamingQueryListener):
    """Reports the `BatchMetrics` of every micro-batch of every query in the session.

    Add it with ``spark.streams.addListener(DedupListener(log="metrics"))``.

    Parameters
    ----------
    on_batch : callable, optional
        Called with a BatchMetrics on Spark's listener thread, so it should be fast. Its exceptions
        are logged. Default: log a line to the ``dedup`` logger.
    metrics : str
        The value of the option `metrics` of `dedup_by_id`. Both have the same default.
    on_sequences : callable, optional
        Called with the `SequenceMetrics` of `dedup_by_sequence`, like `on_batch`.
    sequence_metrics : str
        The value of the option `metrics` of `dedup_by_sequence`. It may equal `metrics`.
    on_sink : callable, optional
        Called with the `SinkMetrics` of each sink of this package in each micro-batch, of any
        query. The listener must run on the driver's machine, as the same user.
    log : path, optional
        Folder on the driver's disk for the metrics log (`dedup.tools.watch.metrics_log`), which
        ``dedup watch`` reads; ``~`` is the home folder. The log is rotated, and takes at most
        64 MiB per query.
    prometheus_port : int, optional
        Serve the metrics under ``http://<driver>:<port>/metrics``, and to ``dedup watch`` (needs
        ``dedup[metrics]``). 0 takes any free port, and the attribute `prometheus_port` names it.
    prometheus_address : str
        Name or IP address of the network interface that serves the metrics: ``"127.0.0.1"`` for
        this machine alone. Default: all interfaces, because Prometheus often runs on another
        machine. The metrics name queries and source partitions, and no password protects them.

    Raises
    ------
    ConfigError
        If the log is not a folder on this machine's disk or cannot be created, or if the port is
        invalid or taken, or the address does not belong to this machine.
    MissingExtraError
        If the port is given and prometheus-client is not installed.
    """

    def __init__(
        self,
        on_batch: Callable[[BatchMetrics], Any] | None = None,
        *,
        metrics: str = "dedup",
        on_sequences: Callable[[SequenceMetrics], Any] | None = None,
        sequence_metrics: str = "dedup_sequence",
        on_sink: Callable[[SinkMetrics], Any] | None = None,
        log: str | Path | None = None,
        prometheus_port: int | None = None,
        prometheus_address: str = "0.0.0.0",
    ) -> None:
        self.on_batch = on_batch or log_metrics
        self.metrics = metrics
        self.on_sequences = on_sequences or log_metrics
        self.sequence_metrics = sequence_metrics
        self.on_sink = on_sink or log_metrics
        written = None if log is None else MetricsLog(_local_folder(log))
        exporter = None
        self.prometheus_port = prometheus_port
        if prometheus_port is not None:
            from dedup.tools.watch.prometheus import Exporter, serve

            exporter = Exporter()
            self.prometheus_port = serve(exporter, prometheus_port, prometheus_address)
        self._runs = Runs(written, exporter)
        #: Runs whose fallbacks were logged.
        self._slow_runs: set[str] = set()
        atexit.register(self._leave)

    def __reduce__(self) -> NoReturn:
        # Only Spark Connect of PySpark 3.5 pickles a listener.
        raise ConfigError(
            "Spark Connect of PySpark 3.5 would run DedupListener in the server's process, from "
            "where it cannot report to this program. Use PySpark 4.0 or newer, or a classic "
            "session."
        )

    def _leave(self) -> None:
        """Remove the listener at exit. Otherwise Spark prints an error for every later event."""
        with suppress(Exception):
            if (spark := SparkSession.getActiveSession()) is not None:
                spark.streams.removeListener(self)
                # Spark may be delivering an event at this moment.
                spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_LAST_EVENT_MS)

    def watched(self) -> list[Watched]:
        """Return the health, rates and sizes of every query, as ``dedup watch`` shows them.

        ``listener.watched()[0].health.status`` is the verdict, and `to_json` returns all values.
        """
        return self._runs.watched(wall_clock_ms())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Record the start of a known query. The first micro-batch makes a new query known."""
        with _harmless("record a start"):
            self._runs.started(str(event.id), str(event.runId), wall_clock_ms())

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        batch = from_progress(event.progress, self.metrics) or sequences_from_progress(
            event.progress, self.sequence_metrics
        )
        sinks: list[SinkMetrics] = []
        with _harmless("report sinks"):
            sinks = self._sinks(event.progress)
        if batch is None:
            return
        try:
            batch.check_together()
        except StateError as error:
            logger.error("query %s: %s", batch.query_name or batch.query_id, error)
        is_new = True
        with _harmless(f"record micro-batch {batch.batch_id}"):
            is_new = self._runs.batch(batch, wall_clock_ms(), sinks)
        if not is_new:  # the listener was added twice
            return
        if batch.run_id not in self._slow_runs:
            for fallback in batch.fallbacks():
                self._slow_runs.add(batch.run_id)
                logger.warning(
                    "query %s is slower than it could be: in micro-batch %d %s. `dedup doctor` "
                    "shows what the executors lack.",
                    batch.query_name or batch.query_id, batch.batch_id, fallback,
                )  # fmt: skip
        if isinstance(batch, BatchMetrics) and batch.other_queries:
            logger.warning(
                "query %s starts with a new checkpoint, and its catalog also belongs to %d other "
                "queries with the same ID columns. If the checkpoint replaces a lost one, stop the "
                "query and make the checkpoint with `dedup catalog adopt` (see: dedup remedies "
                "lost-checkpoint).",
                batch.query_name or batch.query_id, batch.other_queries,
            )  # fmt: skip
        with _harmless(f"run the callback for micro-batch {batch.batch_id}"):
            if isinstance(batch, BatchMetrics):
                self.on_batch(batch)
            else:
                self.on_sequences(batch)

    def _sinks(self, progress: StreamingQueryProgress) -> list[SinkMetrics]:
        """Return the metrics of a micro-batch's sinks, and report them if they are new."""
        query_id = str(progress.id)
        sinks = figures_of(query_id, progress.batchId)
        if sinks and self._runs.sinks(progress.name or query_id, str(progress.runId), sinks):
            for sink in sinks:
                self.on_sink(sink)
        return sinks

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        with _harmless("record a sign of life"):
            self._runs.lives(str(event.id), str(event.runId), wall_clock_ms())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        cause = cause_of(event.exception) if event.exception else None
        with _harmless("record an end"):
            self._runs.ended(str(event.id), str(event.runId), cause, wall_clock_ms())


@contextmanager
def _harmless(what: str) -> Iterator[None]:
    """Log errors of the listener and of callbacks, which must not affect the query."""
    try:
        yield
    except Exception:
        logger.exception("DedupListener could not %s", what)


def _local_folder(log: object) -> Path:
    folder = os.fspath(log) if isinstance(log, (str, os.PathLike)) else None
    # Without this check Python would create a folder with the name of the URI.
    if not isinstance(folder, str) or not folder or scheme_of(folder) is not None:
        raise ConfigError(f"log={log!r} is not a folder on this machine's disk. Give a path.")
    return home_path(folder)


def log_metrics(metrics: Metrics) -> None:
    """Log one line per micro-batch, or per sink in it, at INFO, with the metrics as `extra`."""
    text, values = line_of(metrics)
    logger.info(text, *values, extra={"dedup": metrics})


def line_of(metrics: Metrics) -> tuple[str, tuple[Any, ...]]:
    """Return one line about a micro-batch, or a sink in it, as a format and its values."""
    text, fields = _LINES[type(metrics)]
    return text, tuple(getattr(metrics, name) for name in fields)
