"""What `dedup compact` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def compacted_lines(body: dict[str, Any]) -> Iterator[str]:
    """Put what `compact` returns into words."""
    if body["folders"]:
        yield (
            f"{body['files_before']:,} files of {body['folders']:,} folders became "
            f"{body['files_after']:,}."
        )
    else:
        yield "There was nothing to merge."
    if body["left_folders"]:
        yield (
            f"{body['left_folders']:,} folders were left: their files cannot be put together, or "
            "lie beside folders."
        )
    if body["kept_bytes"]:
        yield (
            f"{body['kept_bytes'] / (1 << 20):,.1f} MiB of replaced files stay in _compaction "
            "until a later run."
        )
