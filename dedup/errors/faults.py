"""Named steps of the code at which `dedup.testing.faults` can make this process fail."""

from __future__ import annotations

import os
from importlib import import_module

_folder = os.environ.get("DEDUP_FAULTS")


def point(name: str, path: str | os.PathLike[str] | None = None) -> None:
    """Fail if a test has armed the step `name`. The fault may damage the file `path`."""
    if _folder is not None:
        import_module("dedup.testing.faults").visit(_folder, name, path)
