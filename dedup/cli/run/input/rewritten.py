"""Files that changed after they were taken: Spark does not read them a second time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dedup.cli.run.input.input_files import Stamp, stamp_of
from dedup.errors import DataError
from dedup.spark.driver.file_log import FileLog

NAME = "_dedup.files"
#: So many are named.
_NAMED = 5


class FilesAsRead:
    """What each file was like when its micro-batch ran, kept beside the output.

    Parameters
    ----------
    output : Path
        Folder of the file ``_dedup.files``: a line ``[path, milliseconds, bytes]`` for each.

    Notes
    -----
    Spark's own log holds the time alone, as of when a file was planned: one that was mended since,
    and then read, would count as written again. Where this file is lost, Spark's log must do.
    """

    def __init__(self, output: Path) -> None:
        self._path = output / NAME

    def note(self, paths: Iterable[Path]) -> None:
        """Keep what these files are like now; those that have gone are left out."""
        lines = []
        for path in paths:
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            mtime_ms = status.st_mtime_ns // 1_000_000
            lines.append(json.dumps([str(path), mtime_ms, status.st_size]) + "\n")
        with self._path.open("a", encoding="utf-8") as handle:
            handle.write("".join(lines))

    def written_again(self, stamps: Mapping[str, Stamp], log: FileLog) -> list[str]:
        """Return the files, of those that are there, that changed after they were taken."""
        end, as_read = log.committed(), self._read()
        found = []
        for path, stamp in stamps.items():
            taken = log.taken.get(path)
            if taken is None or taken.batch > end:
                continue
            mtime_ms, size = as_read.get(path, (taken.mtime_ms, stamp.size))
            if (mtime_ms, size) != (stamp.mtime_ns // 1_000_000, stamp.size):
                found.append(path)
        return found

    def sizes(self) -> dict[str, int]:
        """Return how large each file was when it was read."""
        return {path: size for path, (_, size) in self._read().items()}

    def check_unfinished(self, log: FileLog, batch_id: int, *, is_published: bool) -> None:
        """Refuse to run a micro-batch again whose files are not what they were.

        Where its rows are published already, other rows in their place would be lost, or come
        twice. Where they are not, its files may be mended, but not be gone: Spark would pass over
        them.

        Parameters
        ----------
        log : FileLog
        batch_id : int
            The micro-batch that is to run again.
        is_published : bool
            Its rows show already.

        Raises
        ------
        DataError
            Naming the first file.
        """
        as_read = self._read()
        for path in log.unfinished():
            taken = log.taken[path].mtime_ms
            try:
                now = stamp_of(os.stat(path))
            except FileNotFoundError:
                way = ". If its rows are lost for good, put an empty file in its place"
                if not batch_id:
                    # Without a row of the first micro-batch, there would be no state to go on from.
                    way = ". Or begin anew with another --output, since nothing is published yet"
                if is_published:
                    way = ""
                raise DataError(
                    f"{path} is gone, and the run before ended inside its micro-batch. Put the "
                    f"file back and run again{way}.",
                    remedy="unfinished-files",
                ) from None
            is_now = (now.mtime_ns // 1_000_000, now.size)
            if is_published and is_now != as_read.get(path, (taken, now.size)):
                raise DataError(
                    f"{path} was written again, and the run before ended after the rows of its "
                    "micro-batch were published, and before that was noted. Put the file back as "
                    "it was, and run again; then give what is new in it under another name.",
                    remedy="unfinished-files",
                )

    def _read(self) -> dict[str, tuple[int, int]]:
        as_read = {}
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return {}
        for line in text.split("\n"):
            try:
                path, mtime_ms, size = json.loads(line)
            except (ValueError, TypeError):  # the last line of a run that was killed
                continue
            as_read[path] = (mtime_ms, size)
        return as_read


def some_of(paths: Sequence[object]) -> str:
    """The first of the paths, and how many more there are."""
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    return ", ".join(map(str, paths[:_NAMED])) + more


def warning(paths: list[str]) -> str:
    """Say which files are not as they were taken, and what to do."""
    one = len(paths) == 1
    return (
        f"{len(paths):,} {'file was' if one else 'files were'} written again after "
        f"{'it was' if one else 'they were'} taken, and {'is' if one else 'are'} not read a second "
        f"time: {some_of(paths)}. To have a file read again, rename it: within the horizon, "
        "records that were taken before then count as duplicates."
    )
