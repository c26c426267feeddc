"""What is exported: parsed by Prometheus's own parser, by conventions, and read back."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import fields, replace

import pytest
from metrics_support import HOUR_MS, QUERY, RUN, START_MS, batch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_strictly
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.core.forecast import MAX_NAME, SLOWEST_SOURCES
from dedup.core.metrics import STAGES, BatchMetrics
from dedup.errors import ConfigError
from dedup.monitor import scrape
from dedup.monitor.health import WINDOW, Status
from dedup.monitor.live_runs import Runs
from dedup.monitor.prometheus import Exporter, serve
from dedup.monitor.scrape import Endpoint
from dedup.monitor.series import (
    LIFE,
    MAX_QUERIES,
    MAX_SOURCES,
    SERIES,
    SERIES_PER_QUERY,
    SOURCES,
    VERDICT,
)

#: Of an exporter that has the prefix as well.
OTHERS = b'dedup_jobs{query="x"} 1\n'


class Session(Runs):
    """What a listener with an endpoint is."""

    def __init__(self) -> None:
        #: The driver's clock.
        self.now_ms = START_MS
        self.exporter = Exporter(lambda: self.now_ms)
        super().__init__(exporter=self.exporter)


def samples(session: Session) -> dict[tuple[str, tuple[str, ...]], float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(session.exporter)
    told = [
        ((sample.name, (sample.labels.pop("query"), *sample.labels.values())), sample.value)
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]
    assert len(told) == len(dict(told)), "Prometheus refuses a series that comes twice"
    return dict(told)


def test_counters_add_up_and_gauges_are_the_last() -> None:
    session = Session()
    session.batch(batch(0, duplicate=100, live_ids=5), START_MS)
    session.batch(batch(1, duplicate=11, live_ids=7), START_MS + 1500)
    told = samples(session)
    assert told["dedup_records_total", ("orders", "duplicate")] == 111
    assert told["dedup_records_total", ("orders", "unique")] == 1800
    assert told["dedup_live_ids", ("orders",)] == 7
    assert told["dedup_batch_seconds_total", ("orders",)] == pytest.approx(1.6)
    assert told["dedup_stage_seconds_total", ("orders", "probe")] == pytest.approx(10e-6)
    assert told["dedup_filter_target_ratio", ("orders",)] == pytest.approx(0.01)
    assert told["dedup_expiring_bytes", ("orders", "3")] == 20
    newest_s = (START_MS + 10_000) / 1000
    assert told["dedup_newest_timestamp_seconds", ("orders",)] == pytest.approx(newest_s)
    assert told["dedup_gc_watermark_timestamp_seconds", ("orders",)] == newest_s - HOUR_MS / 1000
    assert told["dedup_last_batch_timestamp_seconds", ("orders",)] == START_MS / 1000 + 1.5
    assert told["dedup_query_running", ("orders",)] == 1


def test_what_is_unknown_is_not_exported() -> None:
    session = Session()
    session.batch(batch(0, gc_watermark_ms=None), START_MS)
    assert not [name for name, _ in samples(session) if "gc_watermark_timestamp" in name]


def test_a_query_that_ended_says_so_and_goes_on_later() -> None:
    session = Session()
    session.batch(batch(0), START_MS)
    session.ended("another", RUN, None, START_MS)
    session.ended(QUERY, "the run before", None, START_MS)
    assert samples(session)["dedup_query_running", ("orders",)] == 1
    session.ended(QUERY, RUN, None, START_MS)
    told = samples(session)
    assert told["dedup_query_running", ("orders",)] == told["dedup_query_failed", ("orders",)] == 0
    session.batch(batch(1), START_MS)
    assert samples(session)["dedup_query_running", ("orders",)] == 1
    session.ended(QUERY, RUN, "boom", START_MS)
    told = samples(session)
    assert told["dedup_query_running", ("orders",)] == 0
    assert told["dedup_query_failed", ("orders",)] == 1


def test_names_and_units_are_as_the_conventions_have_them() -> None:
    registry = CollectorRegistry(auto_describe=False)
    session = Session()
    session.batch(batch(0), START_MS)
    registry.register(session.exporter)
    families = list(parse_strictly(open_metrics(registry).decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) == len(SERIES) + len(LIFE) + len(VERDICT) + len(SOURCES)
    for family in families:
        assert re.fullmatch(r"dedup_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|us|millis|kib|mib|percent)(_|$)", family.name)
    counters = {f.name for f in families if f.type == "counter"}
    assert counters == {f"dedup_{s.name}" for s in SERIES if s.kind == "counter"}


def test_every_field_that_is_exported_is_one() -> None:
    known = {field.name for field in fields(BatchMetrics)}
    for series in SERIES:
        for field in series.fields.values():
            assert field.partition(".")[0] in known, field
        assert (series.label == "") == (set(series.fields) == {""}), series.name


def test_the_number_of_series_is_bounded() -> None:
    """No record ID or shard is a label, of source partitions there are few, and old queries go."""
    session = Session()
    sources = tuple((f"p{n}", n, False) for n in range(SLOWEST_SOURCES))
    for n in range(MAX_QUERIES + 20):
        session.batch(
            batch(0, query_id=f"q{n}", query_name=None, begins=True, slowest_sources=sources,
                  gc_source="p0"),
            START_MS,
        )  # fmt: skip
    told = samples(session)
    assert len(told) == MAX_QUERIES * SERIES_PER_QUERY
    queries = {labels[0] for _, labels in told}
    assert not queries & {"q0", "q19"}
    assert {"q20", f"q{MAX_QUERIES + 19}"} <= queries


def test_names_of_source_partitions_are_bounded_for_as_long_as_the_process_lives() -> None:
    session = Session()
    seen: set[str] = set()
    for n in range(MAX_SOURCES):
        sources = tuple((f"p{n}-{m}" * 100, n + m, m == 3) for m in range(4))
        session.batch(batch(n, slowest_sources=sources, gc_source=sources[0][0]), START_MS + n)
        told = samples(session)
        seen |= {labels[1] for name, labels in told if "source_partition" in name}
    assert len(seen) == MAX_SOURCES + 1
    assert max(len(name) for name in seen) == MAX_NAME
    # Of those without a name the slowest is told.
    clocks = {key[1][1:]: value for key, value in told.items() if "source_partition" in key[0]}
    assert clocks == {("other", "active"): n / 1000, ("other", "idle"): (n + 3) / 1000}
    assert told["dedup_low_watermark_holder_info", ("orders", "other")] == 1


def test_another_query_of_the_same_name_takes_its_place() -> None:
    session = Session()
    session.batch(batch(0), START_MS)
    session.batch(batch(0, query_id="another"), START_MS)
    assert samples(session)["dedup_records_total", ("orders", "unique")] == 900


@pytest.fixture
def served() -> tuple[Session, str]:
    session = Session()
    return session, f"http://127.0.0.1:{serve(session.exporter, 0, '127.0.0.1')}"


def test_it_is_served_and_read_back(served: tuple[Session, str]) -> None:
    session, url = served
    endpoint = Endpoint(url)
    sources = (('["a \\"b",1]', START_MS, False), ("p2", START_MS + 1, False), ("p3", 7, True))
    made = [
        batch(n, unique=100 * n, untimed=n, records_in=101 * n + 100, gc_source=sources[0][0],
              gc_shard=3, slowest_sources=sources)
        for n in range(1, 5)
    ]  # fmt: skip
    for one in made:
        session.batch(one, START_MS + one.batch_id)
        (watched,) = endpoint.look(START_MS + 10)
        # A second look at the same micro-batch adds nothing.
        endpoint.look(START_MS + 10)
    assert [at_ms for at_ms, _ in watched.batches] == [START_MS + n for n in range(1, 5)]
    # Nobody knows how much of the first count is its last micro-batch's.
    assert [one.unique for _, one in watched.batches] == [0, 200, 300, 400]
    assert [one.untimed for _, one in watched.batches] == [0, 2, 3, 4]
    last = made[-1]
    unknown = {
        "query_id", "run_id", "now_ms", "filter_state_bytes", "segments_written",
        "segments_merged", "segments_expired", "orphans_deleted", "views_built",
    }  # fmt: skip
    told = watched.batches[-1][1]
    assert replace(last, **{n: getattr(told, n) for n in unknown}) == told


def test_several_micro_batches_between_two_looks_count_as_several(
    served: tuple[Session, str],
) -> None:
    session, url = served
    endpoint = Endpoint(url)
    stages = dict.fromkeys(STAGES, 3000)
    for n in range(6):
        session.batch(batch(n, batch_ms=700 + 100 * n, stage_us=stages), START_MS + 10_000 * n)
        if n in (1, 5):
            (one,) = endpoint.look(START_MS + 10_000 * n)
    # The look before told of micro-batch 1; 2 to 5 took 0.9 to 1.2 s.
    assert one.pace().took_ms == one.pace().usual_ms == 1050
    assert one.pace().every_ms == pytest.approx(10_000, abs=300)
    assert one.batches[-1][1].stage_us == stages
    assert one.batches[-1][1].records_in == 4000, "counts are those of all"


def test_verdicts_come_from_an_endpoint_as_well(served: tuple[Session, str]) -> None:
    session, url = served
    endpoint = Endpoint(url + "/metrics")
    for n in range(WINDOW):
        at_ms = START_MS + 10_000 * n
        session.batch(batch(n, low_watermark_ms=5, gc_watermark_ms=5), at_ms)
        (watched,) = endpoint.look(at_ms)
    assert watched.health.status is Status.STALLED
    # A query without input gives signs of life.
    session.lives(QUERY, RUN, at_ms + 10**7)
    assert endpoint.look(at_ms + 10**7)[0].health.status is Status.STALLED
    session.ended(QUERY, RUN, None, START_MS)
    assert endpoint.look(at_ms)[0].health.status is Status.STOPPED
    session.lives(QUERY, RUN, at_ms)
    assert endpoint.look(at_ms)[0].health.status is Status.STALLED


def test_one_look_at_an_endpoint_is_enough_for_the_drivers_verdict(
    served: tuple[Session, str],
) -> None:
    session, url = served
    for n in range(WINDOW + 2):
        session.now_ms = START_MS + 10_000 * n
        session.batch(batch(n, low_watermark_ms=5, gc_watermark_ms=5), session.now_ms)
    told = samples(session)
    assert {status for status in Status if told["dedup_query_status", ("orders", str(status))]} == {
        Status.STALLED
    }
    assert told["dedup_query_evidence_batches", ("orders",)] == WINDOW
    (watched,) = Endpoint(url).look(session.now_ms)
    health = watched.health
    assert (health.status, health.evidence) == (Status.STALLED, WINDOW)
    assert health.reason == "its driver sees the GC watermark stand while timestamps advance"
    # A micro-batch of an hour: the driver answers, so its query lives.
    session.now_ms += HOUR_MS
    assert Endpoint(url).look(session.now_ms)[0].health.status is Status.STALLED


def test_a_query_that_fails_again_and_again_is_stopped_at_its_endpoint(
    served: tuple[Session, str],
) -> None:
    session, url = served
    session.batch(batch(0), START_MS)
    for n in range(1, 4):
        session.ended(QUERY, RUN if n == 1 else f"run-{n - 1}", "boom", START_MS + n)
        session.started(QUERY, f"run-{n}", START_MS + n)
        told = samples(session)
        assert told["dedup_query_failed", ("orders",)] == 1
        assert told["dedup_query_running", ("orders",)] == 1
        assert Endpoint(url).look(START_MS + n)[0].health.status is Status.STOPPED
    session.batch(batch(1, run_id="run-3"), START_MS + 9)
    assert samples(session)["dedup_query_failed", ("orders",)] == 0
    assert Endpoint(url).look(START_MS + 9)[0].health.status is Status.OK


def test_a_checkpoint_that_adopted_the_catalog_is_not_rewound(served: tuple[Session, str]) -> None:
    session, url = served
    endpoint = Endpoint(url)
    for n in range(3):
        session.batch(batch(40 + n), START_MS + n)
        (watched,) = endpoint.look(START_MS + n)
    assert not any(one.begins for _, one in watched.batches)
    # It is not scraped often enough to see the first micro-batch.
    for n in range(4):
        session.batch(batch(n, query_id="adopted", begins=n == 0), START_MS + 10 + n)
        if n > 1:
            (watched,) = endpoint.look(START_MS + 10 + n)
    assert watched.health.status is Status.OK
    assert [one.begins for _, one in watched.batches] == [False, False, False, True, False]
    # Without a new checkpoint it is.
    session.batch(batch(2, query_id="adopted", run_id="again"), START_MS + 20)
    assert endpoint.look(START_MS + 20)[0].health.status is Status.REWOUND


def test_a_scheduled_job_is_told_by_an_endpoint(served: tuple[Session, str]) -> None:
    session, url = served
    endpoint = Endpoint(url)
    for n in range(3):
        at_ms = START_MS + HOUR_MS * n
        session.batch(batch(n, run_id=f"run-{n}"), at_ms)
        session.ended(QUERY, f"run-{n}", None, at_ms)
        (watched,) = endpoint.look(at_ms)
        assert watched.health.status is (Status.OK if n else Status.STOPPED)
    assert watched.health.reason.startswith("between two runs; ")
    session.lives(QUERY, "run-3", at_ms + HOUR_MS)
    session.ended(QUERY, "run-3", "boom", at_ms + HOUR_MS)
    (watched,) = endpoint.look(at_ms + HOUR_MS)
    assert watched.health.status is Status.STOPPED
    assert watched.health.reason == "the run has failed; the driver's log says why"


def test_an_endpoint_that_gives_no_answer_for_a_while_is_said_so(
    served: tuple[Session, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, url = served
    endpoint = Endpoint(url)
    session.batch(batch(0), START_MS)
    endpoint.look(START_MS)
    assert endpoint.trouble is None
    with monkeypatch.context() as patched, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        patched.setattr(endpoint, "url", f"http://127.0.0.1:{deaf.getsockname()[1]}/metrics")
        (watched,) = endpoint.look(START_MS + 10 * HOUR_MS)
    assert watched.health.reason == "silent for 10:00:00"
    assert endpoint.trouble is not None
    assert endpoint.trouble.startswith("no answer from http://127.0.0.1:")
    endpoint.look(START_MS)
    assert endpoint.trouble is None


def test_a_driver_that_began_anew_knows_of_nothing_yet(served: tuple[Session, str]) -> None:
    session, url = served
    endpoint = Endpoint(url)
    session.batch(batch(0), START_MS)
    endpoint.look(START_MS)
    session.exporter._queries.clear()
    (watched,) = endpoint.look(START_MS)
    assert watched.name == "orders"
    assert endpoint.trouble is not None
    assert endpoint.trouble.startswith(f"{url}/metrics tells nothing of orders any more: ")
    session.batch(batch(1), START_MS + 1)
    endpoint.look(START_MS + 1)
    assert endpoint.trouble is None


def test_a_shard_that_went_back_is_counted_for_ever(served: tuple[Session, str]) -> None:
    session, url = served
    endpoint = Endpoint(url)
    for n in range(4):
        session.batch(batch(n, epochs_apart=3 * (n == 2)), START_MS + n)
        if n != 2:  # it is not scraped that often
            (watched,) = endpoint.look(START_MS + n)
    assert watched.health.status is Status.REWOUND
    assert samples(session)["dedup_shard_epochs_lost_total", ("orders",)] == 3
    # Who begins to watch after it sees it as well.
    assert Endpoint(url).look(START_MS)[0].health.status is Status.REWOUND


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.0 200 OK\r\n\r\n" + OTHERS])
def test_what_others_serve_is_refused(answer: bytes) -> None:
    refuse(answer, "gives no metrics of dedup")


def test_a_driver_of_another_release_is_refused(served: tuple[Session, str]) -> None:
    session, url = served
    session.batch(batch(0), START_MS)
    with urllib.request.urlopen(url + "/metrics") as answer:
        lines = answer.read().splitlines(keepends=True)
    older = [line for line in lines if b"dedup_bucket_seconds" not in line]
    assert len(lines) - len(older) == 3
    refuse(b"HTTP/1.0 200 OK\r\n\r\n" + b"".join(older), "another release.*bucket_ms")


def refuse(answer: bytes, why: str) -> None:
    """Watch an endpoint that gives this answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve_once() -> None:
            with server.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve_once)
        thread.start()
        with pytest.raises(ConfigError, match=why):
            Endpoint(url).look(0)
        thread.join()


def test_counts_that_begin_anew_are_no_negative_rate(served: tuple[Session, str]) -> None:
    session, url = served
    endpoint = Endpoint(url)
    session.batch(batch(0, unique=500), START_MS)
    endpoint.look(START_MS)
    session.exporter._queries.clear()
    session.batch(batch(1, unique=70), START_MS + 1)
    (watched,) = endpoint.look(START_MS + 1)
    assert watched.batches[-1][1].unique == 70


def test_the_command_watches_an_endpoint(served: tuple[Session, str]) -> None:
    session, url = served
    now_ms = time.time_ns() // 1_000_000
    session.batch(batch(0, newest_ms=now_ms), now_ms)
    told = CliRunner().invoke(app, ["watch", url, "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["queries"][0]["evidence"] == 1
    none = CliRunner().invoke(app, ["watch", url, "--json", "--query", "payments"])
    assert none.exit_code == 2
    with urllib.request.urlopen(url + "/metrics") as answer:
        assert "text/plain" in answer.headers["Content-Type"]


def test_what_is_no_endpoint_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="gives no metrics of dedup"):
            Endpoint(f"http://127.0.0.1:{port}").look(0)
        taken.listen()
        with pytest.raises(ConfigError, match="give another port"):
            serve(Exporter(), port, "127.0.0.1")


def metrics(url: str) -> bytes:
    with urllib.request.urlopen(url + "/metrics") as answer:
        told = answer.read()
    assert isinstance(told, bytes)
    return told


@pytest.mark.parametrize(
    ("series", "value", "why"),
    [
        (b"dedup_batch_id", b"+Inf", "dedup_batch_id is inf"),
        (b"dedup_last_batch_timestamp_seconds", b"+Inf", "timestamp_seconds is inf"),
        (b"dedup_live_ids", b"NaN", "dedup_live_ids is nan"),
        (b"dedup_last_batch_timestamp_seconds", b"1e308", "cannot convert float infinity"),
        (b"dedup_live_ids", b"1e300", "live_ids cannot be 1000"),
        (b"dedup_shards", b"0", "shards cannot be 0"),
    ],
)
def test_values_that_cannot_be_are_refused(
    served: tuple[Session, str], series: bytes, value: bytes, why: str
) -> None:
    session, url = served
    session.batch(batch(0), START_MS)
    line = rb'^(%s\{query="orders"\}) .*$' % series
    told, count = re.subn(line, rb"\1 " + value, metrics(url), flags=re.MULTILINE)
    assert count == 1
    refuse(b"HTTP/1.0 200 OK\r\n\r\n" + told, why)


def test_an_answer_that_is_cut_short_is_refused(served: tuple[Session, str]) -> None:
    session, url = served
    session.batch(batch(0), START_MS)
    head = b"HTTP/1.0 200 OK\r\nContent-Length: 999999\r\n\r\n"
    refuse(head + metrics(url), "more expected")


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "_ANSWER_BYTES", 1 << 20)
    refuse(b"HTTP/1.0 200 OK\r\n\r\n" + b"#" * (1 << 20) + b"\n", "longer than 1 MiB")


@pytest.mark.parametrize("head", [b"", b"HTTP/1.0 200 OK\r\nA: ", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_an_answer_that_drips_does_not_hold_who_watches(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "_ANSWER_S", 0.3)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with server.accept()[0] as connection, suppress(OSError):
                connection.sendall(head)
                while not over.wait(0.05):
                    connection.sendall(b"#")

        thread = threading.Thread(target=drip)
        thread.start()
        endpoint = Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}")
        try:
            for _ in range(2):  # the second look asks no second time
                with pytest.raises(ConfigError, match=r"its answer takes longer than 0\.3 s"):
                    endpoint.look(0)
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize("url", ["http://me:secret@host:9464", "http://me:se/cret@host"])
def test_a_password_is_refused_and_not_told(url: str) -> None:
    with pytest.raises(ConfigError, match="the URL holds a user or a password") as caught:
        Endpoint(url)
    assert "cret" not in str(caught.value)
