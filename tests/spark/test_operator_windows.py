"""Windows after the operator count every record that it emits (`window_delay`), on real streams."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import dedup_by_id
from dedup.core.metrics import BatchMetrics
from dedup.errors import ConfigError
from dedup.spark.observations import from_progress
from dedup.tools import read_checkpoint
from tests.support.needs import long
from tests.support.spark_query import Query, forget_commits

DELAY = "10 seconds"
#: Two micro-batches that end all windows, except the window of the last record.
ENDS = (("end@100000/end",), ("end@200000/end",))
OPTIONS: dict[str, Any] = {
    "timestamp": "ts", "horizon": "1 day", "late": "drop", "source_partition": "src",
}  # fmt: skip


@dataclass
class Windowed(Query):
    """A query whose windows list the IDs in them."""

    window: Column = field(default_factory=lambda: F.window("ts", "1 second"))
    #: By micro-batch, because a replay repeats it.
    counted: dict[int, list[str]] = field(default_factory=dict)
    metrics: dict[int, BatchMetrics] = field(default_factory=dict)
    #: Groups of rows that Spark dropped because they were behind its watermark.
    dropped: int = 0

    def read(self, *, with_empty_batches: bool = False) -> Counter[str]:
        """Run until the input is exhausted, and return how often the windows counted each ID."""
        self.then = lambda df: (
            df.withWatermark("ts", DELAY)
            .groupBy(self.window, "src")
            .agg(F.collect_list("id").alias("ids"))
        )

        def sink(df: DataFrame, batch: int) -> None:
            self.counted[batch] = [name for row in df.collect() for name in row.ids]

        writer = self.writer().foreachBatch(sink)
        if with_empty_batches:
            query = writer.trigger(processingTime="0 seconds").start()
            query.processAllAvailable()
        else:
            query = writer.start()
            assert query.awaitTermination(240)
        query.stop()
        for progress in query.recentProgress:
            operators = progress["stateOperators"]
            self.dropped += sum(each["numRowsDroppedByWatermark"] for each in operators)
            if (metrics := from_progress(progress)) is not None:
                self.metrics[metrics.batch_id] = metrics
        return Counter(name for names in self.counted.values() for name in names)

    def total(self, name: str) -> int:
        return sum(getattr(batch, name) for batch in self.metrics.values())


def windowed(spark: SparkSession, folder: Path, delay: str | None, **more: Any) -> Windowed:
    return Windowed(spark, folder, OPTIONS | {"window_delay": delay}, **more)


def partitions(seed: int) -> list[list[str]]:
    """Return micro-batches of a fast, a slow and an idle source partition, with copies."""
    rng = random.Random(seed)
    made: list[list[str]] = []
    sent: list[str] = []
    for batch in range(6):
        now_s = 100 + 20 * batch
        times = {
            "fast": [now_s + rng.randrange(20) for _ in range(12)],
            "slow": [now_s - rng.randrange(50) for _ in range(12)],
            "idle": [rng.randrange(80, 120) for _ in range(6)] if batch in (0, 5) else [],
        }
        new = [
            f"{source}{batch}.{n}@{at}/{source}"
            for source, those in times.items()
            for n, at in enumerate(those)
        ]
        made.append([*new, *rng.sample(sent, min(8, len(sent)))])
        sent += new
    return made


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(long(seed) for seed in range(1, 6))])
def test_every_emitted_record_is_counted(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Even after an empty micro-batch, a restart and a replay, and no record is late needlessly."""
    batches = partitions(seed)

    def run(name: str, delay: str | None) -> tuple[Windowed, Counter[str]]:
        query = windowed(spark, tmp_path / name, delay)
        for texts in batches[:3]:
            query.add(*texts)
        query.read(with_empty_batches=True)
        assert set(query.counted) > set(query.metrics), "a micro-batch without input"
        forget_commits(query.checkpoint, max(query.counted))
        for texts in (*batches[3:], *ENDS):
            query.add(*texts)
        return query, query.read()

    judged, counted = run("judged", DELAY)
    assert judged.dropped == 0
    assert counted.total() == judged.total("emitted") - 1, "the last window stays open"
    assert judged.total("late") > 10
    assert judged.total("duplicate") > 10
    unjudged, spared = run("unjudged", None)
    assert unjudged.dropped > 0
    assert spared.total() < unjudged.total("emitted") - 1, "the window drops some"
    assert spared == counted, "no record is late that these windows would have counted"


@pytest.mark.parametrize(
    "window",
    [
        long(lambda: F.window("ts", "1 second")),
        lambda: F.window("ts", "10 seconds", "5 seconds"),
        long(lambda: F.session_window("ts", "1 second")),
    ],
)
def test_a_record_at_the_watermark_is_counted(
    spark: SparkSession, tmp_path: Path, window: Any
) -> None:
    """Spark judges the third micro-batch by the first, and the fourth by the second."""
    slow, idle = ["c@90/slow", "d@89/slow"], ["e@190/idle", "f@189/idle", "d@200/fast"]
    query = windowed(spark, tmp_path, DELAY, window=window())
    for texts in (["a@100/fast"], ["b@200/fast"], slow, idle, *ENDS):
        query.add(*texts)
    assert set(query.read()) == {"a", "b", "c", "d", "e", "end"}
    assert query.dropped == 0
    assert [batch.late for batch in query.metrics.values()] == [0, 0, 1, 1, 0, 0]


def test_without_the_option_a_window_drops_records_silently(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = windowed(spark, tmp_path, None)
    for texts in (["a@100/fast"], ["b@200/fast"], ["c@90/slow", "d@89/slow"], *ENDS):
        query.add(*texts)
    assert set(query.read()) == {"a", "b", "c", "end"}
    assert (query.total("emitted"), query.total("late"), query.dropped) == (6, 0, 1)
    # Spark numbers the state of the window first.
    known = read_checkpoint(query.catalog, str(query.checkpoint), spark)
    assert [*known.states] == [0, 1]


@pytest.mark.parametrize("delay", [DELAY, None])
def test_window_delay_is_refused_if_all_operators_share_one_watermark(
    spark: SparkSession, tmp_path: Path, delay: str | None
) -> None:
    """A window would drop an emitted record of the third micro-batch, which is not late."""
    spark.conf.set("spark.sql.streaming.statefulOperator.allowMultiple", "false")
    query = windowed(spark, tmp_path, delay)
    for texts in (["a@100/fast"], ["b@200/fast"], ["c@90/slow"], *ENDS):
        query.add(*texts)
    if delay is not None:
        with pytest.raises(ConfigError, match="allowMultiple=false: Spark would judge a window"):
            query.read()
    else:
        assert set(query.read()) == {"a", "b", "end"}
        assert (query.total("late"), query.dropped) == (0, 1)


def test_a_batch_has_no_watermark(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, -9), (2, 9)], "id long, at long")
    rows = rows.select("id", F.timestamp_seconds("at").alias("ts"))
    operator = dedup_by_id("id", horizon="1 day", timestamp="ts", late="drop", window_delay=DELAY)
    assert rows.transform(operator).count() == 2


def test_a_heartbeat_advances_the_clock_of_its_partition(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {
        "timestamp": "ts", "horizon": "1 hour", "lateness": "0 seconds", "source_partition": "src",
        "heartbeat": F.col("id") == "beat", "verdict": "verdict",
    }  # fmt: skip
    query = Query(spark, tmp_path, options)
    query.add("a@100/p", "b@0/q", "-@7/q").add("beat@90/q", "beat@-/q", "c@100/p")
    query.add("d@89/q", "e@90/q")
    run = query.run()
    assert run.told() == [
        ["-@7 null_id", "a@100 unique", "b@0 unique"], ["c@100 unique"],
        ["d@89 late", "e@90 unique"],
    ]  # fmt: skip
    assert [m.heartbeats for m in run.metrics] == [0, 2, 0]
    assert [m.records_in for m in run.metrics] == [m.emitted for m in run.metrics] == [3, 1, 2]
    assert run.metrics[-1].live_ids == 5
