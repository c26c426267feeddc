"""What becomes of each record on real streams: verdicts, policies, clocks and watermarks."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import time_from_id
from dedup.core.policy import Policy
from dedup.errors import DataError, cause
from dedup.spark.versions import IS_SPARK_3
from tests.support.needs import long
from tests.support.oracle import Oracle, sums_hold
from tests.support.shard_driver import Driver, Rec
from tests.support.spark_query import BASE, Query, seeded, trace


def test_a_seeded_stream_agrees_with_the_oracle(spark: SparkSession, tmp_path: Path) -> None:
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


HORIZON_MS, LATENESS_MS = 100_000, 50_500  # no watermark is the time of a record
EVENT_TIME = Policy(
    horizon_ms=HORIZON_MS, bucket_ms=10_000, event_time=True, lateness_ms=LATENESS_MS,
    idle_timeout_ms=None,
)  # fmt: skip
SMALL = {"state_budget_bytes": 16 << 10, "filter_state_bytes": 4 << 10}


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"late": "drop", "null_timestamps": "drop", "source_partition": "src", **SMALL,
          "window_delay": "20500 milliseconds", "heartbeat": True},
         {"late": "drop", "window_delay_ms": 20_500}),
        long({"late": "drop", "null_timestamps": "drop", "source_partition": "src", **SMALL},
             {"late": "drop"}),
        long({"null_timestamps": "emit", "source_partition": "src"}, {}),
        long({"null_timestamps": "drop", "shards": 1, **SMALL}, {}),
        long({"null_timestamps": "drop", "shards": 5}, {}),
        long({"null_timestamps": "emit", "stable_timestamps": True, **SMALL},
             {"stable_timestamps": True}),
    ],
)  # fmt: skip
def test_a_seeded_stream_agrees_with_the_core_under_each_policy(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], policy: dict[str, Any]
) -> None:
    """The oracle judges the core with one shard."""
    given = {
        "timestamp": "ts", "horizon": "100 seconds", "lateness": f"{LATENESS_MS} milliseconds",
        "idle_timeout": None, "verdict": "verdict",
    }  # fmt: skip
    options = dict(options)
    if beats := "heartbeat" in options:
        options["heartbeat"] = F.col("n") % 7 == 0
    query = Query(spark, tmp_path, given | options)
    tables = disordered(stable="stable_timestamps" in options)
    for table in tables:
        query.add_table(table)
    run = query.run()
    core = Driver(replace(EVENT_TIME, **policy))
    for number, table in enumerate(tables):
        watermark_ms = core.state.clocks.late_watermark_ms
        records = [
            Rec(
                row["id"] and row["id"].encode(),
                None if row["at"] is None else 1000 * row["at"],
                source=(row["src"] or "") if "source_partition" in options else "",
                untimed=True,
                heartbeat=beats and row["n"] % 7 == 0,
            )
            for row in table.to_pylist()
        ]
        expected = Counter(
            (record.id, max(record.time_ms or 0, watermark_ms), verdict.name.lower())
            for record, verdict in zip(
                [record for record in records if not record.heartbeat],
                core.feed(records, 1 << 60),
                strict=True,
            )
        )
        found = Counter(
            (row["id"] and row["id"].encode(), max(1000 * (row["at"] or 0), watermark_ms),
             row["verdict"])
            for row in run.rows[number]
        )  # fmt: skip
        assert found == expected, f"micro-batch {number}"
    verdicts = Counter(row["verdict"] for row in run.all_rows())
    assert {"unique", "duplicate", "late", "null_id", "untimed"} == set(verdicts)
    assert {m.shards for m in run.metrics} == {options.get("shards", 2)}
    rows = sum(table.num_rows for table in tables)
    assert sum(m.records_in + m.heartbeats for m in run.metrics) == rows
    assert sum(m.heartbeats for m in run.metrics) == (-(-rows // 7) if beats else 0)


def disordered(*, stable: bool) -> list[pa.Table]:
    """Return micro-batches of seeded records, some without ID, time, source or all of them."""
    made, own = [], dict[str, int]()
    for table in seeded(batches=5, rows=300, ids=250, step_s=40, spread_s=120):
        rows = table.to_pylist()
        for n, row in enumerate(rows):
            row["src"] = "pq"[n % 2]
            if stable:
                row["at"] = own.setdefault(row["id"], row["at"])
            row |= {name: None for name in (("id",), ("at",), ("src",), ("id", "at", "src"))[n % 4]
                    if n % 11 == 0}  # fmt: skip
            row["ts"] = None if row["at"] is None else BASE + timedelta(seconds=row["at"])
        made.append(pa.Table.from_pylist(rows, table.schema))
    return made


@pytest.mark.parametrize(("policy", "passed"), [("emit", ["-@-", "a@-", "b@9"]), ("drop", ["b@9"])])
def test_records_without_an_id_or_a_time_follow_their_policies(
    spark: SparkSession, tmp_path: Path, policy: str, passed: list[str]
) -> None:
    run = trace(
        spark, tmp_path, [["-@-", "a@-", "b@9"]], horizon="1 day", verdict=None,
        null_ids=policy, null_timestamps=policy,
    )  # fmt: skip
    assert run.told() == [passed]
    sums_hold(run.metrics, [3])
    (m,) = run.metrics
    assert (m.untimed, m.null_id, m.null_timestamp, m.emitted) == (1, 1, 2, len(passed))


def test_null_ids_and_null_timestamps_stop_the_query_under_policy_error(
    spark: SparkSession, tmp_path: Path
) -> None:
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


def test_empty_micro_batches_leave_no_gap_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch without rows leaves no gap in memory, not even the first one.

    Nor does the setting matter for handing binary values, such as the state, to Python.
    """
    spark.conf.set("spark.sql.execution.pyspark.binaryAsBytes", "false")
    query = Query(spark, tmp_path, {"timestamp": "ts", "horizon": "1 day", "verdict": "verdict"})
    query.add().add("a@0", "a@1").add().add("a@5", "b@5")
    run = query.run()
    assert run.told() == [
        [], ["a@0 unique", "a@1 duplicate"], [], ["a@5 duplicate", "b@5 unique"],
    ]  # fmt: skip


def test_a_row_of_2099_moves_no_clock_of_a_backfill(spark: SparkSession, tmp_path: Path) -> None:
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


def test_timestamps_within_max_future_advance_the_clock(
    spark: SparkSession, tmp_path: Path
) -> None:
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


def test_source_partitions_may_be_composite(spark: SparkSession, tmp_path: Path) -> None:
    """Parts may be dates that Python cannot hold. The slow partition holds the watermark back."""
    # Rows come from Spark 3.5 in this zone, which Python does not know.
    spark.conf.set("spark.sql.session.timeZone", "Asia/Shanghai" if IS_SPARK_3 else "GMT+8")
    beyond = F.timestamp_micros(F.lit(253_402_300_800_000_000))
    told = trace(
        spark, tmp_path, [["f@600/fast", "s@0/slow"], ["t@7/slow"]],
        horizon="60 seconds", lateness="10 seconds",
        source_partition=[F.col("src"), F.length("src"), beyond, F.to_date(beyond)],
    )  # fmt: skip
    assert told.told()[1] == ["t@7 unique"]
    assert told.metrics[1].low_watermark_ms == int(BASE.timestamp()) * 1000 + 7_000
    assert told.metrics[1].gc_source == ('["slow",4,"10000-01-01 00:00:00+00:00","10000-01-01"]')


def uuid7(seconds: int, tail: int) -> str:
    ms = (int(BASE.timestamp()) + seconds) * 1000
    return str(uuid.UUID(int=ms << 80 | 7 << 76 | 0b10 << 62 | tail))


def test_the_time_in_a_uuid7_is_the_timestamp(spark: SparkSession, tmp_path: Path) -> None:
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


def test_the_time_in_a_number_is_the_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    """The number is the record's number in the stream, with the epoch 1 ms before `BASE`."""
    flakes = time_from_id("snowflake", epoch=BASE - timedelta(milliseconds=1))
    number = (F.col("at") * 1000 + 1) * (1 << 22)
    options: dict[str, Any] = {"timestamp": flakes, "horizon": "60 seconds"}
    options |= {"lateness": "10 seconds", "stable_timestamps": True}
    batches = [["a@0", "b@100", "c@0"], ["d@100", "e@3"]]
    told = trace(spark, tmp_path, batches, id=number, **options)
    assert [sorted(t.split()[1] for t in texts) for texts in told.told()] == [
        ["duplicate", "unique", "unique"],
        ["duplicate", "late"],
    ]
    assert told.metrics[0].newest_ms == (int(BASE.timestamp()) + 100) * 1000
    twitter = time_from_id("snowflake", epoch="twitter")
    other = Query(spark, tmp_path, options | {"timestamp": twitter}, id=number)
    other.added = len(batches)
    with pytest.raises(StreamingQueryException, match=r"snowflake \(twitter\)"):
        other.add("f@200").run()


def test_too_many_ids_shorten_the_horizon_for_a_while(spark: SparkSession, tmp_path: Path) -> None:
    """A spike at 600 s is forgotten early, and the metrics show the horizon that is left."""
    spike = [f"s{n}@{600 + n % 60}" for n in range(60)]
    batches = [["a@0", "b@60"], spike, ["c@700"], ["b@701", "c@702"], ["d@5000"], ["d@5001"]]
    run = trace(
        spark, tmp_path, batches, horizon="20 minutes", lateness="10 seconds", max_live_ids=10,
        bucket_length="30 seconds",
    )  # fmt: skip
    assert run.told()[3] == ["b@701 unique", "c@702 duplicate"]
    assert run.told()[5] == ["d@5001 duplicate"]
    kept = [metrics.horizon_kept_ms // 1000 for metrics in run.metrics]
    assert kept[0] == kept[1] == 1200, "nothing was forgotten before"
    assert 0 < kept[3] < 701 - 60, "b passed, and the metrics show why"
    assert kept[5] == 1200
    assert sum(metrics.ids_forgotten_early for metrics in run.metrics) >= 50
    assert {metrics.max_live_ids for metrics in run.metrics} == {10}


def test_times_without_a_zone_are_read_as_utc(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    local = F.col("ts").cast("timestamp_ntz")
    run = trace(spark, tmp_path, [["a@0", "b@7"]], horizon=timedelta(days=1), timestamp=local)
    offset_ms = (5 * 60 + 30) * 60_000
    assert run.metrics[0].newest_ms == int(BASE.timestamp()) * 1000 + 7_000 + offset_ms


def test_null_timestamps_count_as_now_and_move_no_clock(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They are de-duplicated under the time of the micro-batch."""
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
