"""Values of every format come out equal, or stop the run with file and column."""

from __future__ import annotations

import shutil
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import dedup_by_id
from dedup.errors import DataError
from dedup.sinks import dedup_folder
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

NANOS = pa.timestamp("ns")
#: 1 May 2024.
MAY = 1_714_521_600_000_000_000
IDS = [uuid.UUID(int=n * 0x1234567890ABCDEF1234567) for n in range(3)]


def table(*nanos: int) -> pa.Table:
    """As pandas writes times: nanoseconds without a zone, here also inside."""
    times = pa.array(nanos, NANOS)
    return pa.table(
        {
            "id": [f"k{n}" for n in range(len(nanos))],
            "t": times,
            "z": times.cast(pa.timestamp("ns", "UTC")),
            "deep": pa.array([{"l": [n]} for n in nanos], pa.struct([("l", pa.list_(NANOS))])),
        }
    )


def output(job: Job) -> list[dict[str, Any]]:
    files = sorted(job.output.glob("batch=*/*.parquet"))
    rows = [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(rows, key=lambda row: str(row["id"]))


def again(job: Job, **options: Any) -> None:
    shutil.rmtree(job.output, ignore_errors=True)
    job(**options)


@pytest.mark.slow
def test_nanosecond_times_of_whole_microseconds_are_read(job: Job) -> None:
    job.files.table("1.parquet", table(MAY, -1000))
    wanted = [
        row | {"t": row["t"].to_pydatetime(), "z": row["z"].to_pydatetime()}
        for row in table(MAY, -1000).select(["id", "t", "z"]).to_pylist()
    ]
    # Guessed, given, and given as instants; without a new footer of the same columns, and with.
    for options in (
        {},
        {"schema": "id STRING, t TIMESTAMP_NTZ, z TIMESTAMP, deep STRUCT<l: ARRAY<TIMESTAMP_NTZ>>"},
        {"timestamp": "t"},
    ):
        again(job, **options)
        found = output(job)
        assert [{name: row[name] for name in ("id", "t", "z")} for row in found] == wanted
        assert [row["deep"]["l"][0] for row in found] == [row["t"] for row in wanted]


def test_times_between_microseconds_stop_the_run(job: Job, tmp_path: Path) -> None:
    path = job.files.table("1.parquet", table(MAY, MAY + 1))
    failure = job.fails(id=("t",))
    assert failure.message.startswith(f"{path}: its column 't' has nanoseconds (")
    assert "1714521600000000001), and a timestamp of Spark ends" in failure.message
    assert "empty file" not in failure.message
    assert job.visible() == []
    # Both by our tasks and by Spark, which would cut the digits.
    for columns in (["id", "t"], ["id", "t", "deep"]):
        rows = table(MAY, MAY + 1).select(columns)
        pq.write_table(rows, path, use_deprecated_int96_timestamps=True)
        for by in ("auto", "spark"):
            message = job.fails(id=("t",), parquet=by, output=tmp_path / by / columns[-1]).message
            assert message.startswith(f"{path}: its column ")
            assert " has nanoseconds (2024-05-01 00:00:00.000000001), and a timestamp" in message


def test_uuids_are_text_in_lower_case(job: Job, tmp_path: Path) -> None:
    path = job.files.folder / "day=1" / "1.parquet"
    path.parent.mkdir()
    rows = ", ".join(f"(uuid '{one}', [uuid '{one}'], {{'u': uuid '{one}'}})" for one in IDS)
    duckdb.sql(f"copy (select * from (values {rows}, {rows}) t(id, l, s)) to '{path}'")
    assert job().figures.counts["duplicate"] == len(IDS)
    found = output(job)
    texts = sorted(map(str, IDS))
    assert sorted(row["id"] for row in found) == texts
    assert sorted(row["l"][0] for row in found) == texts
    assert sorted(row["s"]["u"] for row in found) == texts
    assert {row["day"] for row in found} == {"1"}
    failure = job.fails(parquet="spark", output=tmp_path / "other")
    assert failure.message.startswith(f"{path}: its column 'id' holds UUIDs, which Spark does not")
    assert "Spark has to read the files: --parquet spark is given" in failure.message


def test_dedup_folder_reads_uuids_and_whole_microseconds(job: Job, tmp_path: Path) -> None:
    duckdb.sql(
        f"copy (select uuid '{IDS[1]}' id, timestamp_ns '2024-05-01' t, 1.5::float f) "
        f"to '{job.files.folder}/1.parquet'"
    )
    spark: SparkSession = job.spark
    operator = dedup_by_id("id", horizon="1 day", catalog=str(tmp_path / "catalog"))
    writer = dedup_folder(spark, job.files.folder, operator, output=job.output)
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (row,) = output(job)
    assert (row["id"], row["f"]) == (str(IDS[1]), 1.5)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(DataError, match="column 'id' holds UUIDs, which Spark does not read"):
            dedup_folder(spark, job.files.folder, operator, output=job.output)
    finally:
        spark.conf.set("spark.sql.files.ignoreCorruptFiles", "false")


NESTED = {
    "t": (pa.array([MAY + 1], NANOS), "t"),
    "other name": (pa.array([MAY + 1], NANOS), "a.b c"),
    "list": (pa.array([[MAY, None, MAY + 1]], pa.list_(NANOS)), "l"),
    "keys": (pa.array([[(MAY + 1, 1)]], pa.map_(NANOS, pa.int32())), "m"),
    "inside": (
        pa.array([[("k", {"s": None, "timestamp": MAY + 1})]],
                 pa.map_(pa.string(), pa.struct([("s", NANOS), ("timestamp", NANOS)]))), "m",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_nanoseconds_of_orc_stop_the_run(job: Job, name: str) -> None:
    values, column = NESTED[name]
    rows = pa.table({"id": ["a", "b"], "u": ["x"] * 2, column: pa.concat_arrays([values, values])})
    path = job.files.folder / "a {b}%20.orc"
    orc.write_table(rows, path)
    failure = job.fails()
    assert failure.message.startswith(
        f"{path}: its column {column!r} has nanoseconds (2024-05-01 00:00:00.000000001), and a "
        "timestamp of Spark ends at microseconds. Nothing of its micro-batch was taken."
    )
    assert "empty file" not in failure.message
    assert job.visible() == []


def test_times_of_orc_that_are_whole_microseconds_are_read(job: Job) -> None:
    """They include Spark's last times, and stand beside texts that look like times."""
    text = "2024-05-01 00:00:00.000000001"
    job.spark.sql(
        f"""SELECT 'a' AS id, named_struct('x', '{text}', 't', timestamp'9999-12-31 23:59:59.1') s,
        map('{text}', timestamp'0001-01-01 00:00:00.000001') m, timestamp'1969-12-31 23:59:58.1' t
        """
    ).coalesce(1).write.orc(str(job.files.folder / "day=1"))
    job(duplicates=job.duplicates)
    (wanted,) = job.spark.read.orc(str(job.files.folder)).select(F.to_json(F.struct("*"))).collect()
    rows = job.spark.read.parquet(str(job.output)).drop("batch")
    assert rows.select(F.to_json(F.struct("*"))).collect() == [wanted]
    assert "9999-12-31T23:59:59.1" in wanted[0]


def test_orc_times_that_spark_misreads_stop_the_run(job: Job) -> None:
    """Arrow's ORC writer, in C++, stores fractions before 1970 as negative numbers."""
    path = job.files.folder / "1.orc"
    for nanos in (-1, -1_000_000):
        old, whole = pa.array([nanos, None], NANOS), pa.array([-1_000_000_000, 1000], NANOS)
        orc.write_table(pa.table({"id": ["a", "b"], "whole": whole, "t": old}), path)
        assert job.fails().message.startswith(f"A time before 1970 in {path} has a fraction")


def test_nanoseconds_of_orc_stop_a_query_from_python(job: Job, tmp_path: Path) -> None:
    """The file comes after the query has started."""
    job.files.table("1.orc", table(MAY).select(["id", "t"]))
    operator = dedup_by_id("id", horizon="1 day", catalog=str(tmp_path / "catalog"))
    writer = dedup_folder(
        job.spark, job.files.folder, operator, output=job.output, source_format="orc"
    )
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        path = job.files.table("2.orc", table(MAY, MAY + 1).select(["id", "t"]))
        with pytest.raises(Exception, match=rf"{path}: its column 't' has nanoseconds"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert [row["id"] for row in output(job)] == ["k0"]


def run(job: Job, rows: pa.RecordBatch, **options: Any) -> None:
    path = job.files.folder / "1.parquet"
    pq.write_table(pa.Table.from_batches([rows]), path)
    job.files.stamp(path)
    job(id=("n",), **options)


@pytest.mark.parametrize("parquet", ["auto", "spark"])
def test_parquet_keeps_edge_values_with_either_reader(job: Job, parquet: str) -> None:
    rows = batch_of(ALL)
    run(job, rows, parquet=parquet)
    assert differences(from_parquet(job.output, rows.schema), rows) == []


def test_json_output_keeps_edge_values(job: Job) -> None:
    rows = batch_of(ALL)
    run(job, rows, output_format="json")
    assert differences(from_json(job.output, rows.schema), rows) == []


def test_csv_output_keeps_edge_values(job: Job) -> None:
    rows = batch_of(edge for edge in SCALARS if edge.spark != "binary")
    run(job, rows, output_format="csv")
    assert differences(from_csv(job.output, rows.schema, escape='"'), rows) == []


@pytest.mark.slow
def test_a_null_in_a_csv_file_of_one_column_is_written_in_quotes(job: Job) -> None:
    """Readers skip an empty line, which Spark would write."""
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


def test_json_output_keeps_binary_columns(job: Job) -> None:
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
    """Spark's writers would replace different bytes by the same character."""
    pq.write_table(pa.table({"id": [1, 2], "text": texts}), job.files.folder / "1.parquet")
    failure = job.fails(output_format=output_format)
    assert "a text that is not UTF-8" in failure.message
    assert "does not take: b'caf\\xe" in failure.message
    assert job.visible() == []


@pytest.mark.parametrize(
    ("output_format", "column", "kind"),
    [
        ("csv", pa.array([b"\xff"]), "binary"),
        ("json", pa.array([[(b"\xff", 1)]], pa.map_(pa.binary(), pa.int32())), "map<binary,int>"),
    ],
)
def test_types_that_text_cannot_hold_are_rejected(
    job: Job, output_format: str, column: pa.Array, kind: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [1], "x": column}), job.files.folder / "1.parquet")
    failure = job.fails(output_format=output_format)
    assert f"has no text for the column 'x' ({kind})" in failure.message
