"""Sinks into Redis, with the two examples of the page, and their harness."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812

from dedup import WriteAheadSink, custom_sink
from dedup.testing.sinks import SinkHarness
from tests.redis.server import client_library
from tests.support.pages import snippets

NEWEST, _, STREAM = snippets("sinks/kit/KEY_VALUE_STORES.md")
SCHEMA = T.StructType([T.StructField(name, T.StringType()) for name in ("order_id", "text")])
_REPORT = re.compile(r"sends micro-batch (\d+) again: .* its (\d+) rows")


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


class RedisHarness(SinkHarness):
    """A sink of numbered orders; the folder is the checkpoint of the query.

    Warnings of the logger ``dedup`` go to the file `reports`.
    """

    def __init__(
        self, kind: str, url: str, folder: Path, *, reports: Path | None = None, **options: str
    ) -> None:
        self.kind, self.url = kind, url
        self.sink = sink_of(kind, url)
        given = {name.replace("_", "."): value for name, value in options.items()}
        self.function = custom_sink(self.sink, checkpoint=str(folder), options=given)
        self.work = self.function.prepare(SCHEMA)
        if reports is not None:
            logging.getLogger("dedup").addHandler(logging.FileHandler(reports))

    def rows(self, numbers: Sequence[int], text: str = "t") -> pa.RecordBatch:
        names = [str(n) for n in numbers]
        columns = {"order_id": pa.array(names, pa.string()), "text": [text] * len(names)}
        return pa.RecordBatch.from_pydict(columns)

    def numbers(self) -> Counter[int]:
        with client_library().Redis.from_url(self.url, decode_responses=True) as client:
            return Counter(int(order["order_id"]) for order in orders(client, self.kind))


def reported(reports: Path) -> Counter[int]:
    """Return how often each micro-batch was reported as sent again."""
    lines = reports.read_text().splitlines() if reports.exists() else []
    return Counter(int(match[1]) for line in lines if (match := _REPORT.search(line)))
