"""Spark's arbitrary state with a time to live per ID: `transformWithState`.

Rows are grouped by shard, whose map holds the IDs. A separate group for each ID, with one flag,
took twice as long: PySpark then sends every row as a separate record batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.harness import HORIZON_MS

_SEEN = (True,)


class IdsPerShard(StatefulProcessor):
    """The first row of each ID of a shard, which remembers its IDs in a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getMapState("seen", "event_id string", "seen boolean", HORIZON_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        for frame in rows:
            firsts = frame.drop(columns="shard").drop_duplicates("event_id")
            new = [not self._seen.containsKey((event_id,)) for event_id in firsts["event_id"]]
            firsts = firsts[new]
            for event_id in firsts["event_id"]:
                self._seen.updateValue((event_id,), _SEEN)
            yield firsts


def ids_per_shard(events: DataFrame, folder: Path) -> DataFrame:
    shards = events.sparkSession.conf.get("spark.sql.shuffle.partitions")
    sharded = events.withColumn("shard", fn.expr(f"pmod(hash(event_id), {shards})"))
    groups = sharded.groupBy("shard")
    return groups.transformWithStateInPandas(
        IdsPerShard(), events.schema, "append", "ProcessingTime"
    )
