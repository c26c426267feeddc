"""Sinks into Redis, with the two examples of the page, and their harness."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.sinks import WriteAheadSink
from dedup.testing.custom_sinks import CustomSink
from tests.redis.server import client_library
from tests.support.pages import snippets
from tests.support.sink_campaign import keep_reports

NEWEST, _, STREAM, _ = snippets("sinks/kit/KEY_VALUE_STORES.md")


class KeyedOrders(WriteAheadSink):
    """One entry for each row, which the store ignores if it has the key."""

    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, rows: pa.RecordBatch, keys: Sequence[str], versions: Sequence[int]) -> None:
        with client_library().Redis.from_url(self.url) as client:
            pipe = client.pipeline(transaction=False)
            for order, key in zip(rows.to_pylist(), keys, strict=True):
                pipe.set(f"order:{key}", json.dumps(order), nx=True)
            pipe.execute()


class ListedOrders(WriteAheadSink):
    """A list without keys. Its client must not repeat a command on its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def send(self, rows: pa.RecordBatch, keys: Sequence[str], versions: Sequence[int]) -> None:
        with client_library().Redis.from_url(self.url, retry=None) as client:
            client.rpush("orders", *map(json.dumps, rows.to_pylist()))


def sink_of(kind: str, url: str) -> WriteAheadSink:
    """Return a sink by its kind."""
    if kind == "list":
        return ListedOrders(url)
    if kind == "key":
        return KeyedOrders(url)
    names: dict[str, Any] = {}
    exec(NEWEST, names)
    exec(STREAM, names)
    made: WriteAheadSink = names[{"newest": "NewestOrders", "stream": "OrderStream"}[kind]](url)
    return made


def orders(client: Any, kind: str) -> list[dict[str, str]]:
    """Return all orders that a plain reader finds."""
    if kind == "list":
        texts = client.lrange("orders", 0, -1)
    elif kind == "stream":
        texts = [fields["order"] for _, fields in client.xrange("orders")]
    elif kind == "newest":
        texts = [client.hget(key, "order") for key in client.scan_iter("order:*", count=1000)]
    else:
        texts = [client.get(key) for key in client.scan_iter("order:*", count=1000)]
    return [json.loads(text) for text in texts]


def rows(numbers: Sequence[int], text: str = "t") -> pa.RecordBatch:
    """Return orders that have some numbers."""
    columns = {"order_id": list(map(str, numbers)), "text": [text] * len(numbers)}
    return pa.RecordBatch.from_pydict(columns)


def read(kind: str, sink: Any) -> list[int]:
    """Return the numbers of all orders that a plain reader finds."""
    with client_library().Redis.from_url(sink.url, decode_responses=True) as client:
        return [int(order["order_id"]) for order in orders(client, kind)]


class RedisHarness(CustomSink):
    """A sink of numbered orders; the folder is the checkpoint of the query.

    Reports of rows that are sent again go to the file `reports`.
    """

    def __init__(
        self, kind: str, url: str, folder: Path, *, reports: Path | None = None, **options: str
    ) -> None:
        super().__init__(sink_of(kind, url), rows, partial(read, kind), folder, **options)
        if reports is not None:
            keep_reports(reports)
