"""What the running micro-batch of a query has observed so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dedup.cli.run.output_folder import checkpoint_query_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def observed_so_far(spark: SparkSession, checkpoint: Path, name: str) -> dict[str, int]:
    """Return the observed whole numbers of that name; empty if there are none.

    Spark has no public interface for them, so that any error is possible.
    """
    query_id = checkpoint_query_id(checkpoint)
    for query in spark.streams.active:
        if str(query.id) == query_id:
            row = query._jsq.streamingQuery().lastExecution().observedMetrics().get(name).get()
            values = {column: row.get(at) for at, column in enumerate(row.schema().fieldNames())}
            return {column: int(v) for column, v in values.items() if isinstance(v, int)}
    return {}
