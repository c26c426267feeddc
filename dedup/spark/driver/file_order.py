"""The order of input files, and how to have Spark's file source keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from dedup.spark.driver.file_log import java_path

#: What decides the order of files: their modification times, then their names; or names alone.
ORDERS = ("time", "name")
#: A query lists at most so many files: its progress reports repeat their names.
_LISTED = 1000


@dataclass(frozen=True, slots=True)
class FileOrder:
    """The order in which files are read.

    Parameters
    ----------
    by : {"time", "name"}
        ``time`` compares whole seconds, then paths: `git clone`, `unzip` and `cp` write the files
        of a folder within a moment, in an order that says nothing.
    newest_first : bool
        Turns the times round, as Spark's option ``latestFirst`` does.
    """

    by: str = "time"
    newest_first: bool = False

    def key(self, mtime_ms: int, path: str) -> tuple[int, str]:
        """Return what to sort a file by."""
        seconds = mtime_ms // 1000 if self.by == "time" else 0
        return -seconds if self.newest_first else seconds, path

    def stretches(self, mtimes_ms: Mapping[str, int], count: int) -> Iterator[tuple[PurePath, ...]]:
        """Yield the files of one query after the other, so that Spark reads them in this order.

        Spark sorts what it lists by milliseconds, and a glob is listed by name. Micro-batches for
        which that gives this order too share a query; the files of one micro-batch need no order.

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
            goes_on = last is None or last < keys[0]
            if stretch and not (goes_on and len(stretch) + len(batch) <= _LISTED):
                yield tuple(map(PurePath, stretch))
                stretch = []
            stretch += batch
            last = keys[-1]
        if stretch:
            yield tuple(map(PurePath, stretch))

    def _of_spark(self, mtime_ms: int, path: str) -> tuple[int, bytes]:
        """What Spark sorts a file by; Java compares texts by their codes of 16 bits."""
        code = java_path(path).encode("utf-16-be")
        return -mtime_ms if self.newest_first else mtime_ms, code
