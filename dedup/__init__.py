"""Exactly-once records for Spark Structured Streaming, by record ID, within a horizon."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dedup import record_id, tools
    from dedup.core.metrics import BatchMetrics
    from dedup.formats import register
    from dedup.sinks.split import split
    from dedup.spark.driver.check_query import check_query
    from dedup.spark.driver.listener import DedupListener
    from dedup.spark.driver.operator import dedup_by_id
    from dedup.spark.driver.sequence_operator import dedup_by_sequence
    from dedup.spark.idtime import time_from_id

__version__ = "0.1.0"
__all__ = [
    "BatchMetrics",
    "DedupListener",
    "check_query",
    "dedup_by_id",
    "dedup_by_sequence",
    "record_id",
    "register",
    "split",
    "time_from_id",
    "tools",
]

_HOMES = {
    "BatchMetrics": "dedup.core.metrics",
    "DedupListener": "dedup.spark.driver.listener",
    "check_query": "dedup.spark.driver.check_query",
    "dedup_by_id": "dedup.spark.driver.operator",
    "dedup_by_sequence": "dedup.spark.driver.sequence_operator",
    "register": "dedup.formats",
    "split": "dedup.sinks.split",
    "time_from_id": "dedup.spark.idtime",
}


def __getattr__(name: str) -> Any:
    """Load what needs Spark only when it is asked for: the core imports without it."""
    if name in ("record_id", "tools"):
        return import_module(f"dedup.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "pyspark":
            from dedup.errors import MissingExtraError

            raise MissingExtraError("spark", f"dedup.{name}") from None
        raise
