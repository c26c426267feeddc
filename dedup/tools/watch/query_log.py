"""The log of one query, read from a metrics log: its micro-batches, and whether it runs.

Unreadable files and lines are reported, and do not affect other queries.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedup.core.metrics import BatchMetrics, fields_of
from dedup.core.sequence_metrics import AnyMetrics
from dedup.errors import ConfigError
from dedup.sinks.figures import SinkMetrics
from dedup.tools.watch.health import ENDED, HISTORY, WINDOW, TimedBatch, judge
from dedup.tools.watch.metrics_log import FORMAT, METRICS, SINKS, SUFFIX, batch_line, new_line
from dedup.tools.watch.watched import Watched
from dedup.values.parse import text

#: Reason that an endpoint gives for every failure, because the error's own text may hold data.
FAILED = "the run has failed; the driver's log says why"
#: Largest number of kept metrics of sinks.
_SINKS = 10 * WINDOW
#: Number of bytes read at the end of a log: some hundred micro-batches.
READ_BYTES = 1 << 20

#: Inode, size and modification time of a log's files.
_Version = tuple[tuple[int, int, int], ...]

logger = logging.getLogger("dedup")


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The fields of every line that are needed here."""

    format: int
    event: str
    at_ms: int
    run_id: str | None = None
    name: str | None = None
    error: str | None = None


@dataclass
class QueryLog:
    """The state of a query, from the end of its metrics log or from a listener."""

    query_id: str
    name: str | None = None
    batches: list[TimedBatch] = field(default_factory=list)
    #: Time of the last event.
    heard_ms: int | None = None
    #: Why the last run ended, or None if a later run works. A run works once it has done a
    #: micro-batch or waits for input.
    ended: str | None = None
    #: ID of the run that ended.
    ended_run: str | None = None
    #: Whether a run is active.
    running: bool = False
    #: Number of failed runs since the last micro-batch.
    failures: int = 0
    #: Number of lines that are not valid events.
    unreadable: int = 0
    #: Metrics of sinks in the last micro-batches, oldest first.
    sinks: list[SinkMetrics] = field(default_factory=list)

    def batch(self, metrics: AnyMetrics, at_ms: int, sinks: Sequence[SinkMetrics] = ()) -> bool:
        """Add a micro-batch, or return False if a listener has reported the micro-batch before."""
        numbers = (b.batch_id for _, b in reversed(self.batches) if b.run_id == metrics.run_id)
        # The numbers of micro-batches rise within a run.
        if metrics.batch_id <= next(numbers, -1):
            return False
        if self.batches and type(self.batches[-1].batch) is not type(metrics):
            # A query has one operator, so the earlier micro-batches belong to another query.
            self.batches = []
        self.batches.append(TimedBatch(at_ms, metrics))
        # Make a new list, because a reader may hold the old one.
        self.sinks = [*self.sinks, *sinks][-_SINKS:]
        self.name = metrics.query_name
        self.event("idle", None, None, at_ms)
        return True

    @property
    def of_ids(self) -> list[tuple[int, BatchMetrics]]:
        """The micro-batches if the query uses `dedup_by_id`, else an empty list."""
        return [(at_ms, one) for at_ms, one in self.batches if isinstance(one, BatchMetrics)]

    def has_done(self, run_id: str) -> bool:
        return bool(self.batches) and self.batches[-1].batch.run_id == run_id

    def event(self, event: str, run_id: str | None, error: str | None, at_ms: int) -> None:
        """Record that a run started or ended. Any other event means that the query works."""
        if event == "ended":
            if not error:
                self.failures = 0
            elif self.ended is None or run_id != self.ended_run:  # not counted yet
                self.failures += 1
            self.running, self.ended, self.ended_run = False, error or ENDED, run_id
        elif event == "started":
            self.running = True
            if not self.failures:
                self.ended = None
        else:
            # Reset failures first, because a concurrent reader must not see them without a reason.
            self.failures, self.running, self.ended = 0, True, None
        self.heard_ms = at_ms

    def take(self, value: Any) -> None:
        """Add one line of a log, or raise KeyError, TypeError or ValueError if it is invalid."""
        line = _Line(**fields_of(_Line, value))
        if line.format != FORMAT:
            raise ValueError(f"format {line.format!r} is not {FORMAT}")
        if line.event in METRICS:
            sinks = [SinkMetrics.from_json(entry) for entry in value.get(SINKS, ())]
            self.batch(METRICS[line.event].from_json(value[line.event]), line.at_ms, sinks)
        else:
            self.event(line.event, line.run_id, line.error, line.at_ms)
        self.name = line.name or self.name

    def why(self) -> str | None:
        """Return why the query does no work, in one line, or None if the query works."""
        reason = self.ended
        if self.failures > 1:
            reason = f"failed {self.failures} times in a row: {reason}"
        if self.failures and self.running:
            reason = f"{reason}; started again, no micro-batch since"
        return reason

    def watched(self, now_ms: int, *, alive: bool = False) -> Watched:
        """Return the query as of `now_ms`, with a verdict. `now_ms` and `alive` go to `judge`."""
        health = judge(
            self.batches, now_ms=now_ms, heard_ms=self.heard_ms, ended=self.why(), alive=alive
        )
        history = tuple(self.batches[-HISTORY:])
        return Watched(
            self.query_id, self.name, now_ms, health, history, self.heard_ms, self.unreadable,
            tuple(self.sinks),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return lines for `from_json`, which an endpoint serves. Errors have no text in them."""
        lines = [batch_line(batch, at_ms) for at_ms, batch in self.batches]
        if lines:
            lines[-1][SINKS] = [sink.to_json() for sink in self.sinks]
        about = (self.heard_ms, self.query_id, self.ended_run, self.name)
        if self.ended is not None:
            error = None if self.ended == ENDED else FAILED
            lines.append(new_line("ended", *about, error=error))
        if self.running:
            lines.append(new_line("started" if self.ended else "idle", *about))
        return {"query_id": self.query_id, "lines": lines}

    @staticmethod
    def from_json(value: Any) -> QueryLog:
        """Return the log that `to_json` wrote. Raises what `take` raises."""
        log = QueryLog(text(value["query_id"]))
        for line in value["lines"]:
            log.take(line)
        return log


def read_logs(folder: str | Path) -> list[QueryLog]:
    """Read the end of every query's log in a folder, and warn of unreadable files.

    Raises ConfigError if the folder is missing or may not be listed.
    """
    logs = LogFolder(folder)
    read = logs.look()
    if logs.trouble is not None:
        logger.warning("%s", logs.trouble)
    return read


class LogFolder:
    """Reads the metrics logs of a folder. Every call of `look` reads only the changed logs."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read: dict[Path, tuple[_Version, QueryLog]] = {}
        #: Files that the last call of `look` could not read, with the reasons, or None.
        self.trouble: str | None = None

    def look(self) -> list[QueryLog]:
        """Return every query's log. Raises ConfigError if the folder cannot be listed."""
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.name.endswith(SUFFIX))
        except OSError as error:
            raise ConfigError(
                f"{self.folder} is not a folder of metrics logs that this user may read "
                f"({error.strerror}). Give the folder of DedupListener(log=...), or the OUTPUT of "
                "`dedup run`."
            ) from error
        troubles: list[str] = []
        read: dict[Path, tuple[_Version, QueryLog]] = {}
        for path in paths:
            try:
                version, known = _version(path), self._read.get(path)
                if known is not None and known[0] == version:
                    read[path] = known
                elif version:  # else the log was removed since the folder was listed
                    read[path] = version, _read(path)
            except OSError as error:
                troubles.append(f"{path} cannot be read ({error.strerror}) and is skipped")
        self._read = read
        self.trouble = "; ".join(troubles) or None
        return [log for _, log in read.values()]


def _parts(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(path.name + ".1")


def _version(path: Path) -> _Version:
    """Return a value that changes whenever the log changes, or () if the log was removed."""
    version = []
    for part in _parts(path):
        # The writer may be renaming the file.
        with suppress(FileNotFoundError):
            status = part.stat()
            version.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(version)


def _read(path: Path) -> QueryLog:
    log = QueryLog(path.name.removesuffix(SUFFIX))
    for line in _last_lines(path):
        try:
            log.take(json.loads(line))
        except (KeyError, TypeError, ValueError, RecursionError):
            log.unreadable += 1
    return log


def _last_lines(path: Path) -> Iterator[bytes]:
    """Yield the last lines of a log, from its current file and the file before."""
    data = b""
    for part in _parts(path):
        # The writer may be renaming the file.
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
