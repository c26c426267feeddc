"""The views that a process holds open: RocksDB databases, bounded in number (invariant 5)."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path

from dedup.catalog.database import View
from dedup.catalog.segment_file import RocksError, rocks_errors

MAX_OPEN_VIEWS = 256


class OpenViews:
    """The views that this process holds open, at most ``max_views``.

    Every micro-batch reads the segments in the same order. With more segments than open views, the
    least recently used view is the view that the next read needs. So `add` does not close that
    view, but picks the views to close in turn. A view takes two file descriptors. The default is
    `MAX_OPEN_VIEWS`, or fewer, so that views take at most a quarter of the process's file
    descriptors.
    """

    def __init__(self, max_views: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        allowed = MAX_OPEN_VIEWS if soft == resource.RLIM_INFINITY else max(1, soft // 8)
        self.max_views = max_views or min(MAX_OPEN_VIEWS, allowed)
        self._views: dict[Path, View] = {}
        self._closed = 0
        self._orphaned: list[object] = []
        self._pid = os.getpid()
        # Held during reads, because closing a database under a reader is undefined behaviour.
        self.lock = threading.RLock()

    def get(self, path: Path) -> View | None:
        if self._pid != os.getpid():
            # A forked process cannot close databases: RocksDB's threads exist only in the parent.
            for view in self._views.values():
                view.close_table()
            self._orphaned.append(self._views)
            self._views, self._pid = {}, os.getpid()
        return self._views.get(path)

    def add(self, path: Path, view: View) -> None:
        while len(self._views) >= self.max_views:
            # Step through the views in another order, so that all stay open about equally long.
            self._closed += 1
            nth = self._closed * 0x9E3779B1 % len(self._views)
            self.close(next(islice(self._views, nth, None)))
        self._views[path] = view

    def close(self, path: Path) -> None:
        view = self._views.pop(path, None)
        if view is not None:
            with suppress(RocksError), rocks_errors():
                view.close()

    def close_all(self) -> None:
        for path in list(self._views):
            self.close(path)


#: Views shared by all shards and queries of the process, so that the bound is per process.
PROCESS_VIEWS = OpenViews()
