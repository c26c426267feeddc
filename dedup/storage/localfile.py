"""Durable files on a local file system."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dedup.errors import faults

#: Suffix of a file that is still being written. A killed writer leaves the file behind.
TEMP_SUFFIX = ".tmp"
_CHUNK_BYTES = 4 << 20
_UNSUPPORTED = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_NO_HARD_LINKS = _UNSUPPORTED | {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK}
#: Mounts of which this process has logged that they cannot sync a folder.
_not_durable: set[int] = set()

logger = logging.getLogger("dedup")


def publish(path: Path, content: bytes | Path, *, create: bool) -> bool:
    """Make a file appear whole and durable: sync its content, then name it, then sync the folder.

    Creates missing folders. If ``content`` is a file, links it if possible, and else copies it.
    With ``create``, leaves an existing file alone and returns False.
    """
    _make_folders(path.parent)
    if isinstance(content, Path) and create:
        with open(content, "rb") as source:
            os.fsync(source.fileno())
        faults.point("publish.synced", content)
        if (linked := _link(content, path)) is not None:
            return linked
    # A copy has the mode that a link would have: staged rows are for their owner alone.
    mode = content.stat().st_mode if isinstance(content, Path) else 0o666
    with _temp_beside(path, mode) as (temp, out):
        if isinstance(content, bytes):
            out.write(content)
        else:
            with open(content, "rb") as source:
                shutil.copyfileobj(source, out, _CHUNK_BYTES)
        out.flush()
        os.fsync(out.fileno())
        faults.point("publish.synced", temp)
        if create:
            if (linked := _link(temp, path)) is not None:
                return linked
            if path.exists():
                return False
        os.rename(temp, path)
        faults.point("publish.named", path)
        sync(path.parent)
    return True


def _link(source: Path, path: Path) -> bool | None:
    """Return whether the path is new, or None if hard links are not possible here."""
    # Unlike a rename, a link never replaces an existing file.
    try:
        os.link(source, path)
    except FileExistsError:
        return False
    except OSError as exc:
        if exc.errno in _NO_HARD_LINKS:
            return None
        raise
    faults.point("publish.named", path)
    sync(path.parent)
    return True


@contextlib.contextmanager
def _temp_beside(path: Path, mode: int) -> Iterator[tuple[Path, BinaryIO]]:
    temp = path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMP_SUFFIX}"
    try:
        with open(temp, "xb", opener=lambda name, flags: os.open(name, flags, mode & 0o666)) as out:
            yield temp, out
    finally:
        temp.unlink(missing_ok=True)


def _make_folders(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folders(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable.

    Some mounts of object stores cannot sync a folder. Then logs a warning, once per mount.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as exc:
        if exc.errno not in _UNSUPPORTED or not path.is_dir():
            raise
        if (device := path.stat().st_dev) not in _not_durable:
            _not_durable.add(device)
            logger.warning(
                "%s is on a mount that cannot sync a folder (%s). If this machine or the storage "
                "crashes, new files may be gone. A query whose files are gone stops, and does not "
                "take it for an empty catalog.", path, exc.strerror,
            )  # fmt: skip
