"""The current run of each query in a session, for the metrics log and the exporter."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dedup.core.sequence_metrics import AnyMetrics
from dedup.sinks.figures import SinkMetrics
from dedup.tools.watch.health import HISTORY
from dedup.tools.watch.metrics_log import MetricsLog
from dedup.tools.watch.query_log import QueryLog
from dedup.tools.watch.series import MAX_QUERIES
from dedup.tools.watch.watched import Watched

if TYPE_CHECKING:
    from dedup.tools.watch.prometheus import Exporter


class Runs:
    """The state of every query in a session, safe to use from several threads.

    Spark reports the start of a run on the caller's thread, and all other events on a thread of
    its own. So a run's last micro-batches and its end may arrive after the next run has started.
    """

    def __init__(self, log: MetricsLog | None = None, exporter: Exporter | None = None) -> None:
        self._log, self._exporter = log, exporter
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, QueryLog] = OrderedDict()
        #: Run and micro-batch of each query whose sinks were counted last.
        self._counted: dict[str, tuple[str, int]] = {}
        #: The current and the previous run of each running query, of this operator or not.
        self._live: dict[str, tuple[str, str | None]] = {}

    def watched(self, now_ms: int) -> list[Watched]:
        with self._lock:
            return [
                query.watched(now_ms, alive=query.query_id in self._live)
                for query in self._queries.values()
            ]

    def sinks(self, name: str, run_id: str, sinks: Sequence[SinkMetrics]) -> bool:
        """Count the sinks of a micro-batch, or return False if they were counted before.

        `name` is the query's name or ID, and `run_id` is Spark's.
        """
        with self._lock:
            query_id, batch_id = sinks[0].query_id, sinks[0].batch_id
            last_run, last_batch_id = self._counted.get(query_id, ("", -1))
            if last_run == run_id and batch_id <= last_batch_id:
                return False
            self._counted[query_id] = run_id, batch_id
            if self._exporter is not None:
                self._exporter.sinks(name, sinks)
            return True

    def batch(self, metrics: AnyMetrics, at_ms: int, sinks: Sequence[SinkMetrics] = ()) -> bool:
        """Add a micro-batch, or return False if a listener has reported the micro-batch before."""
        with self._lock:
            query = self._queries.setdefault(metrics.query_id, QueryLog(metrics.query_id))
            if not query.batch(metrics, at_ms, sinks):
                return False
            # Make a new list, because the exporter may be reading the old one.
            query.batches = query.batches[-HISTORY:]
            self._queries.move_to_end(metrics.query_id)
            while len(self._queries) > MAX_QUERIES:
                self._queries.popitem(last=False)
            self._start(metrics.query_id, metrics.run_id, at_ms)
            if self._exporter is not None:
                self._exporter.batch(query)
            if self._log is not None:
                self._log.batch(metrics, at_ms, sinks)
            return True

    def started(self, query_id: str, run_id: str, at_ms: int) -> None:
        with self._lock:
            self._start(query_id, run_id, at_ms)

    def lives(self, query_id: str, run_id: str, at_ms: int) -> None:
        """Record that an idle query is alive."""
        with self._lock:
            if self._start(query_id, run_id, at_ms):
                self._tell("idle", query_id, run_id, at_ms)

    def ended(self, query_id: str, run_id: str, error: str | None, at_ms: int) -> None:
        with self._lock:
            live, before = self._live.get(query_id, (run_id, None))
            if live == run_id:
                self._live.pop(query_id, None)
                self._tell("ended", query_id, run_id, at_ms, error)
            elif run_id == before and error:
                query = self._queries.get(query_id)
                if not (query and query.has_done(live)):  # the failure is told after the next start
                    self._tell("ended", query_id, run_id, at_ms, error)
                    self._tell("started", query_id, live, at_ms)

    def _start(self, query_id: str, run_id: str, at_ms: int) -> bool:
        """Return whether the run is the current one, and record a start if the run is new."""
        live, before = self._live.get(query_id, (None, None))
        if run_id not in (live, before):
            self._live[query_id] = run_id, live
            self._tell("started", query_id, run_id, at_ms)
        return run_id != before

    def _tell(
        self, event: str, query_id: str, run_id: str, at_ms: int, error: str | None = None
    ) -> None:
        if query := self._queries.get(query_id):
            query.event(event, run_id, error, at_ms)
        if self._log is not None:
            self._log.event(event, query_id, run_id, at_ms, error)
