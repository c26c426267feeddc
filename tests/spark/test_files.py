"""Files that the tasks read and write themselves hold what Spark reads and writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from dedup.cli.failures import FAILED
from dedup.cli.run.work import plan
from dedup.sources.files.bypass import arrow_schema
from dedup.sources.files.parquet_input import ParquetInput
from tests.support.cli_job import FileDrop, Job
from tests.support.needs import long, of_spark_4

COLUMNS = """
id string, b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f float, d double, text string,
bytes binary, day date, ts timestamp, local timestamp_ntz, small decimal(9,2), mid decimal(18,4),
large decimal(38,10), list array<int>, lists array<array<string>>,
inner struct<a: int, `b.c`: struct<c: string, t: timestamp_ntz>>, map map<string, array<bigint>>,
objects array<struct<x: int, y: binary>>, `dotted.name` string, `Case` int
"""
MOMENTS = (
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime(1582, 10, 4, 12),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
)


def some_rows() -> list[tuple[Any, ...]]:
    def row(name: str, at: datetime, sign: int) -> tuple[Any, ...]:
        return (
            name, sign > 0, 127 * sign, -(2**15) + (sign > 0), 2**31 - 1, sign * (2**63 - 1),
            0.1 * sign, float("nan") if sign > 0 else -0.0, "é🐍\0 \n", b"\0\xff", at.date(),
            at.replace(tzinfo=UTC), at, Decimal("1234567.89") * sign, Decimal("-0.0001"),
            Decimal("9" * 28 + ".1234567891") * sign, [1, None, sign], [["a"], [], None, [None]],
            (None, ("x", at)), {"k": [1, None], "": None}, [(1, b""), None, (None, b"1")],
            "dots", sign,
        )  # fmt: skip

    nothing = (None,) * 22
    return [
        row("a", MOMENTS[0], 1),
        row("b", MOMENTS[1], -1),
        row("c", MOMENTS[2], 1),
        row("d", MOMENTS[3], 1),
        ("e", *nothing),
        ("f", *nothing),
        row("a", MOMENTS[0], 1),
    ]


def written_by_spark(frame: DataFrame, files: FileDrop, file_format: str) -> None:
    folder = files.folder.parent / f"made-{files.count}"
    frame.coalesce(1).write.format(file_format).save(str(folder))
    for path in folder.glob(f"*.{file_format}"):
        files.stamp(path.rename(files.folder / path.name))


def readings(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    """What four readers find in an output, as texts in one order."""
    names = ["id", "ts", "local", "day", "large", "text", "bytes", "i8"]
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        found = database.read_parquet(str(folder / "batch=*" / "*.parquet"), union_by_name=True)
        duck = found.project(", ".join(n for n in names)).fetchall()
    table = pa.concat_tables(
        pq.read_table(path, partitioning=None) for path in folder.glob("batch=*/*.parquet")
    )
    frame = spark.read.parquet(str(folder)).drop("batch")
    as_json = frame.select(fn.to_json(fn.struct("*"), {"ignoreNullFields": "false"}))
    return {
        "Spark": sorted(row[0] for row in as_json.collect()),
        "Spark's types": [frame.schema.simpleString()],
        "pyarrow": sorted(map(repr, table.to_pylist())),
        "pyarrow's types": [f"{f.name} {f.type} {f.nullable}" for f in table.schema],
        "keys of the footer": sorted(map(str, table.schema.metadata or {})),
        "DuckDB": sorted(map(repr, duck)),
    }


@pytest.mark.parametrize("stored", [long("INT96"), "TIMESTAMP_MICROS"])
def test_every_type_is_written_as_spark_would_write_it(
    job: Job, tmp_path: Path, stored: str
) -> None:
    job.spark.conf.set("spark.sql.parquet.outputTimestampType", stored)
    written_by_spark(job.spark.createDataFrame(some_rows(), COLUMNS), job.files, "parquet")
    job.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    found = {}
    for by in ("auto", "spark"):
        job.output = tmp_path / by
        told = plan(job.made(output=job.output, parquet=by), spark=job.spark)
        assert (told["read_by"], told["written_by"]) == (
            ("dedup",) * 2 if by == "auto" else ("Spark, because --parquet spark is given",) * 2
        )
        job(output=job.output, parquet=by)
        found[by] = readings(job.spark, job.output)
    assert len(found["auto"]["Spark"]) == 6
    assert found["auto"] == found["spark"]


@pytest.mark.slow
def test_columns_are_found_as_spark_finds_them(job: Job) -> None:
    """Names match in any case and order, missing columns are null, and folders are columns."""
    ts = pa.array([1000], pa.timestamp("ms", "Europe/Berlin"))
    job.files.folder.joinpath("day=01").mkdir()
    job.files.folder.joinpath("day=__HIVE_DEFAULT_PARTITION__").mkdir()
    first = {"id": ["a"], "n": pa.array([1], pa.int32()), "ts": ts, "text": ["x"]}
    job.files.table("day=01/1.parquet", pa.table(first))
    second = {"TEXT": pa.array(["y"], pa.large_string()), "other": [1], "ID": ["b"]}
    job.files.table("day=__HIVE_DEFAULT_PARTITION__/2.parquet", pa.table(second))
    third = {"ts": ts, "id": ["c"], "text": pa.array(["z"]).dictionary_encode()}
    job.files.table("day=01/3.parquet", pa.table(third))
    options: dict[str, Any] = {"new_columns": "ignore"}
    options["schema"] = "id STRING, n INT, ts TIMESTAMP, text STRING, day STRING"
    told = plan(job.made(**options), spark=job.spark)
    assert told["read_by"] == "dedup"
    second_of = datetime(1970, 1, 1, 0, 0, 1)
    for by in ("auto", "spark"):
        output = job.output / by
        job(**options, output=output, parquet=by)
        assert job.rows("parquet", output) == [
            ("a", 1, second_of, "x", "01"),
            ("b", None, None, "y", None),
            ("c", None, second_of, "z", "01"),
        ]


def test_columns_have_the_arrow_types_that_spark_gives_to_python(spark: SparkSession) -> None:
    """So both readers encode IDs alike, and order the copies in a micro-batch alike."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    frame = spark.createDataFrame(some_rows(), COLUMNS)
    frame = frame.select([fn.col(f"`{n}`") for n in frame.columns if n != "dotted.name"])

    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"schema": [batch.schema.serialize().to_pybytes()]})

    (schema, *_) = (row[0] for row in frame.mapInArrow(told, "schema binary").collect())
    handed = pa.ipc.read_schema(pa.py_buffer(bytes(schema)))
    assert handed.remove_metadata() == arrow_schema(frame.schema, "Asia/Tokyo")


@pytest.mark.slow
def test_spark_reads_files_that_tasks_might_read_differently(job: Job) -> None:
    fixed = pa.array([[1]], pa.list_(pa.int64(), 1))
    pq.write_table(pa.table({"id": ["a"], "n": fixed}), job.files.folder / "1.parquet")
    job()
    (note,) = (n for n in job.notes if "takes longer" in n)
    path = job.files.folder / "1.parquet"
    assert note == (
        f"Spark itself reads the files, which takes longer: {path}: its column 'n' is "
        "fixed_size_list<element: int64>[1], where list<element: int64> is expected."
    )
    # The checkpoint continues with either reader.
    job.files.table("2.parquet", pa.table({"id": ["a", "b"], "n": [[1], [2]]}))
    job()
    assert not any("takes longer" in n for n in job.notes)
    job.files.table("3.parquet", pa.table({"id": ["b", "c"], "n": [[1], [2]]}))
    job(parquet="spark")
    assert job.rows("parquet") == [("a", [1]), ("b", [2]), ("c", [2])]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.parquet.binaryAsString", "true"),
        of_spark_4("spark.sql.parquet.int96RebaseModeInRead", "EXCEPTION"),
        ("spark.sql.caseSensitive", "true"),
    ],
)
def test_spark_reads_the_files_if_a_setting_changes_its_reader(
    job: Job, setting: str, value: str
) -> None:
    job.files.table("1.parquet", pa.table({"id": ["a"]}))
    job.spark.conf.set(setting, value)
    told = plan(job.made(), spark=job.spark)
    assert told["read_by"] == f"Spark, because {setting} is {value}"
    assert told["written_by"] == "dedup"


def test_csv_input_is_written_as_parquet(job: Job, tmp_path: Path) -> None:
    job.files.text("1.csv", "id,x\na,1\na,1\nb,\nc,1,1\n")
    options = {"output_format": "parquet", "bad_records": str(tmp_path / "bad")}
    told = plan(job.made(**options), spark=job.spark)
    assert told["read_by"] == "dedup"
    assert told["written_by"] == "dedup"
    job(duplicates=job.duplicates, **options)
    assert job.rows("parquet") == [("a", "1"), ("b", None)]
    assert job.rows("parquet", job.duplicates) == [("a", "1", "duplicate")]
    (row,) = job.rows("json", tmp_path / "bad")
    assert "c,1,1" in row


def test_a_large_file_is_read_in_parts_and_written_in_row_groups(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dedup.sinks.files import query

    monkeypatch.setattr(query, "SPLIT_BYTES", 4 << 10)
    table = pa.table({"id": [f"k{i % 3000}" for i in range(4000)], "n": list(range(4000))})
    path = job.files.folder / "1.parquet"
    pq.write_table(table, path, row_group_size=100)
    with ParquetInput(str(path)) as file:
        assert len(file.parts) > 6
    assert path.stat().st_size > 6 * (4 << 10)
    figures = job().figures
    assert (figures.counts["records_in"], figures.counts["unique"]) == (4000, 3000)
    assert len({row[0] for row in job.rows("parquet")}) == 3000


@pytest.mark.parametrize("ending", ["parquet", long("orc")])
def test_a_damaged_file_is_named(job: Job, ending: str) -> None:
    job.files.table(f"1.{ending}", pa.table({"id": ["a"]}))
    job()
    table = pa.table({"id": [f"k{i}" for i in range(5000)]})
    path = job.files.folder / f"2.{ending}"
    if ending == "parquet":
        pq.write_table(
            table, path, write_page_checksum=True, compression="none", use_dictionary=False
        )
        data = bytearray(path.read_bytes())
        data[2000] ^= 1
    else:
        # It has no checksums: only what cannot be unpacked is detected.
        orc.write_table(table, str(path), compression="zlib")
        data = bytearray(path.read_bytes())
        data[20:120] = b"\xff" * 100
    path.write_bytes(data)
    failure = job.fails()
    assert failure.exit_code == FAILED
    assert f"{path} cannot be read" in failure.message
    assert "Here the option is" not in failure.message
    assert job.rows("parquet") == [("a",)]
    path.write_bytes(b"")
    os.utime(path)
    job.files.table(f"3.{ending}", pa.table({"id": ["a", "b"]}))
    job()
    assert job.rows("parquet") == [("a",), ("b",)]


@pytest.mark.parametrize("ending", ["parquet", "orc"])
def test_files_without_rows_are_accepted(job: Job, ending: str) -> None:
    kind = pa.timestamp("us", "UTC" if ending == "parquet" else None)
    table = pa.table({"id": ["a"], "t": pa.array([1 << 40], kind)})
    schema = "id STRING, t TIMESTAMP"
    job.files.text(f"1.{ending}", "")
    job.files.table(f"2.{ending}", table.slice(0, 0))
    written_by_spark(job.spark.sql("SELECT 'b' AS id WHERE false"), job.files, ending)
    job.files.table(f"3.{ending}", table)
    job(schema=schema, files_per_trigger=2)
    assert [row[0] for row in job.rows("parquet")] == ["a"]


@pytest.mark.parametrize(("first", "then"), [("auto", "spark"), long("spark", "auto")])
def test_a_micro_batch_that_is_published_is_finished_by_either_reader(
    job: Job, first: str, then: str
) -> None:
    """The run is killed between the two folders of a micro-batch, and again after the second."""
    table = pa.table({"id": ["a", "b", "b"], "n": [1, 2, 3]})
    job.files.table("1.parquet", table)
    job(parquet=first, duplicates=job.duplicates)
    copies = job.rows("parquet", job.duplicates)
    shutil.rmtree(job.output / "batch=0")
    for _ in range(2):
        job.lose_last_commit()
        job(parquet=then, duplicates=job.duplicates)
        assert job.rows("parquet", job.duplicates) == copies
        rows = job.rows("parquet") + [row[:2] for row in copies]
        assert sorted(rows) == [("a", 1), ("b", 2), ("b", 3)]


def test_file_names_are_not_decoded(job: Job) -> None:
    """Only in a folder's name %3A means a colon."""
    for number, name in enumerate(("a b", "a%20b", "100%25", "ü#?+")):
        table = pa.table({"id": [f"k{number}"]})
        folder = job.files.folder / "at=00%3A0%2F0" / "x%3Ay=1"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"{name}.parquet")
        os.utime(folder / f"{name}.parquet", (1_700_000_000, 1_700_000_000))
    told = plan(job.made(), spark=job.spark)
    assert (told["read_by"], told["written_by"]) == ("dedup", "dedup")
    job(files_per_trigger=10)
    assert job.rows("parquet") == [(f"k{number}", "00:0/0", "1") for number in range(4)]
    pq.write_table(pa.table({"id": ["k0", "k4"]}), folder / "later.parquet")
    job()
    assert job.rows("parquet") == [(f"k{number}", "00:0/0", "1") for number in range(5)]


@pytest.mark.parametrize("name", ["Length", "path"])
def test_spark_reads_folders_named_like_columns_of_its_file_list(job: Job, name: str) -> None:
    (job.files.folder / f"{name}=3").mkdir()
    job.files.table(f"{name}=3/1.parquet", pa.table({"id": ["a"]}))
    told = plan(job.made(), spark=job.spark)
    assert told["read_by"] == (
        f"Spark, because a folder names a column {name.lower()!r}, as Spark's list of files does"
    )
    job()
    assert job.rows("parquet") == [("a", "3")]
