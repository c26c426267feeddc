"""Copies that differ, on a real stream: found, counted, kept or dropped, over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import dedup_by_id
from dedup.errors import ConfigError
from tests.support.cli_job import Job
from tests.support.small_state import query, tables, total
from tests.support.spark_query import Query, roll_back

SCHEMA = "id string, at timestamp, n int, tags map<string,double>, note string"
OPTIONS: dict[str, Any] = {
    "horizon": "1 day", "timestamp": "at", "verdict": "verdict", "shards": 2,
}  # fmt: skip


def feed(made: Query, *rows: tuple[str, int, int]) -> Query:
    """One more file, of IDs, numbers and hundredths of a tag."""
    frame = made.spark.createDataFrame(
        [(name, n, {"a": hundredths / 100, "b": 1.0}) for name, n, hundredths in rows],
        "id string, n int, tags map<string,double>",
    ).select(
        "id", F.lit("2024-01-01 12:00:00").cast("timestamp").alias("at"), "n", "tags",
        F.lit(None).cast("string").alias("note"),
    )  # fmt: skip
    return made.add_frame(frame)


def told(made: Query) -> list[list[tuple[str, int, str]]]:
    run = made.run()
    return [
        sorted((row["id"], row["n"], row["verdict"]) for row in run.rows[batch])
        for batch in sorted(run.rows)
    ]


@pytest.mark.slow
def test_copies_that_differ_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    made = Query(spark, tmp_path, OPTIONS | {"check_payload": ["n", "tags"]}, schema=SCHEMA)
    feed(made, ("x", 1, 5), ("y", 1, 5))
    feed(made, ("x", 1, 5), ("x", 2, 5), ("y", 1, 6))
    assert told(made) == [
        [("x", 1, "unique"), ("y", 1, "unique")],
        [("x", 1, "duplicate"), ("x", 2, "conflict"), ("y", 1, "conflict")],
    ]
    # The same columns in another order are the same payload, after a rollback as well.
    made.options["check_payload"] = ["tags", "n"]
    roll_back(made.checkpoint, 1)
    feed(made, ("x", 3, 5), ("x", 1, 5))
    assert told(made)[-1] == [("x", 1, "duplicate"), ("x", 3, "conflict")]
    # Other columns cannot be compared, and no longer matter once it ends.
    made.options["check_payload"] = "n"
    feed(made, ("x", 3, 5), ("z", 1, 5))
    run = made.run()
    assert (total(run, "conflict"), total(run, "payload_unknown")) == (0, 1)
    del made.options["check_payload"]
    feed(made, ("z", 2, 5))
    assert told(made)[-1] == [("z", 2, "duplicate")]
    made.options["check_payload"] = ["n", "tags"]
    feed(made, ("y", 1, 6), ("z", 2, 5))
    assert told(made)[-1] == [("y", 1, "conflict"), ("z", 2, "duplicate")]


@pytest.mark.parametrize("conflicts", ["drop", "emit"])
def test_conflicts_are_dropped_or_go_on(
    spark: SparkSession, tmp_path: Path, conflicts: str
) -> None:
    options = OPTIONS | {"verdict": None, "check_payload": True, "conflicts": conflicts}
    made = Query(spark, tmp_path, options, schema=SCHEMA)
    feed(made, ("x", 1, 5), ("x", 1, 5), ("y", 1, 5), ("y", 1, 6))
    run = made.run()
    assert len(run.rows[0]) == (2 if conflicts == "drop" else 3)
    assert (total(run, "duplicate"), total(run, "conflict")) == (1, 1)
    assert total(run, "emitted") == len(run.rows[0])


@pytest.mark.slow
def test_through_segments_and_merges(spark: SparkSession, tmp_path: Path) -> None:
    """The seeded rows number themselves, so that every copy differs."""
    given = tables(4, rows=2000)
    made = query(spark, tmp_path, given, check_payload="n", buckets=2)
    del made.options["bucket_length"]
    plain = query(spark, tmp_path / "plain", given, buckets=2)
    del plain.options["bucket_length"]
    run, without = made.run(), plain.run()
    assert total(run, "segments_written") > 4
    assert total(without, "duplicate") > 500
    assert total(run, "duplicate") == total(run, "payload_unknown") == 0
    assert total(run, "conflict") == total(without, "duplicate")
    for batch, rows in without.rows.items():
        assert went_on(run.rows[batch]) == went_on(rows)


def went_on(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["id"] for row in rows if row["verdict"] in ("unique", "late"))


def test_a_batch_is_compared_as_well(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 1), ("a", 2)], "id string, n int")
    operator = dedup_by_id(
        "id", horizon="1 day", check_payload=True, order_by="n", verdict="verdict"
    )
    found = sorted((row.n, row.verdict) for row in frame.transform(operator).collect())
    assert found == [(1, "duplicate"), (1, "unique"), (2, "conflict")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conflicts": "emit"}, "conflicts='emit' needs check_payload"),
        ({"check_payload": True, "conflicts": "error"}, "conflicts='error' must be one of"),
        ({"check_payload": []}, r"check_payload=\[\] names no column"),
        ({"check_payload": {"n"}}, "must be a list: a set"),
        ({"check_payload": True, "guarantee": "at-least-once"}, "does not read the catalog"),
        ({"check_payload": "m"}, "check_payload='m': there is no such column"),
        ({"check_payload": lambda: F.rand()}, "check_payload"),
        ({"check_payload": True, "source_partition": "n"}, "nothing to compare"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_what_cannot_be_is_refused(
    spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS string) id", "current_timestamp() at", "1 n")
    if callable(options.get("check_payload")):
        options = options | {"check_payload": options["check_payload"]()}
    with pytest.raises(ConfigError, match=message):
        frame.transform(dedup_by_id("id", horizon="1 day", timestamp="at", **options))


def test_dedup_run_sets_conflicts_aside(job: Job) -> None:
    job.files.text("0.csv", "id,n\na,1\nb,1\n")
    job.files.text("1.csv", "id,n\na,1\nb,2\n")
    given = {"check_payload": ("n",), "duplicates": job.duplicates}
    outcome = job(**given)
    counts = outcome.figures.counts
    assert (counts["unique"], counts["duplicate"], counts["conflict"]) == (2, 1, 1)
    assert sorted(job.rows()) == [("a", "1"), ("b", "1")]
    aside = "".join(p.read_text() for p in job.duplicates.rglob("*.csv"))
    assert "b,2" in aside
    failure = job.fails(conflicts="emit")
    assert "conflicts='emit' needs check_payload" in failure.message
