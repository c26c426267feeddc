"""Record IDs for records that bring none: the same at every replay, on every machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dedup.record_id.canonical import of_values

if TYPE_CHECKING:
    from dedup.record_id.lines import read_lines
    from dedup.record_id.recipe import IdRecipe, from_columns, from_file, from_kafka

__all__ = ["IdRecipe", "from_columns", "from_file", "from_kafka", "of_values", "read_lines"]

_HOMES = {
    "IdRecipe": "dedup.record_id.recipe",
    "from_columns": "dedup.record_id.recipe",
    "from_file": "dedup.record_id.recipe",
    "from_kafka": "dedup.record_id.recipe",
    "read_lines": "dedup.record_id.lines",
}


def __getattr__(name: str) -> Any:
    """Load what needs Spark only when it is asked for: producers make IDs without it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
