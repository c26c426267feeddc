"""Values at the edges of every type, through `dedup run`, read back by others than Spark."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.cli_job import Job
from tests.support.edge_values import (
    ALL,
    SCALARS,
    batch_of,
    differences,
    from_csv,
    from_json,
    from_parquet,
)
from tests.support.needs import long


def run(job: Job, rows: pa.RecordBatch, **options: Any) -> None:
    path = job.files.folder / "1.parquet"
    pq.write_table(pa.Table.from_batches([rows]), path)
    job.files.stamp(path)
    job(id=("n",), **options)


@pytest.mark.parametrize("parquet", ["auto", "spark"])
def test_parquet_by_our_tasks_and_by_spark(job: Job, parquet: str) -> None:
    rows = batch_of(ALL)
    run(job, rows, parquet=parquet)
    assert differences(from_parquet(job.output, rows.schema), rows) == []


def test_json(job: Job) -> None:
    rows = batch_of(ALL)
    run(job, rows, output_format="json")
    assert differences(from_json(job.output, rows.schema), rows) == []


def test_csv(job: Job) -> None:
    rows = batch_of(edge for edge in SCALARS if edge.spark != "binary")
    run(job, rows, output_format="csv")
    assert differences(from_csv(job.output, rows.schema, escape='"'), rows) == []


@pytest.mark.slow
def test_no_value_in_a_csv_file_of_one_column(job: Job) -> None:
    """An empty line, which Spark would write, is left out by writers and readers."""
    at = pa.array([None, datetime(2024, 1, 1, microsecond=123456)], pa.timestamp("us", "UTC"))
    for ids, text in (
        (pa.array(["a", None]), "a"),
        (pa.array([None, 1]), "1"),
        (at, "2024-01-01T00:00:00.123456Z"),
    ):
        output = job.output / str(ids.type.id)
        pq.write_table(pa.table({"id": ids}), job.files.folder / "1.parquet")
        job(output_format="csv", output=output)
        lines = [line for path in output.glob("batch=*/*.csv")
                 for line in path.read_text().splitlines()]  # fmt: skip
        assert sorted(line for line in lines if line != "id") == ['""', text]


BROKEN = pa.Array.from_buffers(pa.string(), 2, pa.array([b"caf\xe9", b"caf\xe8"]).buffers())
BYTES = pa.StructArray.from_arrays(
    [pa.array(["a", None]), pa.array([[b"\xff"], None], pa.list_(pa.binary()))], names=["s", "b.c"]
)


def test_bytes_beside_texts_are_no_texts(job: Job) -> None:
    rows = pa.record_batch({"n": pa.array([0, 1], pa.int32()), "x": BYTES})
    run(job, rows, output_format="json")
    assert differences(from_json(job.output, rows.schema), rows) == []


IN_LISTS = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BROKEN)
IN_ALL = pa.StructArray.from_arrays(
    [pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), BROKEN, pa.array([1, 2]))],
    names=["m"],
)


@pytest.mark.parametrize(
    ("output_format", "texts"),
    [("json", BROKEN), long("json", IN_LISTS), long("json", IN_ALL), ("csv", BROKEN)],
    ids=["json", "json in lists", "json in all", "csv"],
)
def test_texts_that_are_not_utf8_are_refused(job: Job, output_format: str, texts: pa.Array) -> None:
    """Spark's writers would put the same character for both."""
    pq.write_table(pa.table({"id": [1, 2], "text": texts}), job.files.folder / "1.parquet")
    failure = job.fails(output_format=output_format)
    assert "a text that is not UTF-8" in failure.message
    assert r"\x63\x61\x66" in failure.message
    assert job.visible() == []


@pytest.mark.parametrize(
    ("output_format", "column", "kind"),
    [
        ("csv", pa.array([b"\xff"]), "binary"),
        ("json", pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int32())), "map<binary,int>"),
    ],
)
def test_types_without_a_text_are_refused(
    job: Job, output_format: str, column: pa.Array, kind: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1], "x": column}), job.files.folder / "1.parquet")
    failure = job.fails(output_format=output_format)
    assert f"has no text for the column 'x' ({kind})" in failure.message
