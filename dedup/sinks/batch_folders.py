"""Publish micro-batches as folders ``batch=<id>``. One rename makes a micro-batch visible.

The sink first writes the files below ``_staging``. Spark, pyarrow and most other readers skip names
that begin with ``_``.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from dedup.errors import ConfigError
from dedup.storage.localfile import sync

STAGING = "_staging"
_BATCH = re.compile("batch=([0-9]+)")


def folder_of(batch_id: int) -> str:
    return f"batch={batch_id}"


def number_of(folder: str) -> int | None:
    match = _BATCH.fullmatch(folder)
    return int(match[1]) if match else None


def published_batches(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    numbers = (number_of(entry.name) for entry in root.iterdir())
    return sorted(number for number in numbers if number is not None)


def check_not_ahead(folders: Iterable[Path | None], begun: int, which: str) -> None:
    """Raise ConfigError if a folder holds a micro-batch that the query has not begun yet.

    `begun` is the last micro-batch that the query has begun. `which` describes the folders in the
    error.
    """
    for folder in folders:
        ahead = [n for n in published_batches(folder) if n > begun] if folder else []
        if ahead:
            raise ConfigError(
                f"{folder} holds micro-batches {ahead[0]} to {ahead[-1]}, {which}. The query would "
                "take them for done, and lose new rows. If the checkpoint was adopted, or restored "
                "to an earlier day, move those batch=N folders elsewhere first.",
                remedy="batches-ahead",
            )


def data_files(folder: Path) -> list[Path]:
    """Return the files that readers of a folder see, sorted by name."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(("_", ".")))


def publish_folder(source: Path, root: Path, batch_id: int) -> None:
    """Publish a micro-batch: flush its staged folder `source`, and rename it to ``batch=<id>``.

    If the micro-batch has a folder already, this keeps that folder and removes `source`.
    """
    target = root / folder_of(batch_id)
    if target.exists():
        shutil.rmtree(source, ignore_errors=True)
        return
    # Remove success markers and checksum files of Hadoop's writer. Renamed files would not match.
    for path in source.rglob("*"):
        if path.is_file() and path.name.startswith(("_", ".")):
            path.unlink()
    flush(source)
    try:
        source.rename(target)
    except OSError as error:
        if target.exists():  # another start of the query has just published the micro-batch
            shutil.rmtree(source, ignore_errors=True)
            return
        if error.errno != errno.EXDEV:
            raise
        # The side output may be on another file system. Copy the folder next to `target`, then
        # rename it.
        near = root / STAGING / source.parent.name
        shutil.copytree(source, near)
        flush(near)
        near.rename(target)
    sync(root)


def flush(folder: Path) -> None:
    """Flush all files and folders below a folder to the disk, innermost folders first."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))
