"""Files as an output that shows each micro-batch once, and files to files past Spark's own I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.lazy import lazily

if TYPE_CHECKING:
    from dedup.files.parquet import dedup_parquet
    from dedup.files.sink.files_function import files_sink
    from dedup.files.sink.published import published_files

__all__ = ["dedup_parquet", "files_sink", "published_files"]

__getattr__, __dir__ = lazily(
    __name__,
    __all__,
    {
        "dedup.files.parquet": "dedup_parquet",
        "dedup.files.sink.files_function": "files_sink",
        "dedup.files.sink.published": "published_files",
    },
)
