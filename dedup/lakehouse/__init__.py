"""Tables of Delta Lake and Apache Iceberg as sinks: each micro-batch of a query is there once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.lazy import lazily

if TYPE_CHECKING:
    from dedup.lakehouse.lake_function import delta_sink, iceberg_sink
    from dedup.lakehouse.spark_once import delta_once, iceberg_once

__all__ = ["delta_once", "delta_sink", "iceberg_once", "iceberg_sink"]

__getattr__, __dir__ = lazily(
    __name__,
    __all__,
    {
        "dedup.lakehouse.lake_function": "delta_sink iceberg_sink",
        "dedup.lakehouse.spark_once": "delta_once iceberg_once",
    },
)
