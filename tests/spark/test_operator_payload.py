"""`check_payload` and `guarantee` on real streams, and when a restart changes them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import check_query, dedup_by_id
from dedup.cli.run.work import plan
from dedup.errors import ConfigError, DedupWarning
from dedup.tools.check.findings import Level
from tests.support.cli_job import Job
from tests.support.small_state import query, tables, total
from tests.support.spark_query import Query, Run


@pytest.mark.parametrize("conflicts", ["drop", "emit"])
def test_conflicts_are_dropped_or_emitted(
    spark: SparkSession, tmp_path: Path, conflicts: str
) -> None:
    schema = "id string, n int, tags map<string,double>"
    options = {"horizon": "1 day", "shards": 2, "check_payload": True, "conflicts": conflicts}
    tags = [("x", 0.05), ("x", 0.05), ("y", 0.05), ("y", 0.06)]
    rows = [(name, 1, {"a": tag, "b": 1.0}) for name, tag in tags]
    made = Query(spark, tmp_path, options, schema=schema)
    run = made.add_frame(spark.createDataFrame(rows, schema)).run()
    assert len(run.rows[0]) == (2 if conflicts == "drop" else 3)
    assert (total(run, "duplicate"), total(run, "conflict")) == (1, 1)
    assert total(run, "emitted") == len(run.rows[0])


def test_a_batch_detects_conflicts_too(spark: SparkSession) -> None:
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
        ({"check_payload": True, "source_partition": "n", "heartbeat": "b"}, "nothing to compare"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_options_that_cannot_work_are_rejected(
    spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    columns = "CAST(id AS string) id", "current_timestamp() at", "1 n", "false b"
    frame = spark.range(1).selectExpr(*columns)
    if callable(options.get("check_payload")):
        options = options | {"check_payload": options["check_payload"]()}
    with pytest.raises(ConfigError, match=message):
        frame.transform(dedup_by_id("id", horizon="1 day", timestamp="at", **options))


def test_dedup_run_writes_conflicts_to_the_side_output(job: Job) -> None:
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
    assert "--conflicts emit has no meaning without --check-payload" in failure.message


def verdicts(run: Run) -> dict[int, list[tuple[str, str]]]:
    """IDs and verdicts of each micro-batch."""
    return {
        batch: sorted((row["id"], row["verdict"]) for row in rows)
        for batch, rows in run.rows.items()
    }


@pytest.mark.filterwarnings("ignore::dedup.errors.DedupWarning")
@pytest.mark.slow
def test_a_restart_may_change_the_guarantee_and_keeps_memory(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second, *_ = tables(2, rows=2000)
    made = query(spark, tmp_path, [first, second])
    truth = made.run()
    assert total(truth, "segments_written") > 0, "there is something to look into"
    assert {m.guarantee for m in truth.metrics} == {None, "exactly-once"}, "no lookup at first"

    # All the same records again, three times; by the truth each is a duplicate, or late.
    made.options["guarantee"] = "at-most-once"
    by_filters = made.add_table(second).run()
    assert total(by_filters, "duplicate") == len(second)
    assert total(by_filters, "catalog_reads") == 0
    assert total(by_filters, "filter_unconfirmed") > 0
    assert {m.guarantee for m in by_filters.metrics} == {"at-most-once"}

    made.options["guarantee"] = "at-least-once"
    unchecked = made.add_table(second).run()
    assert {verdict for _, verdict in verdicts(unchecked)[3]} <= {"unique", "late"}
    assert total(unchecked, "unchecked") == total(unchecked, "emitted") == len(second)
    assert total(unchecked, "ids_written") == 0

    made.options["guarantee"] = "exactly-once"
    again = made.add_table(second).run()
    assert total(again, "duplicate") == len(second)
    assert total(again, "catalog_reads") > 0


def test_a_weaker_guarantee_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    source = query(spark, tmp_path, tables(1)).source()
    options = {"horizon": "1 day", "catalog": str(tmp_path / "catalog")}
    with pytest.warns(DedupWarning, match=r"fpr=0.001: of every 1,000 records with a new ID"):
        filters = dedup_by_id("id", guarantee="at-most-once", fpr=0.001, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DedupWarning)
        through = dedup_by_id("id", guarantee="at-least-once", **options)
        exactly = dedup_by_id("id", **options)
    found = {
        name: [f.level for f in check_query(source, operator) if f.rule == "guarantee"]
        for name, operator in (("filters", filters), ("all", through), ("exactly", exactly))
    }
    assert found == {"filters": [Level.BREAKS], "all": [Level.BREAKS], "exactly": []}
    with pytest.raises(ConfigError, match=r"guarantee='twice' must be one of exactly-once, "):
        dedup_by_id("id", guarantee="twice", **options)  # type: ignore[arg-type]


def test_a_batch_is_exact_unless_the_guarantee_is_at_least_once(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "id string, n int")
    with pytest.warns(DedupWarning):
        filters = dedup_by_id("id", horizon="1 day", guarantee="at-most-once")
    assert frame.transform(filters).count() == 2
    through = dedup_by_id("id", horizon="1 day", guarantee="at-least-once")
    assert frame.transform(through).count() == 3


@pytest.mark.slow
def test_dedup_run_accepts_a_weaker_guarantee(job: Job) -> None:
    for number in range(2):
        job.files.text(f"{number}.csv", "id,n\na,1\na,2\nb,3\n")
    outcome = job(guarantee="at-least-once")
    assert outcome.figures.counts["emitted"] == outcome.figures.counts["unchecked"] == 6
    assert sorted(row[0] for row in job.rows()) == ["a"] * 4 + ["b"] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", DedupWarning)
        job(guarantee="at-most-once")
        assert any("of every 100 records with a new ID" in note for note in job.notes)
        told = plan(job.made(guarantee="at-most-once"), spark=job.spark)["notes"]
    assert any("of every 100 records with a new ID" in note for note in told)
    failure = job.fails(guarantee="always")
    assert "--guarantee always must be one of exactly-once, at-most-once" in failure.message
