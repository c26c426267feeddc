"""Orders input files, and makes Spark's file source read them in this order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from dedup.sources.files.file_log import java_path

#: ``time`` orders files by modification time and then by name, ``name`` by name only.
ORDERS = ("time", "name")
#: Largest number of files of one query. Each progress report of a query repeats their names.
_LISTED = 1000


@dataclass(frozen=True, slots=True)
class FileOrder:
    """The order in which files are read. `by` is one of `ORDERS`.

    ``time`` compares whole seconds, then paths, because `git clone`, `unzip` and `cp` write the
    files of a folder almost at once, in no meaningful order. `newest_first` is Spark's option
    ``latestFirst``.
    """

    by: str = "time"
    newest_first: bool = False

    def key(self, mtime_ms: int, path: str) -> tuple[int, str]:
        seconds = mtime_ms // 1000 if self.by == "time" else 0
        return -seconds if self.newest_first else seconds, path

    def stretches(self, mtimes_ms: Mapping[str, int], count: int) -> Iterator[tuple[PurePath, ...]]:
        """Yield groups of files. One query per group, in turn, reads all files in this order.

        Spark sorts listed files by milliseconds, and lists a glob by name. A group has as many
        micro-batches as Spark reads in our order. Files within a micro-batch need no order.
        `mtimes_ms` has the files' modification times, already in this order, and `count` is the
        number of files of a micro-batch.
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
        """Return the key by which Spark sorts files. Java compares texts by their 16-bit codes."""
        code = java_path(path).encode("utf-16-be")
        return -mtime_ms if self.newest_first else mtime_ms, code
