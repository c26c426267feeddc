"""A write-ahead sink into a file of lines, and its harness."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from dedup.sinks import WriteAheadSink
from dedup.testing.custom_sinks import CustomSink
from dedup.testing.sinks import QUERY
from tests.kit.sqlite_sink import rows

#: The folder of the sink in its query's checkpoint.
FOLDER = Path("dedup-sinks/custom", QUERY)


class LineSink(WriteAheadSink):
    """A log file: one line for each row that was sent."""

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
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


def read_each_key(log: LineSink) -> list[int]:
    """Return the numbers that a reader sees who ignores repeated keys."""
    return list({line["key"]: line["n"] for line in log.lines()}.values())


def read_each_line(log: LineSink) -> list[int]:
    """Return the numbers that a reader sees who knows no keys."""
    return [line["n"] for line in log.lines()]


class NewestRows(WriteAheadSink):
    """A table of SQLite with the newest row of each key. Numbers n and n + 50 have the same key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE IF NOT EXISTS newest (key PRIMARY KEY, n, version)")

    def send(self, rows: pa.RecordBatch, keys: Sequence[str], versions: Sequence[int]) -> None:
        numbers = rows["n"].to_pylist()
        found = [(n % 50, n, version) for n, version in zip(numbers, versions, strict=True)]
        with closing(sqlite3.connect(self.path)) as db, db:
            db.executemany(
                "INSERT INTO newest VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "
                "SET n = excluded.n, version = excluded.version WHERE version < excluded.version",
                found,
            )


def read_newest(sink: NewestRows) -> list[int]:
    """Return the numbers in the table."""
    with closing(sqlite3.connect(sink.path)) as db:
        return [n for (n,) in db.execute("SELECT n FROM newest")]


def left(checkpoint: Path) -> list[str]:
    """Return the names of what is staged or decided."""
    folders = [checkpoint / FOLDER / name for name in ("staged", "manifests")]
    return [path.name for folder in folders if folder.is_dir() for path in folder.iterdir()]


class LineHarness(CustomSink):
    """The harness of a log file, whose reader ignores repeated keys."""

    def __init__(
        self, path: Path, folder: Path, *, calls_left: int | None = None, **options: str
    ) -> None:
        self.log = LineSink(path, calls_left=calls_left)
        super().__init__(self.log, rows, read_each_key, folder, **options)
