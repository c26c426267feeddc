"""De-duplicates streams in Spark Structured Streaming.

Within a horizon of time, each record ID passes exactly once.
"""

from __future__ import annotations

import sys

from dedup.core.version import VERSION as __version__  # noqa: N811
from dedup.errors.lazy import lazily

__all__ = [
    "BatchMetrics",
    "DedupListener",
    "SequenceMetrics",
    "__version__",
    "check_query",
    "dedup_by_id",
    "dedup_by_sequence",
    "errors",
    "kafka_records",
    "record_id",
    "register",
    "split",
    "time_from_id",
    "tools",
]

_HOMES = {
    "BatchMetrics": "dedup.core.metrics",
    "DedupListener": "dedup.tools.watch.listener",
    "SequenceMetrics": "dedup.core.sequence_metrics",
    "check_query": "dedup.tools.check.check_query",
    "dedup_by_id": "dedup.spark.driver.operator",
    "dedup_by_sequence": "dedup.spark.driver.operator",
    "errors": "dedup.errors",
    "kafka_records": "dedup.sources.kafka.stream",
    "record_id": "dedup.sources.record_id",
    "register": "dedup.sinks.formats",
    "split": "dedup.sinks.fan_out",
    "time_from_id": "dedup.spark.idtime",
    "tools": "dedup.tools",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)

if sys.platform == "win32":
    raise ImportError(
        "rolling-dedup does not run on Windows, which lacks Linux's locks and durable folders. "
        "Install it, and Spark, in WSL: the Windows Subsystem for Linux."
    )
