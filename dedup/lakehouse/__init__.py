"""Tables of Delta Lake and Apache Iceberg as sinks: each micro-batch of a query is there once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup.lakehouse.lake_function import delta_sink, iceberg_sink
    from dedup.lakehouse.spark_once import delta_once, iceberg_once

__all__ = ["delta_once", "delta_sink", "iceberg_once", "iceberg_sink"]

_HOMES = {
    "delta_once": "dedup.lakehouse.spark_once",
    "delta_sink": "dedup.lakehouse.lake_function",
    "iceberg_once": "dedup.lakehouse.spark_once",
    "iceberg_sink": "dedup.lakehouse.lake_function",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: neither Spark nor a library of tables is needed before."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
