"""The metrics log: a file of JSON lines per query, append-only, rotated, of bounded size.

Every line is an object with ``format``, ``event``, ``at_ms`` (milliseconds since the epoch, by the
writer's clock), ``query_id``, ``run_id`` and ``name``:

======= ==========================================================================
event   what happened
======= ==========================================================================
started a run began; of a query's first one this is written with its first micro-batch
batch   a micro-batch is done; ``batch`` holds the fields of `BatchMetrics`
idle    the query lives and has nothing to do; now and then
ended   the run is over; ``error`` holds what ended it in one line, or null
======= ==========================================================================

A line that was cut short by a crash is passed over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from dedup.core.health import ENDED
from dedup.core.metrics import BatchMetrics
from dedup.core.watched import Watched
from dedup.errors import ConfigError

FORMAT = 1
SUFFIX = ".metrics.jsonl"
#: A query's log is at most so many files of this size.
FILES, FILE_BYTES = 4, 16 << 20
#: An idle query says so at most this often.
IDLE_EVERY_MS = 120_000
#: Of a log's end: some hundred micro-batches.
READ_BYTES = 1 << 20

logger = logging.getLogger("dedup")


class _Writer(RotatingFileHandler):
    """Says once that it cannot write, and harms nothing."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self.failed:
            self.failed = True
            logger.exception("the metrics log %s cannot be written", self.baseFilename)


class MetricsLog:
    """Writes the logs of all queries of a session into one folder.

    A query has a log from its first micro-batch on. Of others, such as queries without this
    operator, nothing is noted.

    Parameters
    ----------
    folder : path
        A local one; made if it is not there.
    files, file_bytes : int
        A query's log is at most so many files of about this size.

    Raises
    ------
    ConfigError
        When the folder cannot be made.
    """

    def __init__(
        self, folder: str | Path, *, files: int = FILES, file_bytes: int = FILE_BYTES
    ) -> None:
        self.folder = Path(folder)
        self._files, self._file_bytes = files, file_bytes
        self._writers: dict[str, _Writer] = {}
        #: When each query was last said to live.
        self._idle_ms: dict[str, int] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"log={str(folder)!r}: the metrics log cannot be written there ({error}); give a "
                "folder on this machine's disk"
            ) from error

    def batch(self, metrics: BatchMetrics, at_ms: int) -> None:
        """Note a micro-batch."""
        about = {"run_id": metrics.run_id, "name": metrics.query_name}
        if not self._path(metrics.query_id).exists():
            self._write(metrics.query_id, "started", at_ms, **about)
        self._write(metrics.query_id, "batch", at_ms, **about, batch=metrics.to_json())

    def started(self, query_id: str, run_id: str, at_ms: int) -> None:
        """Note that a run began."""
        if self._path(query_id).exists():
            self._idle_ms[query_id] = at_ms
            self._write(query_id, "started", at_ms, run_id=run_id, name=None)

    def idle(self, query_id: str, run_id: str, at_ms: int) -> None:
        """Note that a query lives, now and then."""
        due = at_ms - self._idle_ms.get(query_id, 0) >= IDLE_EVERY_MS
        if due and self._path(query_id).exists():
            self._idle_ms[query_id] = at_ms
            self._write(query_id, "idle", at_ms, run_id=run_id, name=None)

    def ended(self, query_id: str, run_id: str, error: str | None, at_ms: int) -> None:
        """Note the end of a run, and its cause."""
        if not self._path(query_id).exists():
            return
        self._write(query_id, "ended", at_ms, run_id=run_id, name=None, error=error)
        self._idle_ms.pop(query_id, None)
        with suppress(OSError):  # of a full disk, which was told already
            self._writers.pop(query_id).close()

    def _path(self, query_id: str) -> Path:
        return self.folder / (query_id + SUFFIX)

    def _write(self, query_id: str, event: str, at_ms: int, **fields: Any) -> None:
        if query_id not in self._writers:
            self._writers[query_id] = _Writer(
                self._path(query_id), maxBytes=self._file_bytes, backupCount=self._files - 1,
                encoding="utf-8", delay=True,
            )  # fmt: skip
        line = {"format": FORMAT, "event": event, "at_ms": at_ms, "query_id": query_id, **fields}
        text = json.dumps(line, separators=(",", ":"))
        self._writers[query_id].handle(
            logging.LogRecord("dedup.metrics", logging.INFO, "", 0, text, None, None)
        )


@dataclass
class QueryLog:
    """What the end of a query's log tells.

    Parameters
    ----------
    batches : list of (int, BatchMetrics)
        When each micro-batch was heard of, and what it did.
    heard_ms : int or None
        Last sign of life.
    ended : str or None
        Why the last run ended, None while it goes on.
    unreadable : int
        Lines that are no events of a metrics log.
    """

    query_id: str
    name: str | None = None
    batches: list[tuple[int, BatchMetrics]] = field(default_factory=list)
    heard_ms: int | None = None
    ended: str | None = None
    unreadable: int = 0

    def take(self, line: dict[str, Any]) -> None:
        """Take in one event; KeyError, TypeError or ValueError where it is none."""
        if line["format"] != FORMAT:
            raise ValueError(f"format {line['format']!r} is not {FORMAT}")
        event, at_ms = line["event"], int(line["at_ms"])
        if event == "batch":
            self.batches.append((at_ms, BatchMetrics.from_json(line["batch"])))
        self.heard_ms, self.name = at_ms, line["name"] or self.name
        self.ended = (line["error"] or ENDED) if event == "ended" else None

    def watched(self, now_ms: int) -> Watched:
        """The query at a moment, by the clock of who watches."""
        return Watched.of(
            self.query_id,
            self.name,
            self.batches,
            now_ms=now_ms,
            heard_ms=self.heard_ms,
            ended=self.ended,
            unreadable=self.unreadable,
        )


def read_logs(folder: str | Path) -> list[QueryLog]:
    """Read the end of every query's log in a folder.

    Raises
    ------
    ConfigError
        When the folder is not there.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is no folder of metrics logs: give what DedupListener(log=...) was given"
        )
    return [_read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]


def _read(path: Path) -> QueryLog:
    log = QueryLog(path.name.removesuffix(SUFFIX))
    for line in _last_lines(path):
        try:
            log.take(json.loads(line))
        except (KeyError, TypeError, ValueError):
            log.unreadable += 1
    return log


def _last_lines(path: Path) -> Iterator[bytes]:
    """Whole lines of a log's last bytes, from the file before as well where there is one."""
    data = b""
    for part in (path, path.with_name(path.name + ".1")):
        # It may be renamed just now.
        if len(data) < READ_BYTES:
            with suppress(FileNotFoundError):
                data = _end(part, READ_BYTES - len(data)) + data
    yield from (line for line in data.split(b"\n") if line)


def _end(path: Path, size_bytes: int) -> bytes:
    with open(path, "rb") as file:
        start = max(0, file.seek(0, 2) - size_bytes)
        file.seek(start)
        data = file.read(size_bytes)
    if start:
        data = data.partition(b"\n")[2]
    return data[: data.rfind(b"\n") + 1]
