"""Spark's arbitrary state with a time to live per ID, `transformWithState`, keyed in two ways.

Keyed by ID, every ID is a group of its own with one flag. Keyed by shard, a group's map holds the
flags of many IDs, and its rows come as data frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as fn
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.harness import HORIZON_MS

_FLAG = "seen boolean"
_SEEN = (True,)


class FlagPerId(StatefulProcessor):
    """The first row of each ID, whose group remembers for a horizon that it went on."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", _FLAG, HORIZON_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        if not self._seen.exists():
            self._seen.update(_SEEN)
            yield next(rows)


class IdsPerShard(StatefulProcessor):
    """The first row of each ID of a shard, which remembers its IDs in a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getMapState("seen", "event_id string", _FLAG, HORIZON_MS)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        for frame in rows:
            firsts = frame.drop(columns="shard").drop_duplicates("event_id")
            new = [not self._seen.containsKey((event_id,)) for event_id in firsts["event_id"]]
            firsts = firsts[new]
            for event_id in firsts["event_id"]:
                self._seen.updateValue((event_id,), _SEEN)
            yield firsts


def flag_per_id(events: DataFrame, folder: Path) -> DataFrame:
    groups = events.groupBy("event_id")
    return groups.transformWithState(FlagPerId(), events.schema, "append", "ProcessingTime")


def ids_per_shard(events: DataFrame, folder: Path) -> DataFrame:
    shards = events.sparkSession.conf.get("spark.sql.shuffle.partitions")
    sharded = events.withColumn("shard", fn.expr(f"pmod(hash(event_id), {shards})"))
    groups = sharded.groupBy("shard")
    return groups.transformWithStateInPandas(
        IdsPerShard(), events.schema, "append", "ProcessingTime"
    )
