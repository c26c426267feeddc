"""Sinks into a real Redis: lost answers, late requests, frozen drivers, a full server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedup.testing.sinks import QUERY
from tests.redis.campaign import HARMS, writes
from tests.redis.server import Server, client_library
from tests.redis.sinks import ListedOrders, RedisHarness, orders, rows
from tests.support.needs import long
from tests.support.proxy import Harm, Proxy
from tests.support.sink_campaign import reported

EXACT = ["newest", "stream", "key"]


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as found:
        yield found


@pytest.fixture
def start(redis_server: Server, proxy: Proxy, tmp_path: Path) -> Any:
    """Starts the query over the server."""
    url = redis_server.url(proxy.port)
    return partial(RedisHarness, url=url, folder=tmp_path / "checkpoint")


def found(server: Server, kind: str) -> list[tuple[str, str]]:
    with server.client() as client:
        return [(order["order_id"], order["text"]) for order in orders(client, kind)]


def batch(sink: RedisHarness, run_id: str, batch_id: int, *numbers: int) -> None:
    """Run a micro-batch of one task, whose rows name it."""
    sink.finish([sink.send(run_id, batch_id, 0, iter([rows(numbers, f"b{batch_id}")]))])


@pytest.mark.parametrize(
    ("kind", "harm"),
    [(kind, harm) if kind == "stream" or harm is not Harm.LOSE_REPLY else long(kind, harm)
     for kind in EXACT for harm in HARMS],
)  # fmt: skip
def test_a_lost_reply_repeats_nothing(
    start: Any, proxy: Proxy, redis_server: Server, kind: str, harm: Harm
) -> None:
    sink = start(kind)
    batch(sink, "run1", 0, 0, 1)
    fault = proxy.strike(harm, writes)
    with pytest.raises(client_library().RedisError):
        batch(sink, "run1", 1, 2, 3)
    fault.wait()
    sink = start(kind)
    batch(sink, "run2", 1, 2, 3)
    assert sink.sink.rows_sent_again == 2
    if harm is Harm.HOLD:
        fault.release()
    batch(sink, "run2", 2, 4)
    sink.assert_once(5)


@pytest.mark.parametrize("harm", HARMS)
def test_without_keys_each_repetition_is_reported(
    start: Any, proxy: Proxy, redis_server: Server, tmp_path: Path, harm: Harm
) -> None:
    sink = start("list", reports=tmp_path / "reports")
    fault = proxy.strike(harm, writes)
    with pytest.raises(client_library().RedisError):
        batch(sink, "run1", 0, 0, 1)
    fault.wait()
    batch(start("list"), "run2", 0, 0, 1)
    if harm is Harm.HOLD:
        fault.release()
    copies = 1 if harm is Harm.CUT_BEFORE else 2
    assert dict(sink.numbers()) == {0: copies, 1: copies}
    assert reported(tmp_path / "reports") == {0: 1}


def test_a_late_request_of_a_frozen_driver_overwrites_nothing(
    start: Any, proxy: Proxy, redis_server: Server
) -> None:
    """Its successor has sent the micro-batch, and newer values of the same orders."""
    for kind in EXACT:
        sink = start(kind, name=kind)
        batch(sink, "run1", 0, 0, 1)
        fault = proxy.strike(Harm.HOLD, writes)
        with pytest.raises(client_library().RedisError):
            batch(sink, "run1", 1, 0, 1)
        fault.wait()
        sink = start(kind, name=kind)
        for batch_id in (1, 2):
            batch(sink, "run2", batch_id, 0, 1)
        before = found(redis_server, kind)
        assert fault.release(), "the server carries it out"
        assert found(redis_server, kind) == before, kind
        with redis_server.client() as client:
            client.flushall()


def test_rows_of_a_stream_keep_their_order(start: Any, redis_server: Server) -> None:
    sink = start("stream")
    sink.batch("run1", 0, [3, 1], [], [2])
    sink.batch("run1", 1, [0])
    assert [int(n) for n, _ in found(redis_server, "stream")] == [3, 1, 2, 0]


def test_a_stream_takes_no_row_behind_a_gap(
    start: Any, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would refuse the missing row later, because its ID is smaller."""
    sink = start("stream")
    batch(sink, "run1", 0, 0)
    entries: list[Any] = []
    library = client_library()

    class Spoilt(library.Redis):  # type: ignore[name-defined, misc]
        def eval(self, script: str, keys: int, *given: Any) -> Any:
            entries[:] = given
            second = [*given[:3], "no ID", *given[4:]]
            return super().eval(script, keys, *second)

    with monkeypatch.context() as patched:
        patched.setattr(library, "Redis", Spoilt)
        with pytest.raises(library.ResponseError, match="Invalid stream ID"):
            batch(sink, "run1", 1, 1, 2, 3)
    assert len(entries) == 7
    assert found(redis_server, "stream") == [("0", "b0"), ("1", "b1")]
    sink = start("stream")
    batch(sink, "run2", 1, 1, 2, 3)
    sink.assert_once(4)


def test_a_trimmed_stream_takes_no_old_row(start: Any, redis_server: Server) -> None:
    sink = start("stream")
    batch(sink, "run1", 0, 0, 1)
    with redis_server.client() as client:
        client.xtrim("orders", maxlen=0)
    sink.sink.send(rows([0, 1], "b0"), [f"{QUERY}/custom/0/0/{n}" for n in range(2)], range(2))
    assert found(redis_server, "stream") == []


@pytest.mark.parametrize("kind", [*EXACT, "list"])
def test_a_full_server_loses_nothing(start: Any, redis_server: Server, kind: str) -> None:
    sink = start(kind)
    batch(sink, "run1", 0, 0)
    with redis_server.client() as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(client_library().ResponseError, match="used memory > 'maxmemory'"):
                batch(sink, "run1", 1, 1, 2)
        finally:
            client.config_set("maxmemory", "0")
    sink = start(kind)
    batch(sink, "run2", 1, 1, 2)
    sink.assert_once(3)


def test_a_client_that_repeats_commands_hides_repetitions(
    redis_server: Server, proxy: Proxy
) -> None:
    """Therefore a sink without keys turns off the retries of its client."""
    library = client_library()
    for retries in (True, False):
        fault = proxy.strike(Harm.CUT_AFTER, writes)
        if retries:
            with library.Redis(port=proxy.port) as client:
                client.rpush("orders", "a")
        else:
            with pytest.raises(library.ConnectionError):
                ListedOrders(redis_server.url(proxy.port)).send(rows([0]), ["k"], [0])
        fault.wait()
    with redis_server.client() as client:
        assert client.llen("orders") == 2 + 1


def test_versions_above_2_to_the_53_are_compared_exactly(start: Any, redis_server: Server) -> None:
    """Lua's numbers lose digits above 2^53."""
    sink = start("newest")
    first = 1 << 62
    for version, text in ((first, "a"), (first + 1, "b"), (first, "a"), (9, "c")):
        sink.sink.send(rows([0], text), ["k"], [version])
    assert found(redis_server, "newest") == [("0", "b")]
