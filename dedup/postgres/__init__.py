"""PostgreSQL as a sink: each micro-batch of a query is in the table once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup.postgres.postgres_function import postgres_sink
    from dedup.postgres.table_ddl import create_table

__all__ = ["create_table", "postgres_sink"]

_HOMES = {
    "create_table": "dedup.postgres.table_ddl",
    "postgres_sink": "dedup.postgres.postgres_function",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: neither Spark nor a driver of PostgreSQL is needed before."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
