"""A write-ahead sink into a file of lines, and its harness."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812

from dedup import WriteAheadSink, custom_sink
from dedup.testing.sinks import QUERY, SinkHarness

SCHEMA = T.StructType([T.StructField("n", T.LongType()), T.StructField("text", T.StringType())])


class WriteAheadHarness(SinkHarness):
    """A write-ahead sink of rows ``(n bigint, text string)``; the folder is the checkpoint."""

    def __init__(
        self, sink: WriteAheadSink, folder: Path, *, query: str = QUERY, **options: str
    ) -> None:
        self.sink, self.query = sink, query
        given = {name.replace("_", "."): value for name, value in options.items()}
        self.function = custom_sink(sink, checkpoint=str(folder), options=given)
        self.work = self.function.prepare(SCHEMA)

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return batch_of(numbers)

    def inspected(self, checkpoint: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.function.inspect().to_json()["sinks"]
        return found


def batch_of(numbers: Sequence[int], text: str = "t") -> pa.RecordBatch:
    """Return rows of numbers."""
    columns = {"n": pa.array(numbers, pa.int64()), "text": pa.array([text] * len(numbers))}
    return pa.RecordBatch.from_pydict(columns)


class LineSink(WriteAheadSink):
    """A log file: one line for each row that was sent. Its reader may ignore repeated keys."""

    def __init__(self, path: Path, *, calls_left: int | None = None) -> None:
        self.path, self.calls_left = path, calls_left

    def send(self, rows: pa.RecordBatch, keys: Sequence[str], versions: Sequence[int]) -> None:
        if self.calls_left is not None:
            if not self.calls_left:
                raise ConnectionError("the log is away")
            self.calls_left -= 1
        with open(self.path, "a") as log:
            for row, key, version in zip(rows.to_pylist(), keys, versions, strict=True):
                log.write(json.dumps({**row, "key": key, "version": version}) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """Return every row that was sent, with key and version."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]


class LineHarness(WriteAheadHarness):
    """The harness of a log file, whose reader ignores repeated keys."""

    def __init__(
        self, path: Path, folder: Path, *, calls_left: int | None = None, **options: str
    ) -> None:
        self.log = LineSink(path, calls_left=calls_left)
        super().__init__(self.log, folder, **options)

    def numbers(self) -> Counter[int]:
        by_key = {line["key"]: line["n"] for line in self.log.lines()}
        return Counter(by_key.values())
