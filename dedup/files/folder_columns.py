"""Columns that folders name, such as ``day=2024-05-01``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")


def folder_names(path: Path, root: Path) -> Iterator[str]:
    """Return the names of columns in the folders between a root and a file, as Spark reads them."""
    for part in path.relative_to(root).parts[:-1]:
        if "=" in part:
            # Spark writes %3A for a colon, each such character by itself.
            yield _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part.partition("=")[0])
