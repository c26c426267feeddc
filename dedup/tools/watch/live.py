"""`live`: a running query in a notebook, or as lines of text."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dedup.errors.cause import cause_of
from dedup.sinks.figures import figures_of
from dedup.spark.machine import wall_clock_ms
from dedup.spark.observations import metrics_of
from dedup.tools.watch.health import HISTORY, TimedBatch
from dedup.tools.watch.listener import line_of
from dedup.tools.watch.query_log import QueryLog
from dedup.tools.watch.watched import Watched

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: Time between two looks at a query.
_EVERY_S = 1.0


def live(query: StreamingQuery) -> None:
    """Show the health and the last micro-batches of a query until it ends.

    The function returns at once. In a notebook, a panel below the cell follows the query.
    Elsewhere, a line is printed for each micro-batch, and one for the end of the query. The query
    needs no listener, may run on Spark Connect, and may set the option `metrics`.

    Parameters
    ----------
    query : StreamingQuery
        Result of ``start()``. Its plan has `dedup_by_id` or `dedup_by_sequence`.
    """
    view = _View(query)
    if view.look():
        threading.Thread(target=view.follow, name="dedup-live", daemon=True).start()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class _View:
    """A query, what its progress has told, and what is shown of it."""

    def __init__(self, query: StreamingQuery) -> None:
        self.query = query
        self.log = QueryLog(str(query.id), query.name)
        self._last_progress: str | None = None
        self._panel: Any = None

    def follow(self) -> None:
        while self.look():
            time.sleep(_EVERY_S)

    def look(self) -> bool:
        """Show what is new, and return whether the query runs."""
        runs, batches = False, []
        try:
            # Ask first: the last micro-batch may end before the next line reads it.
            runs = self.query.isActive
            batches = self._read()
            failure: Exception | None = self.query.exception()
        except Exception as error:
            if not self.log.running:
                raise
            # The session has ended.
            runs, failure = False, error
        why = None if failure is None else cause_of(str(failure))
        now_ms = wall_clock_ms()
        self.log.event("idle" if runs else "ended", str(self.query.runId), why, now_ms)
        self._show(self.log.watched(now_ms, alive=runs), batches)
        return runs

    def _read(self) -> list[TimedBatch]:
        """Add the micro-batches since the last call to the log, and return them."""
        last, known = self.query.lastProgress, len(self.log.batches)
        if last is None or last["timestamp"] == self._last_progress:
            return []
        self._last_progress = last["timestamp"]
        for progress in self.query.recentProgress:
            if (batch := metrics_of(progress)) is not None:
                start_ms = round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)
                if self.log.batch(batch, start_ms + batch.batch_ms):
                    self.log.sinks += figures_of(batch.query_id, batch.batch_id)
        new = self.log.batches[known:]
        self.log.batches = self.log.batches[-HISTORY:]
        return new

    def _show(self, watched: Watched, batches: Sequence[TimedBatch]) -> None:
        if _in_notebook():
            from IPython.display import display

            if self._panel is None:
                self._panel = display(watched, display_id=True)
            else:
                self._panel.update(watched)
            return
        lines = [text % values for text, values in (line_of(batch) for _, batch in batches)]
        if not self.log.running:
            lines.append(f"{watched.health.status}: {watched.health.reason}")
        for line in lines:
            print(f"{watched.name or watched.query_id}: {line}", flush=True)
