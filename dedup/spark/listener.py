"""`DedupListener`: typed metrics of every micro-batch, where the query runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from dedup.spark.metrics import BatchMetrics, from_progress

logger = logging.getLogger("dedup")


class DedupListener(StreamingQueryListener):
    """Calls back with the `BatchMetrics` of every micro-batch of every query in the session.

    Add it with ``spark.streams.addListener(DedupListener(print))``.

    Parameters
    ----------
    on_batch : callable, optional
        Takes a BatchMetrics; called on Spark's listener thread, so keep it short. An exception
        in it is logged and goes no further. Default: log a line to the ``dedup`` logger.
    metrics : str
        The operator's `metrics` option.
    """

    def __init__(
        self,
        on_batch: Callable[[BatchMetrics], Any] | None = None,
        *,
        metrics: str = "dedup",
    ) -> None:
        self.on_batch = on_batch or log_batch
        self.metrics = metrics

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Hand on the micro-batch's metrics."""
        batch = from_progress(event.progress, self.metrics)
        if batch is None:
            return
        try:
            self.on_batch(batch)
        except Exception:
            logger.exception("the callback of DedupListener failed on batch %d", batch.batch_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing to do."""


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
