"""Folders of downloaded files for the tests of a user, filled once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path


def user_cache() -> Path:
    """Return the folder of this user's downloads, which no one else can read or write."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = caches / "rolling-dedup-tests"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or folder.is_symlink():
        raise PermissionError(
            f"{folder} is a link, or another user owns it. Remove it, or set XDG_CACHE_HOME to a "
            "folder of your own."
        )
    folder.chmod(0o700)
    return folder


def fetched_once(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return the user's folder of this name, filled by the first process that asks for it.

    Other processes wait. If the first one fails, those that waited fail with the same words.
    Contents that differ need names that differ. `fetch` fills an empty folder, or raises OSError.
    """
    cache = user_cache()
    folder, failure = cache / name, cache / f"{name}.failed"
    began_ns = time.time_ns()
    with open(cache / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        if failure.exists() and failure.stat().st_mtime_ns >= began_ns:
            raise OSError(failure.read_text())
        try:
            with tempfile.TemporaryDirectory(dir=cache) as fetched:
                fetch(Path(fetched, name))
                # Whole or not at all: a process may be killed in the meantime.
                Path(fetched, name).rename(folder)
        except Exception as error:
            failure.write_text(str(error))
            raise
        failure.unlink(missing_ok=True)
    return folder


def pinned(page: Path) -> dict[str, str]:
    """Return names by SHA-256 from a file as ``sha256sum`` writes it."""
    return dict(line.split() for line in page.read_text().splitlines())


def check_files(files: Iterable[Path], pins: Mapping[str, str], page: str) -> None:
    """Raise OSError unless each file has a SHA-256 that is pinned for its name.

    Ivy keeps some files a second time under the end of their names.
    """
    for file in files:
        with open(file, "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if not pins.get(digest, "").endswith(file.name):
            with suppress(StopIteration):
                known = next(pin for pin, name in pins.items() if name == file.name)
                raise OSError(
                    f"{file} has the SHA-256 {digest}, and {page} says {known}. If it was "
                    f"damaged on this disk, remove {file.parent.parent} and start again."
                )
            raise OSError(f"{file} has the SHA-256 {digest}, and {page} has no line for it.")
