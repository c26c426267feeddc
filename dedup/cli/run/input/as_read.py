"""Detect changes in files that earlier runs have read, and follow an INPUT that was moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dedup.cli.run.input.files import Stamp
from dedup.cli.run.options import RunOptions
from dedup.cli.run.record import Record
from dedup.errors import ConfigError, DataError
from dedup.sources.files.file_log import FileLog

NAME = "_dedup.files"


class FilesAsRead:
    """The log ``OUTPUT/_dedup.files``: modification time and size of every file that was read.

    A line is ``[path, milliseconds, bytes]``. Spark's own log holds only the time of a file when
    the micro-batch was planned. By Spark's log, a file that was repaired before it was read would
    count as changed. If ``_dedup.files`` is lost, Spark's log is used.
    """

    def __init__(self, output: Path) -> None:
        self._path = output / NAME

    def note(self, paths: Iterable[Path]) -> None:
        """Add the current time and size of those `paths` that still exist to the log."""
        lines = []
        for path in paths:
            try:
                stamp = Stamp.of(path)
            except FileNotFoundError:
                continue
            lines.append(json.dumps([str(path), stamp.mtime_ms, stamp.size]) + "\n")
        with self._path.open("a", encoding="utf-8") as handle:
            handle.write("".join(lines))

    def changed(self, stamps: Mapping[str, Stamp], log: FileLog) -> list[str]:
        end, as_read, changed = log.committed(), self.read(), []
        for path, stamp in stamps.items():
            taken = log.taken.get(path)
            if taken is not None and taken.batch <= end:
                before = as_read.get(path, (taken.mtime_ms, stamp.size))
                if before != (stamp.mtime_ms, stamp.size):
                    changed.append(path)
        return changed

    def check_unfinished(self, log: FileLog, batch_id: int, *, is_published: bool) -> None:
        """Raise DataError if the files of a micro-batch that Spark will replay have changed.

        If the micro-batch is published, changed rows would be lost or repeated. If it is not, users
        may repair its files, but must not remove one, because Spark would skip a missing file.
        """
        as_read = self.read()
        for path in log.unfinished():
            taken = log.taken[path].mtime_ms
            try:
                now = Stamp.of(path)
            except FileNotFoundError:
                way = ". If its rows are lost for good, replace it by an empty file"
                if not batch_id:
                    # An empty file could leave the first micro-batch without rows and state.
                    way = ". Or start again with another --output, since nothing is published yet"
                if is_published:
                    way = ""
                raise DataError(
                    f"{path} is gone, and the run before ended inside its micro-batch. Restore the "
                    f"file and run again{way}.",
                    remedy="unfinished-files",
                ) from None
            before = as_read.get(path, (taken, now.size))
            if is_published and (now.mtime_ms, now.size) != before:
                raise DataError(
                    f"{path} was written again, and the run before ended when the rows of its "
                    "micro-batch were published, but not committed. Restore the file, and run "
                    "again; then give what is new in it under another name.",
                    remedy="unfinished-files",
                )

    def read(self) -> dict[str, tuple[int, int]]:
        as_read = {}
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return {}
        for line in text.split("\n"):
            try:
                path, mtime_ms, size = json.loads(line)
            except (ValueError, TypeError):  # a killed run may leave half a line
                continue
            as_read[path] = (mtime_ms, size)
        return as_read


def some_of(items: Sequence[object], most: int = 5) -> str:
    """Return a text with the first items and the number of further items."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def warning(changed: list[str]) -> str:
    one = len(changed) == 1
    return (
        f"{len(changed):,} {'file was' if one else 'files were'} written again after "
        f"{'it was' if one else 'they were'} read, and {'is' if one else 'are'} not read a second "
        f"time: {some_of(changed)}. To have a file read again, rename it: within the horizon, "
        "records that were read before count as duplicates."
    )


def move_input(options: RunOptions, note: Callable[[str], None]) -> None:
    """Replace the old paths of files in the logs if the user has moved INPUT.

    If this run is killed, the logs hold old and new paths, and the next run replaces the rest.
    Raises ConfigError, and changes nothing, if INPUT does not hold the same files, or if a killed
    run must be finished first.
    """
    record, new, moved_from = Record.read(options.output), options.input, options.moved_from
    log, as_read = FileLog(options.checkpoint), FilesAsRead(options.output)
    if record is not None and record.options["input"] == str(new):
        for path in log.taken:
            if not Path(path).is_relative_to(new):
                raise ConfigError(
                    f"An earlier run read {path}, which is not in INPUT {new}. A run with "
                    "--moved-from ended before all names were changed: run again with its INPUT "
                    "and its --moved-from."
                )
        return
    if moved_from is None:
        return
    if record is None:
        raise _refused(f"--moved-from has no meaning: no run has written to {options.output} yet.")
    old = Path(record.options["input"])
    if old not in (moved_from, moved_from.resolve()):
        raise _refused(f"--moved-from {moved_from}: INPUT was {old}. Give that.")
    if old.is_relative_to(new) or new.is_relative_to(old):
        raise _refused(
            f"One of {old} and INPUT {new} contains the other. Move the files elsewhere."
        )
    before, existing = as_read.read(), list[Path]()
    for path in log.taken:
        now = Path(path)
        now = new / now.relative_to(old) if now.is_relative_to(old) else now
        if not now.is_file():
            continue
        existing.append(now)
        if path in before and before[path][1] != now.stat().st_size:
            raise _refused(
                f"{now} is another file than {path}, which had {before[path][1]:,} bytes when it "
                "was read. Give the same files; move files elsewhere that were written again since."
            )
    if log.taken and not existing:
        raise _refused(f"INPUT {new} holds none of the {len(log.taken):,} files that were read.")
    log.rename(old, new)
    as_read.note(existing)
    replace(record, options={**record.options, "input": str(new)}).write(options.output)
    note(
        f"INPUT was {old} before. It holds {len(existing):,} of the {len(log.taken):,} files that "
        "were read, under their names. Files that have other names now are read again."
    )


def _refused(text: str) -> ConfigError:
    return ConfigError(f"{text} Nothing has changed.", remedy="changed-settings")
