"""The metrics of a run, for those who follow it: its log, and Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent

from dedup.cli.run.input.new_columns import Note
from dedup.cli.run.run_options import RunOptions
from dedup.tools.watch.listener import DedupListener

#: Spark tells of a query's end on a thread of its own.
_END_S = 5.0


class _Listener(DedupListener):
    """Also knows whether queries are running."""

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
def followed(spark: SparkSession, options: RunOptions, note: Note) -> Iterator[None]:
    """Let the run's query be followed.

    Raises
    ------
    ConfigError
        If the log's folder cannot be made, or the port is taken.
    MissingExtraError
        For a port, without prometheus-client.
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
