"""`live`: a running query in a notebook, or as lines of text."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
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

#: Time between two looks at a query, and longest time that the last look may take at exit.
_EVERY_S, _LAST_LOOK_S = 1.0, 5.0


def live(query: StreamingQuery) -> None:
    """Show the health and the last micro-batches of a query until it ends.

    The function returns at once. In a notebook, a panel below the cell follows the query.
    Elsewhere, a line is printed for each micro-batch, and one for the end of the query. The query
    needs no listener, may run on Spark Connect, and may set the option `metrics`. Stop it before
    its session: Spark says of a query without a session that it runs.

    Parameters
    ----------
    query : StreamingQuery
        Result of ``start()``. Its plan has `dedup_by_id` or `dedup_by_sequence`.
    """
    view = _View(query)
    if view.look():
        thread = threading.Thread(target=view.follow, name="dedup-live", daemon=True)
        thread.start()
        atexit.register(_show_the_end, query, thread)


def _show_the_end(query: StreamingQuery, thread: threading.Thread) -> None:
    """Let a program that waited for the query end only after the last look."""
    with suppress(Exception):
        if not query.isActive:
            thread.join(_LAST_LOOK_S)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class _View:
    """A query, what its progress has told, and what is shown of it."""

    def __init__(self, query: StreamingQuery) -> None:
        # After the end of the session nothing more can be asked.
        self.query, self.run_id = query, str(query.runId)
        self.log = QueryLog(str(query.id), query.name)
        self._last_progress: str | None = None
        self._panel: Any = None
        self._shown: dict[str, str] = {}

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
        self.log.event("idle" if runs else "ended", self.run_id, why, now_ms)
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
        name = watched.name or watched.query_id
        verdict = f"{name}: {watched.health.status}: {watched.health.reason}"
        if not _in_notebook():
            for text, values in (line_of(batch) for _, batch in batches):
                print(f"{name}: {text % values}", flush=True)
            if not self.log.running:
                print(verdict, flush=True)
            return
        from IPython.display import display

        shown = {"text/html": watched._repr_html_(), "text/plain": verdict}
        if self._panel is None:
            self._panel = display(shown, raw=True, display_id=True)
        elif shown != self._shown:  # a notebook keeps every message until somebody looks
            self._panel.update(shown, raw=True)
        self._shown = shown
