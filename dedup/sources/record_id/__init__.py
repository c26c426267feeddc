"""Makes record IDs for records without an ID.

A record gets the same ID at every replay and on every machine.
"""

from __future__ import annotations

from dedup.errors.lazy import lazily

__all__ = ["IdRecipe", "from_columns", "from_file", "from_kafka", "of_values", "read_lines"]

_HOMES = {
    "IdRecipe": "dedup.sources.record_id.recipe",
    "from_columns": "dedup.sources.record_id.recipe",
    "from_file": "dedup.sources.record_id.recipe",
    "from_kafka": "dedup.sources.record_id.recipe",
    "of_values": "dedup.sources.record_id.canonical",
    "read_lines": "dedup.sources.record_id.recipe",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
