"""The page on key-value stores runs, Spark repeats a micro-batch, and `check_sink` passes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedup.sinks import WriteAheadSink
from dedup.testing import check_sink
from tests.kit.test_kit_query import REPLAY
from tests.redis.server import Server, client_library
from tests.redis.sinks import orders, read, rows, sink_of
from tests.support.pages import ORDERS, TO_THE_END, snippets
from tests.support.processes import python


@pytest.mark.slow
def test_the_page_runs(redis_server: Server, tmp_path: Path) -> None:
    newest, query, stream, _ = snippets("sinks/kit/KEY_VALUE_STORES.md")
    other = query.replace("NewestOrders", "OrderStream").replace("orders/", "stream/")
    program = "".join([
        ORDERS, newest, query, stream, other, TO_THE_END,
        REPLAY, REPLAY.replace("orders/", "stream/"), query, other, TO_THE_END,
    ])  # fmt: skip
    program = program.replace("localhost:6379", f"127.0.0.1:{redis_server.port}")
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for checkpoint in ("orders", "stream"):
        assert (tmp_path / checkpoint / "checkpoint/commits/0").exists(), "it was repeated"
    with redis_server.client() as client:
        newest_ids, stream_ids = (
            sorted(order["order_id"] for order in orders(client, kind))
            for kind in ("newest", "stream")
        )
    assert newest_ids == [f"o{n}" for n in range(6)]
    assert stream_ids == sorted([*newest_ids, "o3"])


@pytest.mark.slow
def test_the_test_of_the_page_passes(redis_server: Server) -> None:
    newest, _, _, test = snippets("sinks/kit/KEY_VALUE_STORES.md")
    names: dict[str, Any] = {"__name__": "the_page"}
    exec(f"{newest}\n{test}".replace("localhost:6379", f"127.0.0.1:{redis_server.port}"), names)
    names["test_readers_see_the_newest_order"]()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream", "key", "list"])
def test_sinks_of_the_other_kinds_pass_check_sink(redis_server: Server, kind: str) -> None:
    def new_sink() -> WriteAheadSink:
        with redis_server.client() as client:
            client.flushall()
        return sink_of(kind, redis_server.url())

    check_sink(
        new_sink, rows=rows, read=partial(read, kind),
        connection_error=client_library().ConnectionError,
        readers_see="repeats" if kind == "list" else "once", shared=kind != "stream",
    )  # fmt: skip
