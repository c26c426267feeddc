"""Serve the metrics of all queries of a session over HTTP to Prometheus and `dedup watch`."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from dedup.core.forecast import MAX_NAME
from dedup.core.metrics import BatchMetrics
from dedup.core.sequence_metrics import AnyMetrics
from dedup.errors import ConfigError, MissingExtraError
from dedup.sinks.figures import SinkMetrics
from dedup.spark.machine import wall_clock_ms
from dedup.tools.watch import series as names
from dedup.tools.watch.endpoint import PATH
from dedup.tools.watch.health import ENDED, Status

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise MissingExtraError("metrics", "Serving metrics to Prometheus") from error

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client.metrics_core import Metric

    from dedup.tools.watch.query_log import QueryLog


@dataclass
class _Query:
    #: Log of the query, which `Runs` updates.
    log: QueryLog
    at_ms: int
    last: AnyMetrics
    run_begun_ms: int
    checkpoint_begun_ms: int | None = None
    #: Counters by exported name and label value.
    totals: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    @property
    def label(self) -> str:
        return self.last.query_name or self.last.query_id

    def gauges(self, now_ms: int) -> Iterator[tuple[str, list[str], float]]:
        """Yield name, labels and value of `QUERY_GAUGES`, without source partitions."""
        for name, at_ms in (
            ("last_batch", self.at_ms),
            ("last_heard", self.log.heard_ms),
            ("run_first_batch", self.run_begun_ms),
            ("checkpoint_first_batch", self.checkpoint_begun_ms),
        ):
            if at_ms is not None:
                yield f"{name}_timestamp_seconds", [], at_ms / 1000
        yield "query_running", [], float(self.log.running)
        yield "query_failed", [], float(self.log.ended not in (None, ENDED))
        # The listener of this process gets the end of every run, so a running query is alive.
        health = self.log.watched(now_ms, alive=self.log.running).health
        for status in Status:
            yield "query_status", [str(status)], float(status is health.status)
        yield "query_evidence_batches", [], health.evidence


class Exporter(Collector):
    """Collects the metrics of all queries, safe to use from several threads."""

    def __init__(self, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, _Query] = OrderedDict()
        self._sources: set[str] = set()
        #: Counters of sinks by query, then by exported name, sink and value of the label.
        self._sinks: OrderedDict[str, defaultdict[tuple[str, ...], float]] = OrderedDict()

    def sinks(self, query: str, sinks: Iterable[SinkMetrics]) -> None:
        """Count the sinks of a query's micro-batch. `query` is the query's name or ID."""
        with self._lock:
            totals = self._sinks.setdefault(query, defaultdict(float))
            self._sinks.move_to_end(query)
            while len(self._sinks) > names.MAX_QUERIES:
                self._sinks.popitem(last=False)
            for metrics in sinks:
                for series in names.SINK_SERIES:
                    for label, value in names.values(series, metrics):
                        totals[series.name, metrics.sink, label] += value

    def batch(self, log: QueryLog) -> None:
        """Count a query's newest micro-batch, and keep `log`, which the caller updates."""
        at_ms, metrics = log.batches[-1]
        with self._lock:
            query = self._queries.setdefault(
                log.query_id, _Query(log, at_ms, metrics, run_begun_ms=at_ms)
            )
            if query.last.run_id != metrics.run_id:
                query.run_begun_ms = at_ms
            if metrics.begins:
                query.checkpoint_begun_ms = at_ms
            query.log, query.at_ms, query.last = log, at_ms, metrics
            for series in names.series_of(metrics):
                if series.kind == "counter":
                    for label, value in names.values(series, metrics):
                        query.totals[series.exported, label] += value
            self._queries.move_to_end(log.query_id)
            for query_id, other in list(self._queries.items())[:-1]:
                # Drop an earlier query of the same name, because the counts would mix.
                if other.label == query.label or len(self._queries) > names.MAX_QUERIES:
                    del self._queries[query_id]

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            queries = list(self._queries.values())
            families = {series.name: _family(series) for series in names.FAMILIES}
            families |= {series.name: _family(series, "sink") for series in names.SINK_SERIES}
            for query in queries:
                for series in names.series_of(query.last):
                    for label, value in names.values(series, query.last):
                        if series.kind == "counter":
                            value = query.totals[series.exported, label]
                        labels = [query.label, label] if series.label else [query.label]
                        families[series.name].add_metric(labels, value)
            for name, totals in self._sinks.items():
                for (family, *labels), value in totals.items():
                    families[family].add_metric([name, *filter(None, labels)], value)
            yield from families.values()
            gauges = {
                name: GaugeMetricFamily(names.PREFIX + name, about, labels=["query", *labels])
                for name, (labels, about) in names.QUERY_GAUGES.items()
            }
            for query in queries:
                for name, labels, value in (
                    *query.gauges(self._now_ms()),
                    *self._sources_of(query),
                ):
                    gauges[name].add_metric([query.label, *labels], value)
            yield from gauges.values()

    def queries_json(self) -> bytes:
        """Return every query's last micro-batches for `dedup watch`."""
        with self._lock:
            logs = [query.log for query in self._queries.values()]
        return json.dumps({"queries": [log.to_json() for log in logs]}).encode()

    def _sources_of(self, query: _Query) -> Iterator[tuple[str, list[str], float]]:
        last = query.last
        if not isinstance(last, BatchMetrics):  # `dedup_by_sequence` reports no source partitions
            return
        if last.gc_source:
            yield "low_watermark_holder_info", [self._source(last.gc_source)], 1
        slowest: dict[tuple[str, str], int] = {}
        for name, time_ms, idle in last.slowest_sources:
            if name:  # the slowest partition is first, so `setdefault` keeps the slowest of a name
                slowest.setdefault((self._source(name), "idle" if idle else "active"), time_ms)
        for labels, time_ms in slowest.items():
            yield "source_partition_timestamp_seconds", [*labels], time_ms / 1000

    def _source(self, source: str) -> str:
        source = source[:MAX_NAME]
        if source not in self._sources and len(self._sources) >= names.MAX_SOURCES:
            return names.OTHER
        self._sources.add(source)
        return source


def _family(series: names.Series, *labels: str) -> CounterMetricFamily | GaugeMetricFamily:
    make = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    own = [series.label] if series.label else []
    return make(series.exported, series.about, labels=["query", *labels, *own])


def serve(exporter: Exporter, port: int, address: str = "0.0.0.0") -> int:
    """Serve ``/metrics`` and `PATH` in a thread, and return the port. Port 0 takes any free port.

    Raises ConfigError if the port is invalid or taken, or the address does not belong to this
    machine.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    try:
        server = _Server(address, port)
    except (OSError, OverflowError, TypeError, UnicodeError) as error:
        raise ConfigError(
            f"Metrics cannot be served at prometheus_address={address!r}, prometheus_port={port} "
            f"({error}). Give another port, or an address of this machine."
        ) from error
    server.set_app(_with_queries(exporter, make_wsgi_app(registry)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


class _Handler(WSGIRequestHandler):
    #: Seconds until a read or a write fails, so that a silent client does not hold a thread.
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log no requests."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: str, port: int) -> None:
        (self.address_family, _, _, _, where), *_ = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        super().__init__((str(where[0]), port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback if a client disconnects."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _with_queries(exporter: Exporter, metrics: WSGIApplication) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != PATH:
            return metrics(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [exporter.queries_json()]

    return answer
