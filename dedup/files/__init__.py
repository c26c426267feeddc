"""Files to Parquet files around the operator, past Spark's own reader and writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup.files.parquet import dedup_parquet

__all__ = ["dedup_parquet"]


def __getattr__(name: str) -> Any:
    """Load what needs Spark only when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dedup.files.parquet import dedup_parquet

    return dedup_parquet
