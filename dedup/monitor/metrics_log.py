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

A line that was cut short by a crash is passed over. A file that is taken away while its query runs
is made anew, and begins with ``started``.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
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

#: Inode, size and time of change of a log's files, None for one that is not there.
_Version = tuple[tuple[int, int, int] | None, ...]
_TEXT = (str, type(None))
_EVENT_TYPES = {"event": (str,), "at_ms": (int,), "run_id": _TEXT, "name": _TEXT, "error": _TEXT}

logger = logging.getLogger("dedup")


class _Writer(RotatingFileHandler):
    """Says once that it cannot write, and harms nothing."""

    failed = False
    query_name: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._let_go_of_moved()
        except OSError:
            self.handleError(record)
            return
        super().emit(record)

    def _let_go_of_moved(self) -> None:
        """Close a file that was moved or removed; the next line opens the one of that name."""
        if self.stream is None:
            return
        with suppress(FileNotFoundError):
            there = os.stat(self.baseFilename)
            if os.path.samestat(there, os.fstat(self.stream.fileno())):
                return
        moved, self.stream = self.stream, None
        moved.close()

    def _open(self) -> TextIOWrapper:
        os.makedirs(os.path.dirname(self.baseFilename), exist_ok=True)
        torn = _is_torn(self.baseFilename)
        stream = super()._open()
        if torn:
            # Else what a crash cut short would swallow the next line.
            stream.write("\n")
        return stream

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
        # It stays where it is when the process goes to another folder.
        self.folder = Path(folder).absolute()
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
        self._writer(metrics.query_id).query_name = metrics.query_name
        self._write(metrics.query_id, metrics.run_id, "batch", at_ms, batch=metrics.to_json())

    def started(self, query_id: str, run_id: str, at_ms: int) -> None:
        """Note that a run began."""
        if self._is_known(query_id):
            # The first sign of life behind it tells that a failure is past.
            self._idle_ms.pop(query_id, None)
            self._write(query_id, run_id, "started", at_ms)

    def idle(self, query_id: str, run_id: str, at_ms: int) -> None:
        """Note that a query lives, now and then."""
        due = at_ms - self._idle_ms.get(query_id, 0) >= IDLE_EVERY_MS
        if due and self._is_known(query_id):
            self._idle_ms[query_id] = at_ms
            self._write(query_id, run_id, "idle", at_ms)

    def ended(self, query_id: str, run_id: str, error: str | None, at_ms: int) -> None:
        """Note the end of a run, and its cause."""
        if not self._is_known(query_id):
            return
        self._write(query_id, run_id, "ended", at_ms, error=error)
        self._idle_ms.pop(query_id, None)
        with suppress(OSError):  # of a full disk, which was told already
            self._writers.pop(query_id).close()

    def _path(self, query_id: str) -> Path:
        return self.folder / (query_id + SUFFIX)

    def _is_there(self, query_id: str) -> bool:
        try:
            return self._path(query_id).stat().st_size > 0
        except OSError:
            # Where it may not even be looked for, who writes there tells of it.
            return False

    def _is_known(self, query_id: str) -> bool:
        """Whether the query has a log, be it that someone has just taken it away."""
        return query_id in self._writers or self._is_there(query_id)

    def _writer(self, query_id: str) -> _Writer:
        if query_id not in self._writers:
            self._writers[query_id] = _Writer(
                self._path(query_id), maxBytes=self._file_bytes, backupCount=self._files - 1,
                encoding="utf-8", delay=True,
            )  # fmt: skip
        return self._writers[query_id]

    def _write(self, query_id: str, run_id: str, event: str, at_ms: int, **fields: Any) -> None:
        if event != "started" and not self._is_there(query_id):
            self._write(query_id, run_id, "started", at_ms)
        writer = self._writer(query_id)
        line = {
            "format": FORMAT, "event": event, "at_ms": at_ms, "query_id": query_id,
            "run_id": run_id, "name": writer.query_name, **fields,
        }  # fmt: skip
        text = json.dumps(line, separators=(",", ":"))
        writer.handle(logging.LogRecord("dedup.metrics", logging.INFO, "", 0, text, None, None))


@dataclass
class QueryLog:
    """What is known of a query by what was told of it, from a log's end or as it happens.

    Parameters
    ----------
    batches : list of (int, BatchMetrics)
        When each micro-batch was heard of, and what it did.
    heard_ms : int or None
        Last sign of life.
    ended : str or None
        Why the last run ended, None where that is past: a failure is until a later run has done a
        micro-batch or waits for input. That one was started again proves nothing.
    running : bool
        Whether a run goes on.
    failures : int
        How many runs have failed since.
    unreadable : int
        Lines that are no events of a metrics log.
    """

    query_id: str
    name: str | None = None
    batches: list[tuple[int, BatchMetrics]] = field(default_factory=list)
    heard_ms: int | None = None
    ended: str | None = None
    running: bool = False
    failures: int = 0
    unreadable: int = 0

    def batch(self, metrics: BatchMetrics, at_ms: int) -> bool:
        """Take in a micro-batch; False: it was told already, as two listeners do."""
        known = (one.batch_id for _, one in reversed(self.batches) if one.run_id == metrics.run_id)
        # Within a run numbers rise.
        if metrics.batch_id <= next(known, -1):
            return False
        self.batches.append((at_ms, metrics))
        self.name = metrics.query_name
        self.idle(at_ms)
        return True

    def has_done(self, run_id: str) -> bool:
        """Whether the newest micro-batch is that run's."""
        return bool(self.batches) and self.batches[-1][1].run_id == run_id

    def started(self, at_ms: int) -> None:
        """Take in that a run began."""
        self.heard_ms, self.running = at_ms, True
        if not self.failures:
            self.ended = None

    def idle(self, at_ms: int) -> None:
        """Take in that the query works, or waits for input."""
        self.heard_ms, self.running, self.ended, self.failures = at_ms, True, None, 0

    def over(self, error: str | None, at_ms: int) -> None:
        """Take in the end of a run, and why it failed if it did."""
        self.heard_ms, self.running, self.ended = at_ms, False, error or ENDED
        self.failures = self.failures + 1 if error else 0

    def take(self, line: dict[str, Any]) -> None:
        """Take in one line of a log; KeyError, TypeError or ValueError where it is none."""
        if line["format"] != FORMAT:
            raise ValueError(f"format {line['format']!r} is not {FORMAT}")
        event, at_ms = line["event"], int(line["at_ms"])
        if event == "batch":
            self.batch(BatchMetrics.from_json(line["batch"]), at_ms)
        elif event == "ended":
            self.over(line["error"], at_ms)
        elif event == "started":
            self.started(at_ms)
        else:
            self.idle(at_ms)
        self.name = line["name"] or self.name

    def why(self) -> str | None:
        """Why the query does no work, in a line; None where it does."""
        told = self.ended
        if self.failures > 1:
            told = f"failed {self.failures} times in a row: {told}"
        if self.failures and self.running:
            told = f"{told}; started again, and no micro-batch is done since"
        return told

    def watched(self, now_ms: int, *, alive: bool = False) -> Watched:
        """The query at a moment, by the clock of who watches; `alive` as in `judge`."""
        return Watched.of(
            self.query_id,
            self.name,
            self.batches,
            now_ms=now_ms,
            heard_ms=self.heard_ms,
            ended=self.why(),
            alive=alive,
            unreadable=self.unreadable,
        )


def read_logs(folder: str | Path) -> list[QueryLog]:
    """Read the end of every query's log in a folder, and log a warning for those that cannot be.

    Raises
    ------
    ConfigError
        When the folder is not there, or may not be looked into.
    """
    logs = LogFolder(folder)
    read = logs.look()
    if logs.trouble is not None:
        logger.warning("%s", logs.trouble)
    return read


class LogFolder:
    """Reads the metrics logs of a folder; again, at each look, those that have changed.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read: dict[Path, tuple[_Version, QueryLog]] = {}
        #: Which files the last look could not read and why, None where it read all of them.
        self.trouble: str | None = None

    def look(self) -> list[QueryLog]:
        """Read the end of every query's log.

        Raises
        ------
        ConfigError
            When the folder is not there, or may not be looked into.
        """
        try:
            paths = sorted(path for path in self.folder.iterdir() if path.name.endswith(SUFFIX))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError(
                f"{self.folder} is no folder of metrics logs: give what DedupListener(log=...) was "
                "given"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{self.folder} cannot be read ({error.strerror}): run this as the user of the "
                "driver, or let this one read it"
            ) from error
        troubles: list[str] = []
        read = {path: log for path in paths if (log := self._log(path, troubles))}
        self._read = read
        self.trouble = "; ".join(troubles) or None
        return [log for _, log in read.values()]

    def _log(self, path: Path, troubles: list[str]) -> tuple[_Version, QueryLog] | None:
        try:
            version = _version(path)
            known = self._read.get(path)
            if known is None or known[0] != version:
                known = version, _read(path)
        except OSError as error:
            troubles.append(f"{path} cannot be read ({error.strerror}) and is left out")
            return None
        # Of a file that went away in between there is nothing to tell.
        return known if any(version) else None


def _parts(path: Path) -> tuple[Path, Path]:
    """A log's newest file and the one before."""
    return path, path.with_name(path.name + ".1")


def _version(path: Path) -> _Version:
    """What changes whenever a log does; OSError for what is no file."""
    return tuple(_file_version(part) for part in _parts(path))


def _file_version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise
        # It may be renamed just now.
        return None
    if not stat.S_ISREG(found.st_mode):
        # A pipe would be waited for.
        raise OSError(errno.EINVAL, "it is no regular file")
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> QueryLog:
    log = QueryLog(path.name.removesuffix(SUFFIX))
    for line in _last_lines(path):
        try:
            log.take(_event(line))
        except (KeyError, TypeError, ValueError):
            log.unreadable += 1
    return log


def _event(line: bytes) -> dict[str, Any]:
    """An event with the types that ours have, ValueError where it is none."""
    try:
        event = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(event, dict):
        raise ValueError(f"{event!r:.80} is no event")
    for name, kinds in _EVENT_TYPES.items():
        if type(event.get(name)) not in kinds:
            raise ValueError(f"{name} cannot be {event.get(name)!r:.80}")
    if abs(event["at_ms"]) >= 2**63:
        raise ValueError("at_ms cannot be so large")
    return event


def _last_lines(path: Path) -> Iterator[bytes]:
    """Whole lines of a log's last bytes, from the file before as well where there is one."""
    data = b""
    for part in _parts(path):
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


def _is_torn(path: str) -> bool:
    """Whether the last line of a file was cut short."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
