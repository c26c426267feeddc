"""What becomes of each record, on real streams: verdicts, late and null records, policies."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup.errors import DataError, cause
from tests.support.oracle import Oracle, sums_hold
from tests.support.spark_query import BASE, Query, seeded, trace


def test_a_seeded_stream_against_the_oracle(spark: SparkSession, tmp_path: Path) -> None:
    tables = seeded(batches=5, rows=300, ids=250, step_s=40, spread_s=120)
    options = {"timestamp": "ts", "horizon": "100 seconds", "lateness": "50 seconds"}
    query = Query(spark, tmp_path, options | {"verdict": "verdict"})
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
    options = {"timestamp": "ts", "horizon": "60 seconds", "lateness": "0 seconds"}
    query = Query(spark, tmp_path, options | {"null_ids": "drop"})
    query.add("a@100", "a@100", "b@100", "-@100").add("a@150", "c@20", "-@150", "a@90")
    run = query.run()
    assert run.told() == [["a@100", "b@100"], ["c@20"]]
    sums_hold(run.metrics, [4, 4])
    assert [m.emitted for m in run.metrics] == [2, 1]
    assert list(query.result().columns) == ["id", "at", "ts", "src", "n"]


def test_the_horizon_is_inclusive_and_duplicates_do_not_prolong_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also with durations as timedelta."""
    run = trace(
        spark, tmp_path, [["x@0"], ["x@60"], ["x@61", "y@61"], ["x@121"]],
        horizon=timedelta(minutes=1), lateness=timedelta(minutes=1), idle_timeout=None,
    )  # fmt: skip
    assert run.told() == [
        ["x@0 unique"], ["x@60 duplicate"], ["x@61 unique", "y@61 unique"], ["x@121 duplicate"],
    ]  # fmt: skip


@pytest.mark.slow
def test_two_watermarks(spark: SparkSession, tmp_path: Path) -> None:
    """Horizon 60, bucket 10: one threshold for lateness and GC would emit x again."""
    run = trace(
        spark, tmp_path, [["x@0"], ["y@75"], ["x@20"]],
        horizon="60 seconds", bucket_length="10 seconds", lateness="60 seconds",
    )  # fmt: skip
    assert run.told() == [["x@0 unique"], ["y@75 unique"], ["x@20 duplicate"]]


@pytest.mark.slow
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
@pytest.mark.slow
def test_late_records(spark: SparkSession, tmp_path: Path, late: str) -> None:
    batches = [["a@0", "b@100"], ["a@20", "c@10", "c@12"], ["c@10", "d@100"], ["b@30"]]
    options = {"horizon": "60 seconds", "lateness": "10 seconds", "late": late}
    told = trace(spark, tmp_path / "marked", batches, **options).told()
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
    run = trace(spark, tmp_path, batches, verdict=None, **options)
    marked = [[t.split()[0] for t in batch if _goes_on(t, late)] for batch in told]
    assert [len(batch) for batch in run.told()] == [len(batch) for batch in marked]
    assert [{t[0] for t in batch} for batch in run.told()] == [{t[0] for t in b} for b in marked]
    sums_hold(run.metrics, [2, 3, 2, 1])
    assert [m.late for m in run.metrics] == ([0, 2, 0, 0] if late == "emit" else [0, 3, 1, 0])


def _goes_on(text: str, late: str) -> bool:
    return text.endswith("unique") or (late == "emit" and text.endswith("late"))


@pytest.mark.slow
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
        StreamingQueryException,
        match=r'(?s)2 records have a null ID \(id\) and null_ids="error".* of them: at=0, ts=2024',
    ) as stopped:
        trace(
            spark, tmp_path / "id", [["-@0", "a@0", "-@1"]],
            horizon="1 day", null_ids="error",
        )  # fmt: skip
    assert len(str(stopped.value).splitlines()) > 20
    ours = cause(stopped.value)
    assert isinstance(ours, DataError)
    assert ours.text.startswith('2 records have a null ID (id) and null_ids="error"')
    assert "\n" not in ours.text
    assert ours.remedy == "bad-records"
    with pytest.raises(
        StreamingQueryException,
        match=r'(?s)1 records have no timestamp \(column ts timestamp\).*null_timestamps="now"',
    ):
        trace(spark, tmp_path / "ts", [["a@-", "a@0"]], horizon="1 day")


@pytest.mark.slow
def test_a_broken_line_stops_nothing_and_a_record_without_a_time_has_ways_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A line that Spark cannot parse is null in every column, that of its source partition too."""
    options = {
        "timestamp": "ts", "horizon": "1 day", "lateness": "0 seconds", "verdict": "verdict",
        "source_partition": "src", "idle_timeout": None,
    }  # fmt: skip
    query = Query(spark, tmp_path, options).add("a@0/x", "-@-")
    first = query.run()
    assert first.told() == [["-@- null_id", "a@0 unique"]]
    # Nobody waits for a source partition that never told a time.
    assert [m.low_watermark_ms for m in first.metrics] == [int(BASE.timestamp()) * 1000]
    query.add("a@-/x", "b@-/y", "-@-", "a@5/x").add("b@9/x")
    for _ in range(2):
        with pytest.raises(
            StreamingQueryException,
            match=r"(?s)2 records have no timestamp .* first of them: id='a', src='x', n=2\..*"
            r'null_timestamps="now" .*"emit" .*"drop"',
        ):
            query.run()
    options["null_timestamps"] = "emit"
    there = query.copy(tmp_path / "drop")
    emitted = query.run()
    assert emitted.told() == [
        ["-@- null_id", "a@- untimed", "a@5 duplicate", "b@- untimed"], ["b@9 unique"],
    ]  # fmt: skip
    there.options = {**options, "null_timestamps": "drop", "null_ids": "drop"}
    del there.options["verdict"]
    dropped = there.run()
    assert dropped.told() == [[], ["b@9"]]
    for run, out in ((emitted, [4, 1]), (dropped, [0, 1])):
        sums_hold(run.metrics, [4, 1])
        assert [(m.untimed, m.null_id, m.null_timestamp) for m in run.metrics] == [
            (2, 1, 3), (0, 0, 0),
        ]  # fmt: skip
        assert [m.emitted for m in run.metrics] == out
        assert run.metrics[-1].low_watermark_ms == (int(BASE.timestamp()) + 9) * 1000


@pytest.mark.parametrize("late", ["emit", "drop"])
@pytest.mark.slow
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


@pytest.mark.slow
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


def test_an_empty_file_and_an_empty_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch without rows is no gap in memory, not even the first one.

    Nor does it matter how Spark is told to hand binary values, such as the state, to Python.
    """
    spark.conf.set("spark.sql.execution.pyspark.binaryAsBytes", "false")
    query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day", "verdict": "verdict"})
    query.add().add("a@0", "a@1").add().add("a@5", "b@5")
    run = query.run()
    assert run.told() == [
        [], ["a@0 unique", "a@1 duplicate"], [], ["a@5 duplicate", "b@5 unique"],
    ]  # fmt: skip


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_share_too_large_for_a_worker_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = r"(?s)more than 1,000 bytes.*maxOffsetsPerTrigger.*max_shard_batch_bytes"
    records = [f"i{n}@0" for n in range(200)]
    with pytest.raises(StreamingQueryException, match=told):
        trace(spark, tmp_path, [records], horizon="1 day", max_shard_batch_bytes=1000)
