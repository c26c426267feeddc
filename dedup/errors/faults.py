"""Steps at which a test can make this process fail: `dedup.testing.faults` says how."""

from __future__ import annotations

import os
from importlib import import_module

_folder = os.environ.get("DEDUP_FAULTS")


def point(name: str, path: str | os.PathLike[str] | None = None) -> None:
    """Fail here if a test has armed this step; `path` is the file that a fault may damage."""
    if _folder is not None:
        import_module("dedup.testing.faults").visit(_folder, name, path)
