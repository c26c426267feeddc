"""Prometheus: what the micro-batches of a session told, at an address to be scraped."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dedup.core.metrics import BatchMetrics
from dedup.errors import ConfigError, MissingExtraError
from dedup.monitor.series import HEARD, LAST_BATCH, MAX_QUERIES, RUNNING, SERIES, values

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise MissingExtraError("metrics", "Serving metrics to Prometheus") from error

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


@dataclass
class _Query:
    last: BatchMetrics
    at_ms: int
    heard_ms: int = 0
    run_id: str = ""
    running: bool = True
    #: Of counters, by exported name and label value.
    totals: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))


class Exporter(Collector):
    """Every query's figures as metrics; safe to be fed and scraped by different threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, _Query] = OrderedDict()

    def batch(self, metrics: BatchMetrics, at_ms: int) -> None:
        """Take in a micro-batch."""
        with self._lock:
            name = _label(metrics)
            if name in self._queries and self._queries[name].last.query_id != metrics.query_id:
                del self._queries[name]  # another one had the name, and its counts are not ours
            query = self._queries.setdefault(name, _Query(metrics, at_ms))
            query.last, query.at_ms, query.heard_ms, query.running = metrics, at_ms, at_ms, True
            query.run_id = metrics.run_id
            for series in SERIES:
                if series.kind == "counter":
                    for label, value in values(series, metrics):
                        query.totals[series.exported, label] += value
            self._queries.move_to_end(name)
            while len(self._queries) > MAX_QUERIES:
                self._queries.popitem(last=False)

    def lives(self, query_id: str, run_id: str, at_ms: int) -> None:
        """Take in a sign of life of a query that may have nothing to do."""
        with self._lock:
            for query in self._queries.values():
                if query.last.query_id == query_id:
                    query.run_id, query.heard_ms, query.running = run_id, at_ms, True

    def ended(self, query_id: str, run_id: str) -> None:
        """Take in the end of a run, unless the query's next one has begun."""
        with self._lock:
            for query in self._queries.values():
                if query.last.query_id == query_id and query.run_id == run_id:
                    query.running = False

    def collect(self) -> Iterator[Metric]:
        """All metrics, as `prometheus_client` asks for them."""
        with self._lock:
            queries = [
                (query.last.query_name or name, query) for name, query in self._queries.items()
            ]
            for series in SERIES:
                make = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
                names = ["query", *([series.label] if series.label else [])]
                metric = make(series.exported, series.about, labels=names)
                for name, query in queries:
                    for label, value in values(series, query.last):
                        if series.kind == "counter":
                            value = query.totals[series.exported, label]
                        metric.add_metric([name, *([label] if series.label else [])], value)
                yield metric
            done, heard, running = (
                GaugeMetricFamily(name, about, labels=["query"])
                for name, about in (
                    (LAST_BATCH, "When a micro-batch was done."),
                    (HEARD, "When the query gave a sign of life."),
                    (RUNNING, "1 while the query runs."),
                )
            )
            for name, query in queries:
                done.add_metric([name], query.at_ms / 1000)
                heard.add_metric([name], query.heard_ms / 1000)
                running.add_metric([name], float(query.running))
            yield done
            yield heard
            yield running


def _label(metrics: BatchMetrics) -> str:
    return metrics.query_name or metrics.query_id


def serve(exporter: Exporter, port: int, address: str = "0.0.0.0") -> int:
    """Serve the metrics under ``/metrics`` from a thread of its own; return the port.

    Parameters
    ----------
    exporter : Exporter
    port : int
        0: any that is free.
    address : str
        Of the network interface; default all.

    Raises
    ------
    ConfigError
        When the address is taken, or is none.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    try:
        server, _ = start_http_server(port, address, registry)
    except OSError as error:
        raise ConfigError(
            f"prometheus_port={port}: metrics cannot be served there ({error}); give another port"
        ) from error
    return int(server.server_port)
