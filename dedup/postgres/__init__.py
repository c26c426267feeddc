"""PostgreSQL as a sink: each micro-batch of a query is in the table once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.lazy import lazily

if TYPE_CHECKING:
    from dedup.postgres.postgres_function import postgres_sink
    from dedup.postgres.table_ddl import create_table

__all__ = ["create_table", "postgres_sink"]

__getattr__, __dir__ = lazily(
    __name__,
    __all__,
    {
        "dedup.postgres.postgres_function": "postgres_sink",
        "dedup.postgres.table_ddl": "create_table",
    },
)
