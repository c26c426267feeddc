"""Makes record IDs for records without an ID.

A record gets the same ID at every replay and on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.errors.lazy import lazily
from dedup.sources.record_id.canonical import of_values

if TYPE_CHECKING:
    from dedup.sources.record_id.recipe import (
        IdRecipe,
        from_columns,
        from_file,
        from_kafka,
        read_lines,
    )

__all__ = ["IdRecipe", "from_columns", "from_file", "from_kafka", "of_values", "read_lines"]

__getattr__, __dir__ = lazily(
    __name__,
    __all__,
    {"dedup.sources.record_id.recipe": "IdRecipe from_columns from_file from_kafka read_lines"},
)
