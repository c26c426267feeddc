"""The metrics log: one file of JSON lines per query, append-only, rotated, of bounded size.

README.md in this folder describes the lines.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
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


class _Writer(RotatingFileHandler):
    """Writes the log of one query. It reports the first failure to write, and never raises."""

    failed = False
    query_name: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._close_moved()
        except OSError:
            self.handleError(record)
            return
        super().emit(record)

    def _close_moved(self) -> None:
        """Close the file if somebody has moved or removed it. The next line opens a new file."""
        if self.stream is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.baseFilename), os.fstat(self.stream.fileno())):
                return
        moved, self.stream = self.stream, None
        moved.close()

    def _open(self) -> TextIOWrapper:
        os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
        torn = _is_torn(self.baseFilename)
        stream = super()._open()
        if torn:
            # A crash has truncated the last line. Without a line break the next line would join it.
            stream.write("\n")
        return stream

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self.failed:
            self.failed = True
            logger.exception("the metrics log %s cannot be written", self.baseFilename)


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
        self._writers: dict[str, _Writer] = {}
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
        self._writer(metrics.query_id).query_name = metrics.query_name
        self._write(batch_line(metrics, at_ms, sinks))

    def event(
        self, event: str, query_id: str, run_id: str, at_ms: int, error: str | None = None
    ) -> None:
        """Log the event ``started``, ``ended`` or, at most once every two minutes, ``idle``."""
        # A query may have a log that somebody has just removed.
        if query_id not in self._writers and not self._exists(query_id):
            return
        if event != "idle":
            # The next sign of life must be logged, because it ends a failure.
            self._idle_ms.pop(query_id, None)
        elif at_ms - self._idle_ms.get(query_id, 0) < IDLE_EVERY_MS:
            return
        else:
            self._idle_ms[query_id] = at_ms
        name = self._writer(query_id).query_name
        ended = {"error": error} if event == "ended" else {}
        self._write(new_line(event, at_ms, query_id, run_id, name, **ended))
        if ended:
            with suppress(OSError):  # a full disk, which the writer has reported
                self._writers.pop(query_id).close()

    def _path(self, query_id: str) -> Path:
        return self.folder / (query_id + SUFFIX)

    def _exists(self, query_id: str) -> bool:
        try:
            return self._path(query_id).stat().st_size > 0
        except OSError:
            # If we may not list the folder, the writer reports the error.
            return False

    def _writer(self, query_id: str) -> _Writer:
        if query_id not in self._writers:
            self._writers[query_id] = _Writer(
                self._path(query_id), maxBytes=self._file_bytes, backupCount=self._files - 1,
                encoding="utf-8", delay=True,
            )  # fmt: skip
        return self._writers[query_id]

    def _write(self, line: dict[str, Any]) -> None:
        query_id = line["query_id"]
        if line["event"] != "started" and not self._exists(query_id):
            names = ("at_ms", "query_id", "run_id", "name")
            self._write(new_line("started", *(line[name] for name in names)))
        text = json.dumps(line, separators=(",", ":"))
        record = logging.LogRecord("dedup.metrics", logging.INFO, "", 0, text, None, None)
        self._writer(query_id).handle(record)


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


def _is_torn(path: str) -> bool:
    if not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
