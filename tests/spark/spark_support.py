"""Helpers of the tests that run Spark."""

from __future__ import annotations

import os
from pathlib import Path


class FileDrop:
    """Writes text or table files into a folder, each a second younger than the one before.

    Spark's file source orders by modification time; without distinct ones the micro-batches
    of a test would depend on luck.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        folder.mkdir(parents=True, exist_ok=True)

    def stamp(self, path: Path) -> Path:
        self.count += 1
        seconds = 1_700_000_000 + self.count
        os.utime(path, (seconds, seconds))
        return path

    def text(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return self.stamp(path)
