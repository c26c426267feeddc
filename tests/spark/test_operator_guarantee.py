"""What `guarantee=` promises on a real stream, and what changes when a restart changes it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dedup import check_query, dedup_by_id
from dedup.cli.run.progress import Reporter
from dedup.cli.run.work import plan, run
from dedup.errors import ConfigError, DedupWarning
from dedup.tools.check.findings import Level
from tests.support.cli_job import Job
from tests.support.small_state import query, tables, total
from tests.support.spark_query import Run


class Notes(Reporter):
    """Keeps what a run says."""

    def __init__(self, notes: list[str]) -> None:
        self.note = notes.append  # type: ignore[method-assign,assignment]


def verdicts(run: Run) -> dict[int, list[tuple[str, str]]]:
    """IDs and verdicts of each micro-batch."""
    return {
        batch: sorted((row["id"], row["verdict"]) for row in rows)
        for batch, rows in run.rows.items()
    }


@pytest.mark.filterwarnings("ignore::dedup.errors.DedupWarning")
@pytest.mark.slow
def test_a_restart_changes_it_and_memory_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    first, second, *_ = tables(2, rows=2000)
    made = query(spark, tmp_path, [first, second])
    truth = made.run()
    assert total(truth, "segments_written") > 0, "there is something to look into"
    assert {m.guarantee for m in truth.metrics} == {None, "exactly-once"}, "the first asked nobody"

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


@pytest.mark.filterwarnings("ignore::dedup.errors.DedupWarning")
@pytest.mark.slow
def test_the_expected_loss_reaches_the_metrics(spark: SparkSession, tmp_path: Path) -> None:
    given = tables(4, rows=4000)
    made = query(spark, tmp_path, given, guarantee="at-most-once", fpr=0.9)
    run = made.run()
    expected = sum(m.expected_lost for m in run.metrics)
    seen: set[str] = set()
    lost = 0
    for batch in sorted(run.rows):
        # If the first record of an ID is dropped, none of its records passed.
        firsts = {row["id"] for row in run.rows[batch]} - seen
        kept = {row["id"] for row in run.rows[batch] if row["verdict"] != "duplicate"}
        lost += len(firsts - kept)
        seen |= firsts
    assert lost > 50
    assert abs(lost - expected) < 5 * expected**0.5, (lost, expected)


def test_less_than_exactly_once_is_told(spark: SparkSession, tmp_path: Path) -> None:
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


def test_a_batch_is_exact_or_passes_whole(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "id string, n int")
    with pytest.warns(DedupWarning):
        filters = dedup_by_id("id", horizon="1 day", guarantee="at-most-once")
    assert frame.transform(filters).count() == 2
    through = dedup_by_id("id", horizon="1 day", guarantee="at-least-once")
    assert frame.transform(through).count() == 3


@pytest.mark.slow
def test_dedup_run_takes_it(job: Job) -> None:
    for number in range(2):
        job.files.text(f"{number}.csv", "id,n\na,1\na,2\nb,3\n")
    outcome = job(guarantee="at-least-once")
    assert outcome.figures.counts["emitted"] == outcome.figures.counts["unchecked"] == 6
    assert sorted(row[0] for row in job.rows()) == ["a"] * 4 + ["b"] * 2
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", DedupWarning)
        run(job.made(guarantee="at-most-once"), Notes(notes), spark=job.spark)
        assert any("of every 100 records with a new ID" in note for note in notes)
        told = plan(job.made(guarantee="at-most-once"), spark=job.spark)["notes"]
    assert any("of every 100 records with a new ID" in note for note in told)
    failure = job.fails(guarantee="always")
    assert "--guarantee always must be one of exactly-once, at-most-once" in failure.message
