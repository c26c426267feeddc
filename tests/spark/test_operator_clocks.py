"""Where times come from, and what they do: clocks, watermarks, processing time."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import dedup.spark.driver.build
from dedup import time_from_id
from tests.support.oracle import sums_hold
from tests.support.spark_query import BASE, Query, trace


def test_a_2099_row_inside_a_year_old_backfill(spark: SparkSession, tmp_path: Path) -> None:
    """It counts as now and moves no clock: the backfill continues, nothing is late."""
    far = 75 * 366 * 86_400
    run = trace(
        spark, tmp_path, [["a@0", f"x@{far}"], ["a@30", "b@30"], [f"x@{far + 1}", "b@40", "c@40"]],
        horizon="60 seconds", lateness="60 seconds",
    )  # fmt: skip
    assert run.told() == [
        ["a@0 unique", f"x@{far} unique"],
        ["a@30 duplicate", "b@30 unique"],
        ["b@40 duplicate", "c@40 unique", f"x@{far + 1} duplicate"],
    ]
    assert [m.future for m in run.metrics] == [1, 0, 1]
    newest = [m.newest_ms for m in run.metrics]
    base_ms = int(BASE.timestamp()) * 1000
    assert newest == [base_ms, base_ms + 30_000, base_ms + 40_000]


def test_max_future_is_a_bound_on_trust(spark: SparkSession, tmp_path: Path) -> None:
    ahead = int(time.time() - BASE.timestamp()) + 1800
    run = trace(
        spark, tmp_path, [[f"a@{ahead}", "b@0"]],
        horizon="1 day", lateness="1 day", max_future="1 hour",
    )  # fmt: skip
    assert run.metrics[0].future == 0
    assert run.metrics[0].newest_ms == (ahead + int(BASE.timestamp())) * 1000
    # The watermark is bounded by now all the same.
    now_ms = run.metrics[0].now_ms
    assert run.metrics[0].late_watermark_ms == now_ms - 86_400_000


def test_the_source_partition_that_holds_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """It is ten horizons behind: its records are not late, and the metrics name it."""
    run = trace(
        spark, tmp_path, [["f@600/fast", "s@0/slow"], ["s@5/slow", "t@7/slow", "f@601/fast"]],
        horizon="60 seconds", lateness="10 seconds", source_partition="src",
    )  # fmt: skip
    assert run.told()[1] == ["f@601 duplicate", "s@5 duplicate", "t@7 unique"]
    last = run.metrics[-1]
    assert last.gc_source == '"slow"'
    assert last.low_watermark_ms == int(BASE.timestamp()) * 1000 + 7_000


@pytest.mark.slow
def test_an_idle_source_partition_lets_the_watermark_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = [["f@600/fast", "s@0/slow"], *([f"f@{600 + n}/fast"] for n in (100, 200, 300, 400))]
    batches += [["s@1/slow", "z@3/slow", "f@1000/fast"]]
    told = trace(
        spark, tmp_path, batches,
        horizon="2000 seconds", lateness="10 seconds", source_partition=["src"],
        idle_timeout="1 millisecond",
    )  # fmt: skip
    lows = [(m.low_watermark_ms - int(BASE.timestamp()) * 1000) // 1000 for m in told.metrics]
    # It goes after the time-out and three micro-batches in which others spoke.
    assert lows[:5] == [0, 0, 0, 900, 1000]
    assert told.told()[-1] == ["f@1000 duplicate", "s@1 duplicate", "z@3 late"]
    assert told.metrics[-1].returned_from_idle == 2


def test_composite_source_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """Also of dates and timestamps that Python does not know."""
    spark.conf.set("spark.sql.session.timeZone", "GMT+8")
    beyond = F.timestamp_micros(F.lit(253_402_300_800_000_000))
    told = trace(
        spark, tmp_path, [["f@600/fast", "s@0/slow"], ["t@7/slow"]],
        horizon="60 seconds", lateness="10 seconds",
        source_partition=[F.col("src"), F.length("src"), beyond, F.to_date(beyond)],
    )  # fmt: skip
    assert told.told()[1] == ["t@7 unique"]
    assert told.metrics[1].gc_source == ('["slow",4,"10000-01-01 00:00:00+00:00","10000-01-01"]')


def uuid7(seconds: int, tail: int) -> str:
    ms = (int(BASE.timestamp()) + seconds) * 1000
    return str(uuid.UUID(int=ms << 80 | 7 << 76 | 0b10 << 62 | tail))


def test_time_carried_in_the_id(spark: SparkSession, tmp_path: Path) -> None:
    a, b, late = uuid7(0, 1), uuid7(100, 2), uuid7(3, 3)
    options: dict[str, Any] = {
        "timestamp": time_from_id("uuid7"), "horizon": "60 seconds", "lateness": "10 seconds",
        "stable_timestamps": True,
    }  # fmt: skip
    # Column `ts` says something else throughout, and is not looked at.
    told = trace(
        spark, tmp_path, [[f"{a}@7", f"{b}@7", "-@9"], [f"{a}@7", f"{late}@999"]], **options
    )
    assert sorted(t.split()[1] for t in told.told()[0]) == ["null_id", "unique", "unique"]
    assert told.told()[1] == sorted([f"{a}@7 late", f"{late}@999 late"])
    assert told.metrics[0].newest_ms == (int(BASE.timestamp()) + 100) * 1000
    upper = uuid7(100, 4).upper()
    with pytest.raises(StreamingQueryException, match=r"no timestamp \(uuid7 in the record ID\)"):
        trace(spark, tmp_path / "v4", [[f"{upper}@0"]], **options)


@pytest.mark.slow
def test_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    """Timed by arrival; memory survives a restart; what is older than the horizon is forgotten."""
    query = Query(spark, tmp_path, {"horizon": "1 hour", "verdict": "verdict"})
    query.add("a@0", "b@0", "a@9").add("a@5", "-@0")
    first = query.run()
    assert [Counter(t.split()[1] for t in batch) for batch in first.told()] == [
        {"unique": 2, "duplicate": 1}, {"duplicate": 1, "null_id": 1},
    ]  # fmt: skip
    query.add("b@0", "c@0")
    again = query.run()
    assert again.told() == [["b@0 duplicate", "c@0 unique"]]
    sums_hold(first.metrics + again.metrics, [3, 2, 2])
    assert again.metrics[0].newest_ms == again.metrics[0].now_ms
    assert abs(again.metrics[0].now_ms - time.time() * 1000) < 120_000
    query.options["horizon"] = "1 millisecond"
    query.options["buckets"] = 1
    query.add("d@0")
    query.run()
    query.add("a@0", "c@0")
    assert query.run().told() == [["a@0 unique", "c@0 unique"]]


@pytest.mark.slow
def test_clock_jumps_stop_processing_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's clock is set a year back: the micro-batch's time is ahead of it."""

    def a_year_back(plan: Any, key: Any, frames: Any, state: Any) -> Any:
        from unittest.mock import patch

        from dedup.spark.executor import group

        now_ms = group.wall_clock_ms() - 365 * 86_400_000
        with patch.object(group, "wall_clock_ms", lambda: now_ms):
            yield from group.dedup_stream(plan, key, frames, state)

    monkeypatch.setattr(dedup.spark.driver.build, "dedup_stream", a_year_back)
    query = Query(spark, tmp_path, {"horizon": "1 day", "verdict": "verdict"}).add("a@0", "a@1")
    with pytest.raises(
        StreamingQueryException,
        match=r"(?s)more than a minute ahead of this worker's clock .*accept_clock_jump=True",
    ):
        query.run()
    query.options["accept_clock_jump"] = True
    assert Counter(text.split()[1] for text in query.run().told()[0]) == {
        "unique": 1, "duplicate": 1,
    }  # fmt: skip


def test_times_without_a_zone_are_read_as_utc(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    local = F.col("ts").cast("timestamp_ntz")
    run = trace(spark, tmp_path, [["a@0", "b@7"]], horizon="1 day", timestamp=local)
    offset_ms = (5 * 60 + 30) * 60_000
    assert run.metrics[0].newest_ms == int(BASE.timestamp()) * 1000 + 7_000 + offset_ms


def test_null_timestamps_as_now(spark: SparkSession, tmp_path: Path) -> None:
    """They are de-duplicated under the micro-batch's time and do not advance the clock."""
    run = trace(
        spark, tmp_path, [["a@-", "b@0"], ["a@-", "a@0", "c@10"], ["c@5"]],
        horizon="60 seconds", lateness="60 seconds", null_timestamps="now",
    )  # fmt: skip
    assert run.told() == [
        ["a@- unique", "b@0 unique"],
        ["a@- duplicate", "a@0 unique", "c@10 unique"],
        ["c@5 duplicate"],
    ]
    assert [m.null_timestamp for m in run.metrics] == [1, 1, 0]
    assert [m.late for m in run.metrics] == [0, 0, 0]
