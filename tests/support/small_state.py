"""Seeded queries whose state is small enough that every micro-batch writes segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.support.spark_query import Query, Run, seeded

HORIZON_S, LATENESS_S = 300, 60


#: Small enough that every micro-batch writes segments, and evicts about half of the filters.
OPTIONS: dict[str, Any] = {
    "timestamp": "ts", "horizon": f"{HORIZON_S} seconds", "bucket_length": "60 seconds",
    "lateness": f"{LATENESS_S} seconds", "verdict": "verdict", "state_budget_bytes": 16 << 10,
    "filter_state_bytes": 1 << 10,
    "keep_expired": "0 seconds",
}  # fmt: skip


def tables(batches: int, rows: int = 800) -> list[pa.Table]:
    return seeded(batches=batches, rows=rows, ids=rows * batches // 2, step_s=60, spread_s=150)


def query(spark: SparkSession, folder: Path, given: list[pa.Table], **options: Any) -> Query:
    made = Query(spark, folder, OPTIONS | options)
    for table in given:
        made.add_table(table)
    return made


def total(run: Run, name: str) -> int:
    return sum(getattr(m, name) for m in run.metrics)
