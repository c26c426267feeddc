"""What becomes of each record, on real streams: verdicts, clocks, policies, arrival order."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from support import (
    ARROW,
    BASE,
    SCHEMA,
    Oracle,
    Query,
    finish,
    records,
    row_set,
    seeded,
    trace,
)

import dedup.spark.build
from dedup import BatchMetrics, DedupListener, dedup_by_id, time_from_id
from dedup.spark.metrics import from_progress


def sums_hold(metrics: list[BatchMetrics], rows_in: list[int]) -> None:
    assert [m.records_in for m in metrics] == rows_in
    for m in metrics:
        assert m.records_in == m.unique + m.duplicate + m.late + m.null_id, m
        assert m.shards == 2


def test_a_seeded_stream_against_the_oracle(spark: SparkSession, tmp_path: Path) -> None:
    tables = seeded(batches=5, rows=300, ids=250, step_s=40, spread_s=120)
    query = Query(
        spark,
        tmp_path,
        {
            "timestamp": "ts",
            "horizon": "100 seconds",
            "lateness": "50 seconds",
            "verdict": "verdict",
        },
    )
    for table in tables:
        query.add_table(table)
    run = query.run()
    Oracle(horizon_s=100, lateness_s=50).check(tables, run)
    sums_hold(run.metrics, [300] * 5)
    told = Counter(row["verdict"] for row in run.all_rows())
    assert min(told[v] for v in ("unique", "duplicate", "late")) > 10
    assert {v: told[v] for v in ("unique", "duplicate", "late")} == {
        v: sum(getattr(m, v) for m in run.metrics) for v in ("unique", "duplicate", "late")
    }


def test_without_a_verdict_column_only_what_goes_on_leaves(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(
        spark,
        tmp_path,
        {"timestamp": "ts", "horizon": "60 seconds", "lateness": "0 seconds", "null_ids": "drop"},
    )
    query.add("a@100", "a@100", "b@100", "-@100").add("a@150", "c@20", "-@150", "a@90")
    run = query.run()
    assert run.told() == [["a@100", "b@100"], ["c@20"]]
    sums_hold(run.metrics, [4, 4])
    assert [m.emitted for m in run.metrics] == [2, 1]
    assert list(query.result().columns) == ["id", "at", "ts", "src", "n"]


def test_the_horizon_is_inclusive_and_duplicates_do_not_prolong_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = [["x@0"], ["x@60"], ["x@61", "y@61"], ["x@121"]]
    run = trace(spark, tmp_path, batches, horizon="60 seconds", lateness="60 seconds")
    assert run.told() == [
        ["x@0 unique"], ["x@60 duplicate"], ["x@61 unique", "y@61 unique"], ["x@121 duplicate"],
    ]  # fmt: skip


def test_two_watermarks(spark: SparkSession, tmp_path: Path) -> None:
    """Horizon 60, bucket 10: one threshold for lateness and GC would emit x again."""
    run = trace(
        spark, tmp_path, [["x@0"], ["y@75"], ["x@20"]],
        horizon="60 seconds", bucket_length="10 seconds", lateness="60 seconds",
    )  # fmt: skip
    assert run.told() == [["x@0 unique"], ["y@75 unique"], ["x@20 duplicate"]]


def test_a_backfill_of_ten_horizons_in_one_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Clocks heard in a micro-batch take effect in the next one only."""
    first = [f"{name}@{t}" for t in range(0, 600, 60) for name in ("p", "q")]
    run = trace(
        spark, tmp_path, [first, ["p@600", "old@3"]],
        horizon="59 seconds", bucket_length="10 seconds", lateness="0 seconds",
    )  # fmt: skip
    assert set(run.told()[0]) == {f"{text} unique" for text in first}
    assert run.told()[1] == ["old@3 late", "p@600 unique"]


@pytest.mark.parametrize("late", ["emit", "drop"])
def test_late_records(spark: SparkSession, tmp_path: Path, late: str) -> None:
    batches = [["a@0", "b@100"], ["a@20", "c@10", "c@12"], ["c@10", "d@100"], ["b@30"]]
    query = Query(
        spark, tmp_path,
        {"timestamp": "ts", "horizon": "60 seconds", "lateness": "10 seconds", "late": late},
    )  # fmt: skip
    told = trace(
        spark, tmp_path / "marked", batches,
        horizon="60 seconds", lateness="10 seconds", late=late,
    ).told()  # fmt: skip
    # The late watermark is 90 from the second micro-batch on: late records count as @90.
    assert told[0] == ["a@0 unique", "b@100 unique"]
    assert "a@20 late" in told[1]
    c_told = Counter(text.split()[1] for text in told[1] if text.startswith("c"))
    if late == "emit":
        assert c_told == {"late": 1, "duplicate": 1}
        assert told[2:] == [["c@10 duplicate", "d@100 unique"], ["b@30 duplicate"]]
    else:
        # Not remembered, so never a reason to call a copy a duplicate; a known ID is one.
        assert c_told == {"late": 2}
        assert told[2:] == [["c@10 late", "d@100 unique"], ["b@30 duplicate"]]
    for texts in batches:
        query.add(*texts)
    run = query.run()
    marked = [[t.split()[0] for t in batch if _goes_on(t, late)] for batch in told]
    assert [len(batch) for batch in run.told()] == [len(batch) for batch in marked]
    assert [{t[0] for t in batch} for batch in run.told()] == [{t[0] for t in b} for b in marked]
    sums_hold(run.metrics, [2, 3, 2, 1])
    assert [m.late for m in run.metrics] == ([0, 2, 0, 0] if late == "emit" else [0, 3, 1, 0])


def _goes_on(text: str, late: str) -> bool:
    return text.endswith("unique") or (late == "emit" and text.endswith("late"))


def test_null_ids_emitted(spark: SparkSession, tmp_path: Path) -> None:
    batches = [["-@0", "-@0", "a@0"], ["-@0", "a@1"], ["-@1"]]
    run = trace(spark, tmp_path, batches, horizon="60 seconds")
    assert run.told() == [
        ["-@0 null_id", "-@0 null_id", "a@0 unique"], ["-@0 null_id", "a@1 duplicate"],
        ["-@1 null_id"],
    ]  # fmt: skip
    assert [m.null_id for m in run.metrics] == [2, 1, 1]
    assert [m.emitted for m in run.metrics] == [3, 2, 1]


def test_null_ids_and_null_timestamps_as_errors(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(
        StreamingQueryException, match=r'(?s)2 records have a null ID \(id\) and null_ids="error"'
    ):
        trace(
            spark, tmp_path / "id", [["-@0", "a@0", "-@1"]],
            horizon="1 day", null_ids="error",
        )  # fmt: skip
    with pytest.raises(
        StreamingQueryException,
        match=r'(?s)1 records have no timestamp \(column ts timestamp\).*null_timestamps="now"',
    ):
        trace(spark, tmp_path / "ts", [["a@-", "a@0"]], horizon="1 day")


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


def test_a_2099_row_inside_a_year_old_backfill(spark: SparkSession, tmp_path: Path) -> None:
    """It counts as now, is counted, moves no clock: the backfill goes on, nothing is late."""
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


def test_each_source_partition_has_a_clock(spark: SparkSession, tmp_path: Path) -> None:
    """One clock ten horizons behind: its records are not late, and their copies are known."""
    batches = [
        ["f@600/fast", "s@0/slow"],
        ["s@5/slow", "t@7/slow", "f@601/fast"],
        ["t@8/slow", "g@700/fast"],
    ]
    told = trace(
        spark, tmp_path / "own", batches,
        horizon="60 seconds", lateness="10 seconds", source_partition="src",
    )  # fmt: skip
    assert told.told() == [
        ["f@600 unique", "s@0 unique"],
        ["f@601 duplicate", "s@5 duplicate", "t@7 unique"],
        ["g@700 unique", "t@8 duplicate"],
    ]
    last = told.metrics[-1]
    assert last.gc_source == '"slow"'
    assert last.low_watermark_ms == int(BASE.timestamp()) * 1000 + 8_000
    one = trace(
        spark, tmp_path / "one", batches, horizon="60 seconds", lateness="10 seconds", late="drop"
    )
    assert [m.late for m in one.metrics] == [0, 2, 1]


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
    told = trace(
        spark, tmp_path, [["f@600/fast", "s@0/slow"], ["t@7/slow"]],
        horizon="60 seconds", lateness="10 seconds",
        source_partition=[F.col("src"), F.length("src")],
    )  # fmt: skip
    assert told.told()[1] == ["t@7 unique"]
    assert told.metrics[1].gc_source == '["slow",4]'


@pytest.mark.parametrize("late", ["emit", "drop"])
def test_stable_timestamps(spark: SparkSession, tmp_path: Path, late: str) -> None:
    """Copies carry the same time; a small budget puts everything into segments.

    Late copies of x are clamped under "emit": copies with x's own time must find them.
    """
    fill = [[f"f{batch}-{n}@{batch * 100}" for n in range(1500)] for batch in range(4)]
    batches = [
        ["a@5", *fill[0]],
        ["a@5", "b@100", "x@1", *fill[1]],
        ["b@100", "x@1", "y@3", *fill[2]],
        ["y@3", "x@1", "b@100", *fill[3]],
    ]
    told = trace(
        spark, tmp_path, batches, horizon="1000 seconds", bucket_length="10 seconds",
        lateness="50 seconds", late=late, stable_timestamps=True, state_budget_bytes=16 << 10,
    )  # fmt: skip
    few = [[t for t in batch if not t.startswith("f")] for batch in told.told()]
    if late == "emit":
        assert few == [
            ["a@5 unique"], ["a@5 duplicate", "b@100 unique", "x@1 unique"],
            ["b@100 duplicate", "x@1 duplicate", "y@3 late"],
            ["b@100 duplicate", "x@1 duplicate", "y@3 duplicate"],
        ]  # fmt: skip
    else:
        assert few[1:3] == [
            ["a@5 duplicate", "b@100 unique", "x@1 unique"],
            ["b@100 duplicate", few[2][1], "y@3 late"],
        ]
        # Memory behind the late watermark is given up: copies there are late for good.
        assert few[3] == ["b@100 late", "x@1 late", "y@3 late"]
    assert sum(m.segments_written for m in told.metrics) > 4
    assert (sum(m.segments_expired for m in told.metrics) > 0) == (late == "drop")


def test_a_clamp_at_a_bucket_edge_with_stable_times(spark: SparkSession, tmp_path: Path) -> None:
    """Late at watermark 100, records of 95 are taken as @100, into a segment of [100, 120).

    Later copies belong to [80, 100) and, when the watermark is 130, to [120, 140).
    """
    late = [f"x{n}@95" for n in range(1500)]
    told = trace(
        spark, tmp_path, [["w@150"], late, [*late, "v@180"], late],
        horizon="60 seconds", bucket_length="20 seconds", lateness="50 seconds",
        stable_timestamps=True, state_budget_bytes=16 << 10,
    )  # fmt: skip
    assert [(m.unique, m.late, m.duplicate) for m in told.metrics] == [
        (1, 0, 0), (0, 1500, 0), (1, 0, 1500), (0, 0, 1500),
    ]  # fmt: skip
    assert told.metrics[1].segments_written == 2
    assert told.metrics[3].filter_true_positive == 1500


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


def test_the_same_winner_whatever_the_file_split(spark: SparkSession) -> None:
    """Arrival order inside a micro-batch is content: time, order columns, hash of the row."""
    rows = [
        (f"id{n % 50}", n % 3, n, {"k": [float(n)], "z": None}, [(n, str(n))]) for n in range(600)
    ]
    frame = spark.createDataFrame(
        rows,
        "id string, at int, n int, m map<string,array<double>>, a array<struct<i:int,s:string>>",
    ).withColumn("ts", F.timestamp_seconds("at"))
    seen = []
    for order in (frame.repartition(5), frame.coalesce(1), frame.orderBy(F.desc("n"))):
        by_hash = order.transform(dedup_by_id("id", horizon="1 day", timestamp="ts"))
        by_column = order.transform(
            dedup_by_id("id", horizon="1 day", timestamp="ts", order_by=[F.col("n") % 7, "n"])
        )
        seen.append(
            (
                sorted(r.n for r in by_hash.collect()),
                sorted((r.id, r.n) for r in by_column.collect()),
            )
        )
    assert seen[0] == seen[1] == seen[2]
    best: dict[str, tuple[int, int, int]] = {}
    for name, at, n, *_ in rows:
        best[name] = min(best.get(name, (9, 9, 9)), (at, n % 7, n))
    assert seen[0][1] == sorted((name, n) for name, (_, _, n) in best.items())
    # The hash is no disguised column: neither the first nor the last row wins throughout.
    by_time = [
        [n for name, at, n, *_ in rows if name == key and at == best[key][0]] for key in best
    ]
    winners = set(seen[0][0])
    assert not winners >= {max(group) for group in by_time}
    assert not winners >= {min(group) for group in by_time}


def test_order_by_of_every_type_that_has_an_order(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    frame = spark.createDataFrame([("a", 3), ("a", 1), ("a", 2)], "id string, n int")
    for order in (
        "n", "-n", "cast(n as double)", "cast(n as decimal(38,9))", "cast(n as string)",
        "cast(cast(n as string) as binary)", "n = 1", "timestamp_seconds(n)",
        "date_add(date'2024-01-01', n)", "make_dt_interval(n)", "make_time(n, 0, 0)",
        "cast(timestamp_seconds(n) as timestamp_ntz)",
    ):  # fmt: skip
        (kept,) = frame.transform(
            dedup_by_id("id", horizon="1 day", order_by=F.expr(order))
        ).collect()
        wanted = {"-n": 3, "n = 1": None}.get(order, 1)
        assert kept.n == wanted or (wanted is None and kept.n in (2, 3)), order


def test_equal_rows_win_whatever_their_nested_times(spark: SparkSession) -> None:
    """Ties are settled by a hash of all columns, also of what Python's datetime cannot hold."""
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    frame = spark.sql(
        """SELECT 'a' AS id, n, array(timestamp_micros(-62135596800000000 + n)) AS first,
                  map('far', timestamp_micros(253402300799999999 - n)) AS last,
                  struct(interval 1 day AS d, time'12:00:00' AS t) AS others
           FROM VALUES (1), (2), (3) AS t(n)"""
    )
    winners = {
        frame.repartition(n).transform(dedup_by_id("id", horizon="1 day")).select("n").first().n
        for n in (1, 3)
    }
    assert len(winners) == 1


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


def test_metrics_reach_a_listener(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[BatchMetrics] = []
    listener = DedupListener(seen.append, metrics="orders")
    other = DedupListener(lambda _: seen.append(None), metrics="another")  # type: ignore[arg-type]
    spark.streams.addListener(listener)
    spark.streams.addListener(other)
    try:
        query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day", "metrics": "orders"})
        query.add("a@0", "b@0", "a@1").add("b@5", "c@5")
        run = query.run()
        deadline = time.monotonic() + 30
        while len(seen) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
        spark.streams.removeListener(other)
    assert [(m.batch_id, m.records_in, m.unique, m.duplicate) for m in seen] == [
        (0, 3, 2, 1), (1, 2, 1, 1),
    ]  # fmt: skip
    assert seen == run.metrics
    assert seen[1].live_ids == 3
    assert seen[1].gc_lag_newest_ms == 86_400_000 + 3_600_000


def test_a_callback_that_fails_is_logged_and_harms_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    called = []

    def fail(metrics: BatchMetrics) -> None:
        called.append(metrics.batch_id)
        raise RuntimeError("the dashboard is down")

    caplog.set_level(logging.INFO, "dedup")
    listener, plain = DedupListener(fail), DedupListener()
    spark.streams.addListener(listener)
    spark.streams.addListener(plain)
    try:
        run = trace(spark, tmp_path, [["a@0"], ["a@0"]], horizon="1 day")
        deadline = time.monotonic() + 30
        while len(called) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        while "batch 1: " not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
        spark.streams.removeListener(plain)
    assert run.told() == [["a@0 unique"], ["a@0 duplicate"]]
    assert called == [0, 1]
    assert "the dashboard is down" in caplog.text
    # Without a callback, a line per micro-batch.
    assert "batch 0: 1 in, 1 unique, 0 duplicate, 0 late" in caplog.text
    assert "batch 1: 1 in, 0 unique, 1 duplicate, 0 late" in caplog.text


def test_metrics_from_progress_as_json(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day"}).add("a@0", "a@1")
    writer = query.result().writeStream.format("noop").trigger(availableNow=True)
    running = writer.option("checkpointLocation", str(query.checkpoint)).start()
    (metrics,) = finish(running)
    (progress,) = running.recentProgress
    assert from_progress(json.loads(progress.json)) == metrics
    assert from_progress(json.loads(progress.json), "another") is None
    assert from_progress(progress, "another") is None


def test_clock_jumps_stop_processing_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's clock is set a year back: the micro-batch's time is ahead of it."""

    def a_year_back(plan: Any, key: Any, frames: Any, state: Any) -> Any:
        from unittest.mock import patch

        from dedup.spark import group

        now_ms = group.worker_now_ms() - 365 * 86_400_000
        with patch.object(group, "worker_now_ms", lambda: now_ms):
            yield from group.dedup_stream(plan, key, frames, state)

    monkeypatch.setattr(dedup.spark.build, "dedup_stream", a_year_back)
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


def test_many_rows(spark: SparkSession) -> None:
    """More than the buffers of pack and the blobs of a shard take at once."""
    frame = spark.range(200_000, numPartitions=2).selectExpr("id % 150000 AS id", "id AS n")
    kept = frame.transform(dedup_by_id("id", horizon="1 day", order_by="n"))
    assert kept.agg(F.count("*"), F.countDistinct("id"), F.max("n")).first() == (
        150_000, 150_000, 149_999,
    )  # fmt: skip


def test_binary_columns_as_bytearray(spark: SparkSession, tmp_path: Path) -> None:
    """A setting of Spark's for how Python sees binary values; ours are no business of it."""
    spark.conf.set("spark.sql.execution.pyspark.binaryAsBytes", "false")
    run = trace(spark, tmp_path, [["a@0", "a@1"], ["a@2"]], horizon="1 day")
    assert run.told() == [["a@0 unique", "a@1 duplicate"], ["a@2 duplicate"]]


def test_a_batch_is_one_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "timestamp": "ts", "horizon": "100 seconds", "lateness": "10 seconds", "order_by": "n",
        "verdict": "verdict",
    }  # fmt: skip
    (table,) = seeded(batches=1, rows=1000, ids=200, step_s=150)
    table = pa.concat_tables([table, records(["-@3", "-@3", "a@0", "a@900"], 1000)]).cast(ARROW)
    stream = Query(spark, tmp_path, options).add_table(table).run()
    assert stream.metrics[0].null_id == 2
    assert stream.metrics[0].duplicate > 100
    frame = spark.read.schema(SCHEMA).parquet(str(tmp_path / "input"))
    batch = frame.transform(dedup_by_id("id", **options))
    assert row_set(batch.toArrow().to_pylist()) == row_set(stream.all_rows())
    # Neither state nor catalog, though one may be named.
    named = frame.transform(dedup_by_id("id", catalog=str(tmp_path / "unused"), **options))
    assert named.count() == batch.count()
    assert not (tmp_path / "unused").exists()


def test_an_empty_batch(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], SCHEMA)
    kept = frame.transform(dedup_by_id("id", horizon="1 day", timestamp="ts", verdict="v"))
    assert kept.collect() == []
    assert kept.columns == [*frame.columns, "v"]


def test_a_batch_inside_foreach_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The task then carries the stream's identity; the batch must not take it for its own."""
    seen = []

    def sink(df: Any, batch: int) -> None:
        kept = df.transform(dedup_by_id("id", horizon="60 seconds", timestamp="ts"))
        seen.append(sorted(row.id for row in kept.collect()))

    query = Query(spark, tmp_path, {}).add("a@0", "a@1", "b@0").add("a@0", "a@100")
    finish(
        query.source()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(query.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert seen == [["a", "b"], ["a", "a"]]


def test_an_empty_file_and_an_empty_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch without rows is no gap in memory, not even the first one."""
    query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day", "verdict": "verdict"})
    query.add().add("a@0").add().add("a@5", "b@5")
    run = query.run()
    assert run.told() == [[], ["a@0 unique"], [], ["a@5 duplicate", "b@5 unique"]]


def test_one_shard_and_more_shards_than_partitions(spark: SparkSession, tmp_path: Path) -> None:
    tables = seeded(batches=3, rows=200, ids=150, step_s=30)
    for shards in (1, 5):
        query = Query(
            spark, tmp_path / str(shards),
            {"timestamp": "ts", "horizon": "50 seconds", "lateness": "20 seconds",
             "verdict": "verdict", "shards": shards},
        )  # fmt: skip
        for table in tables:
            query.add_table(table)
        run = query.run()
        Oracle(horizon_s=50, lateness_s=20).check(tables, run)
        assert {m.shards for m in run.metrics} == {shards}


def test_a_share_too_large_for_a_worker_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(
        StreamingQueryException,
        match=re.compile(
            "more than 1,000 bytes.*maxOffsetsPerTrigger.*max_shard_batch_bytes", re.S
        ),
    ):
        trace(
            spark, tmp_path, [[f"i{n}@0" for n in range(200)]],
            horizon="1 day", max_shard_batch_bytes=1000,
        )  # fmt: skip


def test_durations_as_timedelta(spark: SparkSession, tmp_path: Path) -> None:
    run = trace(
        spark, tmp_path, [["x@0"], ["x@60", "x@61"]],
        horizon=timedelta(minutes=1), lateness=timedelta(minutes=1), idle_timeout=None,
    )  # fmt: skip
    assert run.told() == [["x@0 unique"], ["x@60 duplicate", "x@61 unique"]]
