"""A separate file system with room for a few megabytes, or few files, and how to fill it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

DISK_BYTES = 8 << 20


@contextmanager
def small_disk(folder: Path, *, inodes: int | None = None) -> Iterator[Path]:
    """A mount that is gone at the end; the test is skipped where mounting is not allowed."""
    folder.mkdir()
    options = f"size={DISK_BYTES}" + (f",nr_inodes={inodes}" if inodes else "")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        pytest.skip(f"needs the command mount: {error}")
    if done.returncode:
        pytest.skip("needs the right to mount a file system (root has it)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=20, check=False)


def fill(disk: Path, leave_bytes: int = 0) -> Path:
    """Leave no more than so many bytes free; the file that takes the rest."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - leave_bytes
            if free <= 0 or not file.write(bytes(min(free, 1 << 16))):
                break
    return ballast


def take_inodes(disk: Path, leave: int = 0) -> Path:
    """Leave no more than so many files to be made; the folder of empty ones that takes the rest."""
    ballast = disk / "ballast"
    ballast.mkdir()
    for nth in range(max(0, os.statvfs(disk).f_favail - leave)):
        (ballast / f"{nth}").touch()
    return ballast
