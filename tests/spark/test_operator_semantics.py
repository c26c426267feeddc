"""What becomes of each record, on real streams: verdicts, late and null records, policies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup.core.policy import Policy
from dedup.errors import DataError, cause
from tests.support.needs import long
from tests.support.oracle import Oracle, sums_hold
from tests.support.shard_driver import Driver, Rec
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


HORIZON_MS, LATENESS_MS = 100_000, 50_500  # no watermark is the time of a record
EVENT_TIME = Policy(
    horizon_ms=HORIZON_MS, bucket_ms=10_000, event_time=True, lateness_ms=LATENESS_MS,
    idle_timeout_ms=None,
)  # fmt: skip
SMALL = {"state_budget_bytes": 16 << 10}


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"late": "drop", "null_timestamps": "drop", "source_partition": "src", **SMALL},
         {"late": "drop"}),
        long({"null_timestamps": "emit", "source_partition": "src"}, {}),
        long({"null_timestamps": "drop", "shards": 1, **SMALL}, {}),
        long({"null_timestamps": "drop", "shards": 5}, {}),
        long({"null_timestamps": "emit", "stable_timestamps": True, **SMALL},
             {"stable_timestamps": True}),
    ],
)  # fmt: skip
def test_a_seeded_stream_by_each_policy(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], policy: dict[str, Any]
) -> None:
    """Spark gives each record the verdict of the core, which the oracle of one shard judges."""
    given = {
        "timestamp": "ts", "horizon": "100 seconds", "lateness": f"{LATENESS_MS} milliseconds",
        "idle_timeout": None, "verdict": "verdict",
    }  # fmt: skip
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
            )
            for row in table.to_pylist()
        ]
        expected = Counter(
            (record.id, max(record.time_ms or 0, watermark_ms), verdict.name.lower())
            for record, verdict in zip(records, core.feed(records, 1 << 60), strict=True)
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


@pytest.mark.parametrize(("policy", "passed"), [("emit", ["-@-", "a@-", "b@9"]), ("drop", ["b@9"])])
def test_records_without_an_id_or_a_time_and_no_verdict_column(
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


def test_an_empty_file_and_an_empty_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_share_too_large_for_a_worker_is_refused_by_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = r"(?s)exceeds 1,000 bytes.*maxOffsetsPerTrigger.*max_shard_batch_bytes"
    records = [f"i{n}@0" for n in range(200)]
    with pytest.raises(StreamingQueryException, match=told):
        trace(spark, tmp_path, [records], horizon="1 day", max_shard_batch_bytes=1000)
