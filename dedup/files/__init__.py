"""Files as an output that shows each micro-batch once, and files to files past Spark's own I/O."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup.files.parquet import dedup_parquet
    from dedup.files.sink.files_function import files_sink
    from dedup.files.sink.published import published_files

__all__ = ["dedup_parquet", "files_sink", "published_files"]

_HOMES = {
    "dedup_parquet": "dedup.files.parquet",
    "files_sink": "dedup.files.sink.files_function",
    "published_files": "dedup.files.sink.published",
}


def __getattr__(name: str) -> Any:
    """Load what needs Spark only when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
