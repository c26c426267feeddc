"""541,909 invoice lines of a real shop, 5,268 of which repeat an earlier one in every column."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from dedup.sinks.folder_sink import StagedFiles
from tests.support.cli_job import Job

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "online-retail"
COLUMNS = (
    "InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID",
    "Country",
)  # fmt: skip
DAILY = {"timestamp": "InvoiceDate", "timestamp_format": "yyyy-MM-dd HH:mm:ss"}

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the Online Retail data set is not at ../shared/data/online-retail"
)


def read(job: Job, folder: Path) -> DataFrame:
    return job.spark.read.options(header=True, escape='"').csv(str(folder))


def check(job: Job) -> None:
    """The output is what Spark's own dropDuplicates leaves, row by row."""
    unique = read(job, DATA).dropDuplicates()
    output = read(job, job.output).drop("batch").select(*unique.columns)
    assert output.count() == 536_641
    assert unique.exceptAll(output).count() == 0
    assert output.exceptAll(unique).count() == 0


def link(job: Job, count: int | None = None) -> None:
    """Put the days into the input, each a second younger than the one before."""
    for path in sorted(DATA.glob("*.csv.gz"))[:count]:
        copy = job.files.folder / path.name
        shutil.copyfile(path, copy)
        job.files.stamp(copy)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("files_per_trigger", "options"),
    [
        (1000, {"horizon": "400 days"}),
        (10, {"horizon": "1 day", **DAILY, "state_budget_bytes": 128 << 10}),
        (10, {"horizon": "400 days", **DAILY}),
        (1, {"horizon": "1 day", **DAILY}),
    ],
)
def test_every_batching_leaves_the_same_rows(
    job: Job, monkeypatch: pytest.MonkeyPatch, files_per_trigger: int, options: dict[str, Any]
) -> None:
    link(job)
    job.options |= {"id": COLUMNS, "files_per_trigger": files_per_trigger, **options}
    publish = StagedFiles.__call__
    crash_at = 305 // files_per_trigger // 2

    def crash(sink: StagedFiles, batch: DataFrame, batch_id: int) -> None:
        publish(sink, batch, batch_id)
        if batch_id == crash_at:
            raise OSError("pulled the plug")

    # After the batch was published, before Spark committed it.
    monkeypatch.setattr(StagedFiles, "__call__", crash)
    assert "pulled the plug" in job.fails().message
    monkeypatch.undo()
    counts = job().figures.counts
    verdicts = ("unique", "duplicate", "late", "null_id")
    assert counts["records_in"] == sum(counts[name] for name in verdicts)
    check(job)
