"""The local cache directory: views and sidecars that can always be rebuilt from the root.

Several processes share the directory. An entry appears by one rename and never changes. A process
that has an entry open can still read the entry after another process has removed it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dedup.catalog.layout import checked_query_id
from dedup.errors import CatalogError

#: Default bound of the cache. If less, the bound is the disk's free space divided by `_FREE_SHARE`.
DEFAULT_CACHE_BYTES, _FREE_SHARE = 16 << 30, 4
#: Unfinished files of this age are leftovers of killed processes, because a build takes seconds.
LEFTOVER_AGE_S = 3600.0

_TEMP = "tmp"


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A view or file in the cache, with its time of last use and the bytes that it occupies."""

    path: Path
    size_bytes: int
    used_s: float


class LocalCache:
    """Views and fetched files of one query on this machine.

    Raises CatalogError if the directory cannot be created, or belongs to another user.

    Parameters
    ----------
    directory
        Folder that contains the cache, ``dedup-cache-<uid>``. Default: the first of
        ``SPARK_LOCAL_DIRS``, else the system's folder for temporary files.
    cache_bytes
        Bound over all queries. The entries opened longest ago are evicted first. Hard links to
        files that exist at a local root take no space and do not count. Default:
        `DEFAULT_CACHE_BYTES`, or a quarter of the disk's free space if that is less.
    """

    def __init__(
        self,
        query_id: str,
        directory: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        of_spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0].strip()
        base, uid = directory or of_spark or tempfile.gettempdir(), os.getuid()
        self.top = Path(base) / f"dedup-cache-{uid}"
        self.folder = self.top / checked_query_id(query_id)
        with self._errors("create"):
            self.top.parent.mkdir(parents=True, exist_ok=True)
            self.top.mkdir(mode=0o700, exist_ok=True)
            (self.top / _TEMP).mkdir(exist_ok=True)
            owner = self.top.lstat().st_uid
            disk = os.statvfs(self.top)
        if cache_bytes is None:
            free_bytes = disk.f_bavail * disk.f_frsize
            cache_bytes = min(DEFAULT_CACHE_BYTES, free_bytes // _FREE_SHARE)
        self.cache_bytes = cache_bytes
        # Earlier processes may have filled the directory, so the first `publish` measures it.
        self._grown_bytes = cache_bytes
        if owner != uid or self.top.is_symlink():
            raise CatalogError(
                f"The cache directory {self.top} belongs to user {owner}, not to user {uid}, or is "
                "a link. Remove it, or choose another cache directory.",
                remedy="local-disk",
            )

    def entry(self, shard: int, file: str) -> Path:
        """Return the path of an entry. The entry need not exist."""
        return self.folder / f"shard={shard:05d}" / file

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Provide a private temporary folder on the cache's disk, and remove it afterwards."""
        with self._errors("create a folder in"):
            (self.top / _TEMP).mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.top / _TEMP))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file in a folder of `scratch`, or raise CatalogError if the disk is full."""
        with self._errors("write"):
            path.write_bytes(data)

    def publish(self, built: Path, entry: Path) -> bool:
        """Move a finished file or folder into place.

        Returns False if another process was first. The cache then keeps the entry of that process.
        """
        with self._errors("write"):
            grown_bytes = _size_bytes(built)
            for attempt in (1, 2):
                try:
                    entry.parent.mkdir(parents=True, exist_ok=True)
                    os.rename(built, entry)
                    break
                except FileNotFoundError:  # another process removed the empty folder
                    if attempt == 2:
                        raise
                except OSError:
                    if not entry.is_dir():
                        raise
                    return False
        self._grown_bytes += grown_bytes
        # Measuring the directory takes time, so do it after each 1/16 of its bound.
        if self._grown_bytes * 16 > self.cache_bytes:
            self.trim(keep=entry)
        return True

    def touch(self, entry: Path) -> None:
        with contextlib.suppress(OSError):
            os.utime(entry)

    def discard(self, entry: Path) -> None:
        trash = self.top / _TEMP / f"{os.getpid()}-trash-{time.monotonic_ns()}"
        with self._errors("remove"):
            try:
                os.rename(entry, trash)
            except FileNotFoundError:
                return
            if trash.is_dir():
                shutil.rmtree(trash, ignore_errors=True)
            else:
                trash.unlink()

    def entries(self) -> list[CacheEntry]:
        """Return the entries of all queries in the cache, in order of last use."""
        cached = []
        for folder in self.top.glob("*/shard=*"):
            for path in _children(folder):
                with contextlib.suppress(FileNotFoundError):
                    cached.append(CacheEntry(path, _size_bytes(path), path.stat().st_mtime))
        return sorted(cached, key=lambda entry: entry.used_s)

    def trim(self, keep: Path | None = None) -> int:
        """Remove leftovers of killed processes, and entries while the cache is above its bound.

        Returns how many entries were removed. Never removes the entry ``keep``.
        """
        self._grown_bytes = 0
        oldest_s = time.time() - LEFTOVER_AGE_S
        for leftover in _children(self.top / _TEMP):
            with contextlib.suppress(OSError):
                if leftover.stat().st_mtime < oldest_s:
                    shutil.rmtree(leftover, ignore_errors=True)
                    leftover.unlink()
        entries = self.entries()
        used_bytes, removed = sum(entry.size_bytes for entry in entries), 0
        for entry in entries:
            if used_bytes <= self.cache_bytes:
                break
            if entry.path != keep:
                self.discard(entry.path)
                used_bytes, removed = used_bytes - entry.size_bytes, removed + 1
                for folder in (entry.path.parent, entry.path.parent.parent):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
        return removed

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise CatalogError(
                f"Cannot {verb} the local cache {self.top}: {exc}. Free space on this disk, or "
                "choose another cache directory.",
                remedy="local-disk",
            ) from exc


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _size_bytes(path: Path) -> int:
    files = _children(path) if path.is_dir() else [path]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            stat = file.stat()
            total += stat.st_size if stat.st_nlink == 1 else 0
    return total
