"""Checks that executors see the driver's folder, by a mark that the driver leaves there.

The driver leaves a mark, an empty file, at the catalog root each time a query starts.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from dedup.catalog.layout import STARTS_FOLDER, start_path
from dedup.errors import CatalogError
from dedup.storage.root import Root

#: A mark stays if it is among the newest `STARTS_KEPT` or younger than `STARTS_KEPT_S`. Marks stay
#: for long, because a query may get a new executor at any time, which looks for the mark.
STARTS_KEPT = 1000
STARTS_KEPT_S = 30 * 86_400

#: Starts whose marks this process has seen.
_seen: set[str] = set()


def mark_start(root: Root, start_id: str) -> None:
    """Leave the mark of this start at the catalog root, and delete old marks."""
    root.create_bytes(start_path(start_id), b"")
    folder = root.local_path(STARTS_FOLDER)
    if folder is None:
        return
    with suppress(OSError):  # another driver may delete the same marks
        marks = sorted((entry.stat().st_mtime, entry.name) for entry in os.scandir(folder))
        oldest_s = time.time() - STARTS_KEPT_S
        root.delete(f"{STARTS_FOLDER}/{name}" for at, name in marks[:-STARTS_KEPT] if at < oldest_s)


def check_start(root: Root, start_id: str) -> None:
    """Raise CatalogError if this machine does not see the mark that the driver left."""
    if start_id in _seen:
        return
    if not root.exists(start_path(start_id)):
        raise CatalogError(
            f"shared_local=True, but {socket.gethostname()} does not see in {root.url()} what the "
            "driver wrote there when the query started. Mount the driver's folder there on every "
            "machine, or use an object store (s3://...), then start the query again.",
            remedy="unshared-root",
        )
    _seen.add(start_id)
