"""What benchmarks compare with gives right answers: Spark's arbitrary state."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.events import Events
from benchmarks.harness import TUNED_ROCKSDB, Pipeline
from benchmarks.keyed_state import ids_per_shard
from benchmarks.pipelines import check


@pytest.mark.slow
def test_transform_with_state_lets_each_id_pass_once(spark: SparkSession, tmp_path: Path) -> None:
    events = Events(rows=200, duplicates=0.2)
    contender = Pipeline(
        "theirs", ids_per_shard, TUNED_ROCKSDB, count_rows=True, trigger="1 second"
    )
    contender.start(spark, tmp_path)
    for number in range(2):
        contender.feed(events.write(tmp_path / "data", number))
        check(contender, events, number + 1)
