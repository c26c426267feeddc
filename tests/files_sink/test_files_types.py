"""Every type and format, there and back: beside Spark's own writer, and read by others."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from dedup.errors import ConfigError, DataError
from dedup.sinks.batch import new_batch
from dedup.sinks.files.function import ready
from dedup.sinks.files.options import files_options
from dedup.sinks.files.text_lines import Dialect, csv_lines, json_lines
from dedup.spark.versions import to_arrow
from tests.support.edge_values import (
    ALL,
    NUL,
    SCALARS,
    TEXTS,
    batch_of,
    data_files,
    differences,
    from_csv,
    from_json,
    from_parquet,
)

UTC = dt.UTC
#: Values by type; times of whole milliseconds, for Spark's writer of text cuts off the rest.
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-32768, 32767],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [0.1, -0.0, 3.0e38, math.nan, math.inf, -math.inf],
    "double": [0.1, 1.0, 1e16, 5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf],
    "decimal(9,2)": [Decimal("-1.20"), Decimal("0.00")],
    "decimal(38,18)": [Decimal("0.000000000000000001"), Decimal("99999999999999999999.5")],
    "string": ["a", "é,", 'q"q', "two\nlines", " blank ", "back\\slash", "\\", '\\"', "null", "#"],
    "date": [dt.date(1, 1, 1), dt.date(1582, 10, 15), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(1900, 1, 1, tzinfo=UTC),
                  dt.datetime(2024, 5, 1, 12, 0, 0, 123000, tzinfo=UTC)],
    "timestamp_ntz": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999000)],
}  # fmt: skip
NESTED: dict[str, list[Any]] = {
    "binary": [b"\x00\xff", b"text", b""],
    "array<int>": [[1, None], []],
    "map<string,double>": [{"a": 1.5, "b": None}, {}],
    "struct<a:string,b:array<struct<c:int>>>": [("x", [(1,), (None,)]), (None, None)],
    "map<string,timestamp>": [{"t": dt.datetime(2024, 5, 1, tzinfo=UTC)}],
    "array<map<string,array<decimal(4,1)>>>": [[{"k": [Decimal("1.5")]}, {}]],
}  # fmt: skip


def write(path: Path, rows: DataFrame | pa.RecordBatch, **options: str) -> Path:
    """Let the sink write a micro-batch of two tasks; the folder that shows it."""
    given = {"path": str(path), "checkpointLocation": str(path.with_name("checkpoint"))}
    named = {name.replace("_", "."): value for name, value in options.items()}
    if isinstance(rows, DataFrame):
        schema, table = rows.schema, to_arrow(rows)
    else:
        schema, table = from_arrow_schema(rows.schema), pa.Table.from_batches([rows])
    work = ready(files_options(given | named | {"name": path.name}), schema)
    batch = new_batch("q", work.name, "run", 0)
    halves = table.slice(0, 9), table.slice(9)
    work.complete([work.write(batch, n, half.to_batches()) for n, half in enumerate(halves)])
    return path / "batch=0"


def rows_of(spark: SparkSession, values: dict[str, list[Any]]) -> DataFrame:
    """A column for each type, with each of its values, and null."""
    count = 1 + max(map(len, values.values()))
    columns: list[list[Any]] = [[None] * count for _ in values]
    for column, found in zip(columns, values.values(), strict=True):
        column[: len(found)] = found
    ddl = ", ".join(f"c{i} {kind}" for i, kind in enumerate(values))
    rows = [(i, *row) for i, row in enumerate(zip(*columns, strict=True))]
    return spark.createDataFrame(rows, f"i int, {ddl}").coalesce(1)


def read(spark: SparkSession, file_format: str, path: Path, schema: T.StructType) -> list[str]:
    """Rows as text, in which no number equals itself."""
    reader = spark.read.schema(schema).format(file_format).option("multiLine", file_format == "csv")
    return sorted(map(str, reader.load(str(path)).collect()))


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_values_are_read_back_as_they_were_written(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    values = VALUES if file_format == "csv" else VALUES | NESTED
    rows = rows_of(spark, values)
    mine = write(tmp_path / "mine", rows, file_format=file_format)
    expected = sorted(map(str, rows.collect()))
    assert read(spark, file_format, mine, rows.schema) == expected
    theirs = tmp_path / "theirs"
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    rows.write.format(file_format).save(str(theirs))
    if file_format != "csv":  # of which Spark's writer takes the blanks around a text away
        assert read(spark, file_format, theirs, rows.schema) == expected
    if file_format == "parquet":
        a, b = (ds.dataset(place).to_table().sort_by("i") for place in (mine, theirs))
        assert [str(column) for column in a.columns] == [str(column) for column in b.columns]
        found = [
            duckdb.sql(
                f"SELECT {','.join(rows.columns)} FROM '{place}/*.parquet' ORDER BY i"
            ).fetchall()
            for place in (mine, theirs)
        ]
        assert str(found[0]) == str(found[1])


@pytest.mark.parametrize("file_format", ["json", "csv"])
def test_readers_that_guess_find_the_same_types(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    names = ("boolean", "bigint", "double", "decimal(9,2)", "date", "timestamp")
    values = {name: [v for v in VALUES[name] if str(v) not in ("nan", "inf", "-inf")]
              for name in names}  # fmt: skip
    values |= {"string": ["a", "b c"], "date": VALUES["date"][1:]}
    rows = rows_of(spark, values)
    mine = write(tmp_path / "mine", rows, file_format=file_format,
                 **({"header": "true"} if file_format == "csv" else {}))  # fmt: skip
    theirs = tmp_path / "theirs"
    rows.write.format(file_format).option("header", "true").save(str(theirs))
    how = {"json": "read_json", "csv": "read_csv"}[file_format]
    found = []
    for place in (mine, theirs):
        reader = spark.read.options(header="true", inferSchema="true", inferTimestamp="true")
        guessed = reader.format(file_format).load(str(place)).select(*rows.columns)
        query = f"SELECT {','.join(rows.columns)} FROM {how}('{place}/*.{file_format}') ORDER BY i"
        in_duckdb = duckdb.sql(query)
        found.append(
            (guessed.dtypes, sorted(map(str, guessed.collect())), str(in_duckdb.types),
             str(in_duckdb.fetchall()))
        )  # fmt: skip
    assert found[0] == found[1]


def test_texts_of_any_characters_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(5)
    alphabet = "ab\\\",\n\r\t '\x01é#"
    texts = ["".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(400)]
    texts += ["\\", '"', '\\"', '""', "ends\\", "\ufeffx", "\u2028", "a\\b", "NaN", None]
    rows = spark.createDataFrame(list(enumerate(texts)), "i int, s string").coalesce(1)
    expected = sorted(map(str, rows.collect()))
    for file_format in ("json", "csv"):
        mine = write(tmp_path / file_format, rows, file_format=file_format)
        assert read(spark, file_format, mine, rows.schema) == expected


def test_csv_distinguishes_null_from_the_empty_text(spark: SparkSession, tmp_path: Path) -> None:
    """The file distinguishes them; Spark's reader takes both for null, also in its own files."""
    rows = spark.createDataFrame([(1, None), (2, ""), (3, "x")], "i int, s string").coalesce(1)
    mine = write(tmp_path / "mine", rows, file_format="csv")
    (file,) = mine.iterdir()
    assert file.read_text() == '1,\n2,""\n3,x\n'
    alone = write(tmp_path / "alone", rows.select("s"), file_format="csv")
    assert spark.read.csv(str(alone)).count() == 3


def test_compressed_files_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(5).coalesce(1)
    for file_format in ("json", "csv", "parquet"):
        mine = write(tmp_path / file_format, rows, file_format=file_format, compression="gzip")
        assert spark.read.schema("id bigint").format(file_format).load(str(mine)).count() == 5
        ending = ".parquet" if file_format == "parquet" else f".{file_format}.gz"
        assert [p.name.endswith(ending) for p in mine.iterdir()] == [True]


def test_columns_name_folders_as_in_sparks_writer(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's writer gives the same names, and Spark's reader reads both."""
    day = dt.date(2024, 5, 1)
    values = [("a/b:c", 1, day, True), ("é =x%", None, day, False), (None, 3, None, None),
              (" ", 4, day, True), ("a/b:c", 1, day, True)]  # fmt: skip
    rows = spark.createDataFrame(
        [(i, *v) for i, v in enumerate(values)], "i int, s string, n int, d date, b boolean"
    ).coalesce(1)
    mine = write(tmp_path / "mine", rows, partition_by="s,n,d,b")
    rows.write.partitionBy("s", "n", "d", "b").parquet(str(tmp_path / "theirs"))
    places = [
        sorted(str(p.parent.relative_to(place)) for p in Path(place).rglob("part-*.parquet"))
        for place in (mine, tmp_path / "theirs")
    ]
    assert places[0] == places[1]
    found = [
        sorted(map(str, spark.read.schema(rows.schema).parquet(str(place)).collect()))
        for place in (mine, tmp_path / "theirs")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("ddl", "options", "why"),
    [
        ("a int, A int", {}, "two columns of the name 'A'"),
        ("Batch int", {}, "a column 'batch'"),
        ("a interval day to second", {}, "column 'a' is interval"),
        ("a struct<b:interval year to month>", {}, r"column 'a\.b' is interval"),
        ("a array<int>", {"file.format": "csv"}, "Column 'a' is array<int>, which CSV cannot hold"),
        ("a binary", {"file.format": "csv"}, "Column 'a' is binary"),
        ("a map<int,int>", {"file.format": "json"}, "keys of JSON are texts"),
        ("a int", {"partition.by": "b"}, "names 'b', which the stream lacks"),
        ("a int, b double", {"partition.by": "b"}, "names 'b', of type double"),
        ("a int, _b int", {"partition.by": "_b"}, "readers skip folders"),
        ("a int", {"partition.by": "a"}, "leave one for the files"),
    ],
)
def test_columns_that_the_sink_cannot_write_are_rejected(
    spark: SparkSession, tmp_path: Path, ddl: str, options: dict[str, str], why: str
) -> None:
    given = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
    with pytest.raises(ConfigError, match=why):
        ready(files_options(given | options), spark.createDataFrame([], ddl).schema)
    assert not (tmp_path / "out").exists()


def test_a_year_that_text_cannot_hold_is_named() -> None:
    for lines in (json_lines, csv_lines):
        for value in (pa.scalar(253_402_300_800_000_000, pa.timestamp("us", "UTC")),
                      pa.scalar(-800_000, pa.date32())):  # fmt: skip
            rows = pa.record_batch({"i": pa.array([1]), "at": pa.array([value])})
            with pytest.raises(DataError, match="Column 'at' has a date or time outside"):
                lines(rows, Dialect())


def test_json_holds_the_rows_of_a_slice_and_skips_nulls() -> None:
    rows = pa.record_batch(
        {
            "l": pa.array([[1], None, [2, None], []], pa.list_(pa.int32())),
            "m": pa.array([[("a", 1)], None, [("b", None)], []], pa.map_(pa.string(), pa.int32())),
        }
    )
    assert json_lines(rows.slice(1, 2), Dialect()) == b'{}\n{"l":[2,null],"m":{"b":null}}\n'
    assert json_lines(rows.slice(0, 0), Dialect()) == b""


# --- values at the edges of every type, read back by others than Spark


def test_parquet_keeps_edge_values(tmp_path: Path) -> None:
    rows = batch_of(ALL)
    assert differences(from_parquet(write(tmp_path / "out", rows), rows.schema), rows) == []


def test_json_keeps_edge_values(tmp_path: Path) -> None:
    rows = batch_of(ALL)
    folder = write(tmp_path / "out", rows, file_format="json")
    assert differences(from_json(folder, rows.schema), rows) == []


def test_csv_keeps_edge_values(tmp_path: Path) -> None:
    rows = batch_of(edge for edge in SCALARS if edge.spark != "binary")
    folder = write(tmp_path / "out", rows, file_format="csv", header="true")
    assert differences(from_csv(folder, rows.schema, escape="\\"), rows) == []


#: Two of them readers would take for no value; the others cannot name a folder.
REFUSED = ["", "__HIVE_DEFAULT_PARTITION__", NUL, 'in "\0, quotes"', "x" * 300]


def test_folder_names_keep_every_text(tmp_path: Path) -> None:
    texts = [text for text in TEXTS if text not in REFUSED]
    rows = pa.record_batch({"text": [*texts, None], "n": range(len(texts) + 1)})
    folder = write(tmp_path / "out", rows, partition_by="text")
    found = {}
    for path in data_files(folder):
        told = unquote(path.parent.name.removeprefix("text="), errors="strict")
        text = None if told == "__HIVE_DEFAULT_PARTITION__" else told
        found |= dict.fromkeys(pq.ParquetFile(path).read()["n"].to_pylist(), text)
    assert [found[n] for n in range(len(texts) + 1)] == [*texts, None]


@pytest.mark.parametrize("text", REFUSED)
def test_texts_that_a_folder_name_cannot_hold_are_refused(tmp_path: Path, text: str) -> None:
    rows = pa.record_batch({"text": ["a", text], "n": [1, 2]})
    with pytest.raises(DataError, match="Column 'text' names folders") as refused:
        write(tmp_path / "out", rows, partition_by="text")
    assert repr(text[:40]) in str(refused.value)
    assert data_files(tmp_path / "out") == []


def test_parquet_keeps_texts_that_are_not_utf8(tmp_path: Path) -> None:
    """It keeps all bytes; test_files_sink.py has the other formats."""
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    [path] = data_files(write(tmp_path / "out", pa.record_batch({"text": broken})))
    assert pq.read_table(path)["text"].cast(pa.binary()).to_pylist() == [b"caf\xe9"]
