"""The page on key-value stores runs, as a reader meets it, and Spark repeats a micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.test_kit_query import REPLAY
from tests.redis.server import Server
from tests.redis.sinks import orders
from tests.support.pages import ORDERS, TO_THE_END, snippets
from tests.support.processes import python


@pytest.mark.slow
def test_the_page_runs(redis_server: Server, tmp_path: Path) -> None:
    newest, query, stream = snippets("sinks/kit/KEY_VALUE_STORES.md")
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
