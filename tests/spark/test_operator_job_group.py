"""A sink may name its job group as it likes: the operator's identity does not hang on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_id


def run(spark: SparkSession, folder: Path, id_column: str, batches: int) -> list[list[Any]]:
    """Run some micro-batches, all under one job group."""
    out: list[list[Any]] = []

    def sink(frame: DataFrame, batch: int) -> None:
        spark.sparkContext.setJobGroup("orders-dedup", "named by the sink")
        out.append(sorted(row.id for row in frame.collect()))

    ticks = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 40)
        .option("startTimestamp", 0)
        .option("advanceMillisPerBatch", 1000)
        .load()
    )
    events = ticks.selectExpr(
        "cast(floor(value / 2) as string) as id", "cast(value as string) as other", "timestamp"
    )
    unique = events.transform(
        dedup_by_id(
            id_column,
            horizon="1 day",
            timestamp="timestamp",
            catalog=str(folder / "catalog"),
            state_budget_bytes=16 << 10,
        )
    )
    query = (
        unique.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    while query.isActive and len(out) < batches:
        query.awaitTermination(0.2)
    query.stop()
    if query.exception() is not None:
        raise query.exception()
    return out


@pytest.mark.slow
def test_the_certificate_is_checked_at_every_start(spark: SparkSession, tmp_path: Path) -> None:
    first = run(spark, tmp_path, "id", 3)
    assert all(len(ids) == len(set(ids)) == 20 for ids in first[:3])
    with pytest.raises(StreamingQueryException, match=r"ID is other .* now and was id "):
        run(spark, tmp_path, "other", 1)
    again = run(spark, tmp_path, "id", 2)
    assert all(len(ids) == 20 for ids in again[:2])
