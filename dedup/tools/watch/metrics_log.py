"""The metrics log: one file of JSON lines per query, append-only, rotated, of bounded size.

README.md in this folder describes the lines.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from dedup.core.metrics import BatchMetrics
from dedup.core.sequence_metrics import AnyMetrics, SequenceMetrics
from dedup.errors import ConfigError
from dedup.sinks.figures import SinkMetrics

FORMAT = 1
#: Events that carry metrics. The metrics are in a field with the name of the event.
BATCH, SEQUENCES = "batch", "sequences"
METRICS: dict[str, type[AnyMetrics]] = {BATCH: BatchMetrics, SEQUENCES: SequenceMetrics}
#: Field of these events with the metrics of sinks.
SINKS = "sinks"
SUFFIX = ".metrics.jsonl"
#: Largest number of files of a query's log, and their largest size.
FILES, FILE_BYTES = 4, 16 << 20
#: Time between two events of an idle query.
IDLE_EVERY_MS = 120_000

logger = logging.getLogger("dedup")


class MetricsLog:
    """Writes the logs of all queries of a session into one local folder.

    A query gets a log with its first micro-batch. Queries without this operator get no log. Raises
    ConfigError if the folder cannot be created.
    """

    def __init__(
        self, folder: str | Path, *, files: int = FILES, file_bytes: int = FILE_BYTES
    ) -> None:
        # The path is absolute, because the process may change its working directory.
        self.folder = Path(folder).absolute()
        self._files, self._file_bytes = files, file_bytes
        #: Name of each query that has not ended.
        self._names: dict[str, str | None] = {}
        #: IDs of these queries whose log cannot be written, which we report once.
        self._failed: set[str] = set()
        #: Time of each query's last event ``idle``.
        self._idle_ms: dict[str, int] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"log={str(folder)!r}: the metrics log cannot be written there ({error}). Give a "
                "folder on this machine's disk."
            ) from error

    def batch(self, metrics: AnyMetrics, at_ms: int, sinks: Sequence[SinkMetrics] = ()) -> None:
        self._names[metrics.query_id] = metrics.query_name
        self._write(batch_line(metrics, at_ms, sinks))

    def event(
        self, event: str, query_id: str, run_id: str, at_ms: int, error: str | None = None
    ) -> None:
        """Log the event ``started``, ``ended`` or, at most once every two minutes, ``idle``."""
        # A query may have a log that somebody has just removed.
        if query_id not in self._names and not self._exists(query_id):
            return
        if event != "idle":
            # The next sign of life must be logged, because it ends a failure.
            self._idle_ms.pop(query_id, None)
        elif at_ms - self._idle_ms.get(query_id, 0) < IDLE_EVERY_MS:
            return
        else:
            self._idle_ms[query_id] = at_ms
        name = self._names.setdefault(query_id, None)
        ended = {"error": error} if event == "ended" else {}
        self._write(new_line(event, at_ms, query_id, run_id, name, **ended))
        if ended:
            del self._names[query_id]
            self._failed.discard(query_id)

    def _path(self, query_id: str) -> Path:
        return self.folder / (query_id + SUFFIX)

    def _exists(self, query_id: str) -> bool:
        try:
            return self._path(query_id).stat().st_size > 0
        except OSError:
            # If we may not list the folder, `_write` reports the error.
            return False

    def _write(self, line: dict[str, Any]) -> None:
        query_id = line["query_id"]
        if line["event"] != "started" and not self._exists(query_id):
            names = ("at_ms", "query_id", "run_id", "name")
            self._write(new_line("started", *(line[name] for name in names)))
        path, data = self._path(query_id), json.dumps(line, separators=(",", ":")).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # A line feed follows the line, and one may precede it.
            self._make_room(path, len(data) + 2)
            _append(path, data)
        except OSError:
            if query_id not in self._failed:
                self._failed.add(query_id)
                logger.exception("the metrics log %s cannot be written", path)

    def _make_room(self, path: Path, size_bytes: int) -> None:
        """Rotate the files of a log if its current file has no room for a line of this size."""
        earlier = [path.with_name(f"{path.name}.{number}") for number in range(1, self._files)]
        with suppress(FileNotFoundError):
            if path.stat().st_size + size_bytes <= self._file_bytes:
                return
            for newer, older in reversed([*pairwise([path, *earlier])]):
                if newer.exists():
                    newer.replace(older)


def new_line(
    event: str, at_ms: int | None, query_id: str, run_id: str | None, name: str | None, **more: Any
) -> dict[str, Any]:
    fixed = {"format": FORMAT, "event": event, "at_ms": at_ms, "query_id": query_id}
    return {**fixed, "run_id": run_id, "name": name, **more}


def batch_line(
    metrics: AnyMetrics, at_ms: int, sinks: Sequence[SinkMetrics] = ()
) -> dict[str, Any]:
    event = BATCH if isinstance(metrics, BatchMetrics) else SEQUENCES
    more: dict[str, Any] = {event: metrics.to_json()}
    if sinks:
        more[SINKS] = [sink.to_json() for sink in sinks]
    return new_line(event, at_ms, metrics.query_id, metrics.run_id, metrics.query_name, **more)


def _append(path: Path, line: bytes) -> None:
    with open(path, "a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                # A crash has truncated the last line. Without a line break our line would join it.
                file.write(b"\n")
        file.write(line + b"\n")
