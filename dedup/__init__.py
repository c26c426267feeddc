"""Exactly-once records for Spark Structured Streaming, by record ID, within a horizon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.lazy import lazily

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

__getattr__, __dir__ = lazily(
    __name__,
    __all__,
    {
        "dedup.core.metrics": "BatchMetrics",
        "dedup.formats": "register",
        "dedup.record_id": "",
        "dedup.sinks.split": "split",
        "dedup.spark.driver.check_query": "check_query",
        "dedup.spark.driver.listener": "DedupListener",
        "dedup.spark.driver.operator": "dedup_by_id",
        "dedup.spark.driver.sequence_operator": "dedup_by_sequence",
        "dedup.spark.idtime": "time_from_id",
        "dedup.tools": "",
    },
)
