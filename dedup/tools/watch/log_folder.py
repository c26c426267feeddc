"""Read metrics logs. Unreadable files and lines are reported and do not affect others."""

from __future__ import annotations

import errno
import json
import logging
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dedup.errors import ConfigError
from dedup.tools.watch.metrics_log import SUFFIX
from dedup.tools.watch.query_log import QueryLog, check_types

#: Of a log's end: some hundred micro-batches.
READ_BYTES = 1 << 20

#: Inode, size and time of change of a log's files, None for one that is not there.
_Version = tuple[tuple[int, int, int] | None, ...]
_TEXT = (str, type(None))
_EVENT_TYPES = {"event": (str,), "at_ms": (int,), "run_id": _TEXT, "name": _TEXT, "error": _TEXT}

logger = logging.getLogger("dedup")


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
                "given, or the OUTPUT of `dedup run`"
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
            entry = self._read.get(path)
            if entry is None or entry[0] != version:
                entry = version, _read(path)
        except OSError as error:
            troubles.append(f"{path} cannot be read ({error.strerror}) and is left out")
            return None
        # A file that was removed meanwhile is left out.
        return entry if any(version) else None


def _parts(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(path.name + ".1")


def _version(path: Path) -> _Version:
    """Return a value that changes whenever a log does; OSError if it is no file."""
    return tuple(_file_version(part) for part in _parts(path))


def _file_version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise
        # It may be renamed just now.
        return None
    if not stat.S_ISREG(status.st_mode):
        # A pipe would be waited for.
        raise OSError(errno.EINVAL, "it is no regular file")
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> QueryLog:
    log = QueryLog(path.name.removesuffix(SUFFIX))
    for line in _last_lines(path):
        try:
            log.take(check_types(json.loads(line), _EVENT_TYPES))
        except (KeyError, TypeError, ValueError, RecursionError):
            log.unreadable += 1
    return log


def _last_lines(path: Path) -> Iterator[bytes]:
    """Yield whole lines of a log's last bytes, also from the file before if there is one."""
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
