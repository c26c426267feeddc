"""The order of input files, and how to make Spark's file source keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from dedup.sources.files.file_log import java_path

#: Files are ordered by modification time and then by name, or by name only.
ORDERS = ("time", "name")
#: Largest number of files of one query, whose progress reports repeat the files' names.
_LISTED = 1000


@dataclass(frozen=True, slots=True)
class FileOrder:
    """The order in which files are read.

    Parameters
    ----------
    by : {"time", "name"}
        ``time`` compares whole seconds, then paths: `git clone`, `unzip` and `cp` write the files
        of a folder at almost the same time, in no meaningful order.
    newest_first : bool
        Newest times first, like Spark's option ``latestFirst``.
    """

    by: str = "time"
    newest_first: bool = False

    def key(self, mtime_ms: int, path: str) -> tuple[int, str]:
        """Return the sort key of a file."""
        seconds = mtime_ms // 1000 if self.by == "time" else 0
        return -seconds if self.newest_first else seconds, path

    def stretches(self, mtimes_ms: Mapping[str, int], count: int) -> Iterator[tuple[PurePath, ...]]:
        """Yield the files of each query, so that successive queries read all files in this order.

        Spark sorts listed files by milliseconds, and lists a glob by name. Micro-batches share a
        query as long as Spark's order agrees with ours; files within a micro-batch need no order.

        Parameters
        ----------
        mtimes_ms : mapping of path to int
            The files in this order.
        count : int
            Files of a micro-batch.
        """
        paths, stretch, last = list(mtimes_ms), list[str](), None
        for at in range(0, len(paths), count):
            batch = paths[at : at + count]
            keys = sorted(self._of_spark(mtimes_ms[path], path) for path in batch)
            agrees = last is None or last < keys[0]
            if stretch and not (agrees and len(stretch) + len(batch) <= _LISTED):
                yield tuple(map(PurePath, stretch))
                stretch = []
            stretch += batch
            last = keys[-1]
        if stretch:
            yield tuple(map(PurePath, stretch))

    def _of_spark(self, mtime_ms: int, path: str) -> tuple[int, bytes]:
        """Return Spark's sort key. Java compares texts by their 16-bit codes."""
        code = java_path(path).encode("utf-16-be")
        return -mtime_ms if self.newest_first else mtime_ms, code
