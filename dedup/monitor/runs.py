"""Which run of a query lives, and what was heard of it: decided here, told to log and exporter."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from dedup.core.health import ENDED, HISTORY
from dedup.core.metrics import BatchMetrics
from dedup.core.watched import Watched
from dedup.monitor.metrics_log import MetricsLog, QueryLog
from dedup.monitor.series import MAX_QUERIES

if TYPE_CHECKING:
    from dedup.monitor.prometheus import Exporter


class Runs:
    """Every query of a session as it is now; safe to be told and asked by different threads.

    Parameters
    ----------
    log : MetricsLog, optional
    exporter : Exporter, optional

    Notes
    -----
    Spark tells of a start from the thread that starts the query, of all else later and from its
    own: what the run before did, and its end, may be told when the next one has begun.
    """

    def __init__(self, log: MetricsLog | None = None, exporter: Exporter | None = None) -> None:
        self._log, self._exporter = log, exporter
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, QueryLog] = OrderedDict()
        #: Of each query that runs, with this operator or not: its run, and the one before.
        self._live: dict[str, tuple[str, str | None]] = {}

    def watched(self, now_ms: int) -> list[Watched]:
        """Every query at a moment."""
        with self._lock:
            return [query.watched(now_ms) for query in self._queries.values()]

    def batch(self, metrics: BatchMetrics, at_ms: int) -> None:
        """Take in a micro-batch."""
        with self._lock:
            query = self._queries.setdefault(metrics.query_id, QueryLog(metrics.query_id))
            query.batches = [*query.batches[1 - HISTORY :], (at_ms, metrics)]
            query.name, query.heard_ms = metrics.query_name, at_ms
            self._queries.move_to_end(metrics.query_id)
            while len(self._queries) > MAX_QUERIES:
                self._queries.popitem(last=False)
            self._lives(metrics.query_id, metrics.run_id, at_ms)
            if self._exporter is not None:
                self._exporter.batch(query)
            if self._log is not None:
                self._log.batch(metrics, at_ms)

    def lives(self, query_id: str, run_id: str, at_ms: int) -> None:
        """Take in a start, or a sign of life of a query that may have nothing to do."""
        with self._lock:
            if self._lives(query_id, run_id, at_ms) and self._log is not None:
                self._log.idle(query_id, run_id, at_ms)

    def ended(self, query_id: str, run_id: str, error: str | None, at_ms: int) -> None:
        """Take in the end of a run, and why it failed if it did."""
        with self._lock:
            live, _ = self._live.get(query_id, (run_id, None))
            if live != run_id:
                return
            self._live.pop(query_id, None)
            if query := self._queries.get(query_id):
                query.heard_ms, query.ended = at_ms, error or ENDED
            if self._log is not None:
                self._log.ended(query_id, run_id, error, at_ms)

    def _lives(self, query_id: str, run_id: str, at_ms: int) -> bool:
        """Whether the run is the one that lives."""
        live, before = self._live.get(query_id, (None, None))
        if run_id == before:
            return False
        if run_id != live:
            self._live[query_id] = run_id, live
            if self._log is not None:
                self._log.started(query_id, run_id, at_ms)
        if query := self._queries.get(query_id):
            query.heard_ms, query.ended = at_ms, None
        return True
