"""What an endpoint serves to `dedup watch`, what it shows of it, and which answers it refuses."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.errors import ConfigError
from dedup.tools.watch import prometheus as prometheus_module
from dedup.tools.watch.endpoint import PATH, Endpoint
from dedup.tools.watch.health import WINDOW, Status
from dedup.tools.watch.prometheus import Exporter, serve
from tests.support.batch_metrics import (
    HOUR_MS,
    QUERY,
    RUN,
    START_MS,
    Session,
    batch,
    samples,
    sequence_batch,
)

OK = b"HTTP/1.0 200 OK\r\n\r\n"
#: Of an exporter that has the prefix as well.
OTHERS = b'dedup_jobs{query="x"} 1\n'


@pytest.fixture
def session() -> Session:
    session = Session()
    session.url = f"http://127.0.0.1:{serve(session.exporter, 0, '127.0.0.1')}"
    return session


@pytest.fixture
def endpoint(session: Session) -> Endpoint:
    return Endpoint(session.url)


def test_micro_batches_are_served_and_read_back(session: Session) -> None:
    endpoint = Endpoint(session.url + "/metrics")
    sources = (('["a \\"b",1]', START_MS, False), ("p2", START_MS + 1, False), ("p3", 7, True))
    made = [
        batch(n, unique=100 * n, untimed=n, records_in=101 * n + 100, gc_source=sources[0][0],
              gc_shard=3, slowest_sources=sources)
        for n in range(1, 5)
    ]  # fmt: skip
    for one in made:
        session.batch(one, START_MS + one.batch_id)
    (watched,) = endpoint.look(START_MS + 10)
    assert watched.history == tuple((START_MS + n, one) for n, one in enumerate(made, 1))
    assert (watched.query_id, watched.name) == (QUERY, "orders")
    # The listener's view.
    assert [watched] == session.watched(START_MS + 10)


def test_numbered_records_are_served_and_read_back(session: Session, endpoint: Endpoint) -> None:
    session.batch(batch(0, query_id="ids"), START_MS)
    made = [sequence_batch(n, fenced=n, expired_before_ms=None) for n in range(3)]
    for n, one in enumerate(made):
        assert session.batch(one, START_MS + n)
        assert not session.batch(one, START_MS + n)
    watched = endpoint.look(START_MS + 10)
    assert watched == session.watched(START_MS + 10)
    assert {one.name: len(one.of_sequences) for one in watched} == {"orders": 0, "pumps": 3}
    (pumps,) = (one for one in watched if one.name == "pumps")
    assert [one for _, one in pumps.history] == made


def stalled(session: Session) -> None:
    for n in range(WINDOW + 2):
        session.now_ms = START_MS + 10_000 * n
        session.batch(batch(n, low_watermark_ms=5, gc_watermark_ms=5), session.now_ms)


def ended(session: Session) -> None:
    stalled(session)
    session.ended(QUERY, RUN, None, session.now_ms)


def idle_after_its_end(session: Session) -> None:
    ended(session)
    session.lives(QUERY, RUN, session.now_ms)


def in_a_micro_batch_of_an_hour(session: Session) -> None:
    """The driver answers, so its query lives."""
    stalled(session)
    session.now_ms += HOUR_MS


def between_two_runs(session: Session) -> None:
    for n in range(3):
        session.now_ms = START_MS + HOUR_MS * n
        session.batch(batch(n, run_id=f"run-{n}"), session.now_ms)
        session.ended(QUERY, f"run-{n}", None, session.now_ms)


def failing_again_and_again(session: Session) -> None:
    session.batch(batch(0), START_MS)
    for n in range(1, 4):
        session.ended(QUERY, RUN if n == 1 else f"run-{n - 1}", "boom", START_MS + n)
        session.started(QUERY, f"run-{n}", START_MS + n)


def working_after_failures(session: Session) -> None:
    failing_again_and_again(session)
    session.batch(batch(1, run_id="run-3"), START_MS + 9)


def with_a_shard_that_went_back(session: Session) -> None:
    for n in range(4):
        session.batch(batch(n, epochs_apart=3 * (n == 2)), START_MS + n)


@pytest.mark.parametrize(
    ("done", "status", "reason"),
    [(stalled, Status.STALLED, "the GC watermark stood while timestamps advanced by 00:01:30"),
     (ended, Status.STOPPED, "the run has ended"),
     (idle_after_its_end, Status.STALLED, "the GC watermark stood"),
     (in_a_micro_batch_of_an_hour, Status.STALLED, "the GC watermark stood"),
     (between_two_runs, Status.OK, "between two runs; "),
     (failing_again_and_again, Status.STOPPED, "the run has failed; the driver's log says why"),
     (working_after_failures, Status.OK, ""),
     (with_a_shard_that_went_back, Status.REWOUND, "in micro-batch 2 the state of a shard")],
)  # fmt: skip
def test_one_look_gives_the_verdict_of_the_driver(
    session: Session, done: Callable[[Session], None], status: Status, reason: str
) -> None:
    done(session)
    (watched,) = Endpoint(session.url).look(session.now_ms)
    assert watched.health.status is status
    assert watched.health.reason.startswith(reason)
    told = samples(session)
    assert {one for one in Status if told["dedup_query_status", ("orders", str(one))]} == {status}
    assert told["dedup_query_evidence_batches", ("orders",)] == watched.health.evidence
    failed = done is failing_again_and_again
    assert told["dedup_query_failed", ("orders",)] == failed
    assert told["dedup_query_running", ("orders",)] == (done not in (ended, between_two_runs))
    apart = 3 * (done is with_a_shard_that_went_back)
    assert told["dedup_shard_epochs_lost_total", ("orders",)] == apart


def test_a_checkpoint_that_adopted_the_catalog_is_not_rewound(
    session: Session, endpoint: Endpoint
) -> None:
    for n in range(3):
        session.batch(batch(40 + n), START_MS + n)
        endpoint.look(START_MS + n)
    for n in range(4):
        session.batch(batch(n, query_id="adopted", begins=n == 0), START_MS + 10 + n)
    # The endpoint was not read at its first micro-batch.
    (watched,) = endpoint.look(START_MS + 14)
    assert watched.health.status is Status.OK
    assert [one.begins for _, one in watched.batches] == [True, False, False, False]
    # Without a new checkpoint it is.
    session.batch(batch(2, query_id="adopted", run_id="again"), START_MS + 20)
    assert endpoint.look(START_MS + 20)[0].health.status is Status.REWOUND


def test_an_endpoint_that_does_not_answer_for_a_while_is_reported(
    session: Session, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.batch(batch(0), START_MS)
    endpoint.look(START_MS)
    assert endpoint.trouble is None
    with monkeypatch.context() as patched, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        patched.setattr(endpoint, "url", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        (watched,) = endpoint.look(START_MS + 10 * HOUR_MS)
    assert watched.health.reason == "silent for 10:00:00"
    assert endpoint.trouble is not None
    assert endpoint.trouble.startswith("no answer from http://127.0.0.1:")
    endpoint.look(START_MS)
    assert endpoint.trouble is None


def test_a_driver_that_restarted_and_shows_no_query_yet_is_reported(
    session: Session, endpoint: Endpoint
) -> None:
    session.batch(batch(0), START_MS)
    endpoint.look(START_MS)
    session.exporter._queries.clear()
    (watched,) = endpoint.look(START_MS)
    assert watched.name == "orders"
    assert endpoint.trouble is not None
    assert endpoint.trouble.startswith(f"{session.url}{PATH} no longer shows orders: ")
    session.batch(batch(1), START_MS + 1)
    endpoint.look(START_MS + 1)
    assert endpoint.trouble is None


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n", OK + OTHERS, OK + b"[" * 99_999, OK + b"[]"]
)
def test_answers_of_other_servers_are_rejected(answer: bytes) -> None:
    refuse(answer, "serves no metrics of dedup")


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


def test_the_command_watches_an_endpoint(session: Session) -> None:
    now_ms = time.time_ns() // 1_000_000
    session.batch(batch(0, newest_ms=now_ms), now_ms)
    told = CliRunner().invoke(app, ["watch", session.url, "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["queries"][0]["evidence"] == 1
    none = CliRunner().invoke(app, ["watch", session.url, "--json", "--query", "payments"])
    assert none.exit_code == 2
    with urllib.request.urlopen(session.url + "/metrics") as answer:
        assert "text/plain" in answer.headers["Content-Type"]


def test_a_port_or_address_that_cannot_be_used_is_rejected() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="serves no metrics of dedup"):
            Endpoint(f"http://127.0.0.1:{port}").look(0)
        taken.listen()
        with pytest.raises(ConfigError, match="Give another port"):
            serve(Exporter(), port, "127.0.0.1")
    with pytest.raises(ConfigError, match="prometheus_address="):
        serve(Exporter(), 0, "203.0.113.1")
    port = serve(Exporter(), 0, "localhost")
    assert urllib.request.urlopen(f"http://localhost:{port}/metrics").status == 200


def test_a_silent_connection_is_closed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prometheus_module._Handler.timeout is not None
    monkeypatch.setattr(prometheus_module._Handler, "timeout", 0.1)
    port = int(session.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
        assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [("at_ms", float("inf"), "at_ms cannot be inf"), ("at_ms", 10**30, "at_ms cannot be 1000"),
     ("run_id", 1, "run_id cannot be 1"), ("query_id", 7, "7 is not text"),
     ("lines", {"a": 1}, "'a' is not"), ("lines", [5], "5 is not"), ("lines", 5, "not iterable"),
     ("live_ids", float("nan"), "live_ids cannot be nan")],
)  # fmt: skip
def test_impossible_values_are_rejected(
    session: Session, field: str, value: object, why: str
) -> None:
    body = json.loads(answer(session))
    (query,) = body["queries"]
    line = query["lines"][0]
    next(part for part in (query, line, line["batch"]) if field in part)[field] = value
    refuse(OK + json.dumps(body).encode(), f"another release.*{why}")


def test_a_driver_of_another_release_is_refused(session: Session) -> None:
    older = answer(session).replace(b'"bucket_ms"', b'"bucket"')
    refuse(OK + older, "another release.*lacks bucket_ms")


def test_an_answer_that_is_cut_short_is_refused(session: Session) -> None:
    whole = answer(session)
    refuse(b"HTTP/1.0 200 OK\r\nContent-Length: 999999\r\n\r\n" + whole, "more expected")
    refuse(OK + whole[:-9], "not from DedupListener")


def answer(session: Session) -> bytes:
    """What an endpoint serves of one micro-batch."""
    session.batch(batch(0), START_MS)
    with urllib.request.urlopen(session.url + PATH) as response:
        assert response.headers["Content-Type"] == "application/json"
        body = response.read()
    assert isinstance(body, bytes)
    return body


@pytest.mark.parametrize("url", ["http://me:secret@host:9464", "http://me:se/cret@host"])
def test_a_password_in_the_url_is_rejected_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="the URL contains a user or a password") as caught:
        Endpoint(url)
    assert "cret" not in str(caught.value)
