"""dedup/cli/VALUES.md documents the readers: each example of its tables is tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup.errors import ConfigError, DataError
from dedup.sources.files.bypass import arrow_schema
from dedup.sources.files.csv_input import CsvReader
from dedup.sources.files.csv_records import CsvForm
from dedup.sources.files.orc_times import check_orc_times
from dedup.sources.files.parquet_input import ParquetInput, spark_columns
from dedup.sources.files.text_records import TextReader
from dedup.sources.files.text_values import Spelling
from dedup.sources.kafka.decoder import CAUSE, FIELDS
from dedup.sources.kafka.values import Json, parser
from tests.support.needs import needs_spark_4, of_spark_4
from tests.support.pages import Row, table


def parsed(spark: SparkSession, texts: list[str], given: Json) -> DataFrame:
    parse = parser(spark, given, ())
    assert parse is not None
    records = spark.createDataFrame([(text.encode(),) for text in texts], "value binary")
    return parse(records.coalesce(1))


def examples(row: Row) -> list[str]:
    return [*(text for text, _ in row.kept), *row.rejected]


def read_json(spark: SparkSession, row: Row, path: Path) -> list[str | None]:
    """Values of all examples of a row as texts, null for those that are rejected."""
    found = parsed(spark, [f'{{"v": {text}}}' for text in examples(row)], Json(f"v {row.kind}"))
    value = F.when(F.col(CAUSE).isNull(), F.col(FIELDS)["v"].cast("string"))
    return [one.value for one in found.select(value.alias("value")).collect()]


def value_of(frame: DataFrame) -> str:
    (value,) = frame.select(F.col("v").cast("string")).collect()
    return str(value[0])


def read_parquet_file(spark: SparkSession, path: Path) -> str | None:
    """The value of a file's only row as text, null if the file is rejected."""
    try:
        schema = spark_columns(spark.read.format("parquet"), str(path), [path])
        with ParquetInput(str(path)) as file:
            columns = arrow_schema(schema, "UTC")
            if file.misfit(columns) is None:
                rows = pa.Table.from_batches(file.batches(0, columns))
                return value_of(spark.createDataFrame(rows, schema))
            if file.unread_by_spark(columns) is not None:
                return None
        return value_of(spark.read.parquet(str(path)))
    except Exception:
        return None


def read_parquet(spark: SparkSession, row: Row, path: Path) -> Iterator[str | None]:
    for text in examples(row):
        quoted = text.replace("'", "''")
        duckdb.sql(
            f"set timezone = 'UTC'; copy (select '{quoted}'::{row.kind} v) to '{path}' "
            "(format parquet)"
        )
        yield read_parquet_file(spark, path)


OF_ORC = {
    "STRING": pa.string(), "BIGINT": pa.int64(), "DECIMAL(38,10)": pa.decimal128(38, 10),
    "DATE": pa.date32(), "TIMESTAMP": pa.timestamp("ns"),
}  # fmt: skip


def read_orc(spark: SparkSession, row: Row, path: Path) -> Iterator[str | None]:
    for text in examples(row):
        orc.write_table(pa.table({"v": pa.array([text]).cast(OF_ORC[row.kind])}), str(path))
        try:
            rows = spark.read.orc(str(path))
            value = value_of(rows)
            check_orc_times(spark, [path], rows.schema)
        except Exception:
            yield None
        else:
            yield value


def test_old_times_of_orc_are_rejected_if_spark_would_shift_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark writes them so that it reads the same day, and ORC's C++ library does not."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    old = (
        "select date'1000-03-01' d, timestamp'1000-03-01 00:00:00' t, map('a', date'0001-01-01') m"
    )
    spark.sql(old).coalesce(1).write.orc(str(tmp_path / "spark"))
    (by_spark,) = (tmp_path / "spark").glob("*.orc")
    day = datetime(1000, 3, 1)
    stamps = pa.array([[day]], pa.list_(pa.timestamp("us")))
    days = pa.array([{"a": day.date()}], pa.struct({"a": pa.date32()}))
    for name, column in (("t", stamps), ("d", days)):
        by_cpp = tmp_path / f"{name}.orc"
        orc.write_table(pa.table({"id": ["x"], name: column}), str(by_cpp))
        columns = spark.read.orc(str(by_cpp)).schema
        with pytest.raises(DataError, match=rf"/{name}.orc: its column '{name}' has times before"):
            check_orc_times(spark, [by_cpp, by_spark], columns)
    rows = spark.read.orc(str(by_spark))
    check_orc_times(spark, [by_spark], rows.schema)
    assert rows.selectExpr("*").first() == spark.sql(old).first()


def read_text(
    spark: SparkSession, row: Row, reader: TextReader, lines: Iterable[str]
) -> list[str | None]:
    """Values as tasks read them, as texts of Spark, null for those that are rejected."""
    rows = reader.read("".join(f"{line}\n" for line in lines).encode()).good
    columns = spark.createDataFrame([], f"number INT, v {row.kind}").schema
    texts = spark.createDataFrame(pa.Table.from_batches([rows]), columns)
    found = dict(texts.select("number", F.col("v").cast("string")).collect())
    return [found.get(number) for number in range(len(examples(row)))]


def read_csv(spark: SparkSession, row: Row, path: Path, **options: str) -> list[str | None]:
    columns = arrow_schema(spark.createDataFrame([], f"number INT, v {row.kind}").schema, "UTC")
    reader = CsvReader(columns, columns.names, CsvForm(), Spelling(**options))
    lines = (f"{number},{text}" for number, text in enumerate(examples(row)))
    return read_text(spark, row, reader, lines)


@needs_spark_4
def test_a_spelling_of_nan_may_resemble_javas(spark: SparkSession, tmp_path: Path) -> None:
    row = Row("DOUBLE", [("-1.#IND", "NaN"), ("1.5", "1.5")], ["1D", "1.#IND"])
    assert read_csv(spark, row, tmp_path / "1", nan="-1.#IND") == ["NaN", "1.5", None, None]


#: How a format reads the examples of a row.
READERS: dict[str, Callable[[SparkSession, Row, Path], Iterable[str | None]]] = {
    "json": read_json, "csv": read_csv, "parquet": read_parquet, "orc": read_orc,
}  # fmt: skip


@pytest.mark.parametrize("name", [of_spark_4("csv"), of_spark_4("parquet"), "json", "orc"])
def test_the_readers_behave_as_the_tables_of_the_page_say(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for row in table(name):
        said = [value for _, value in row.kept] + [None] * len(row.rejected)
        assert list(READERS[name](spark, row, tmp_path / "1")) == said, row.kind


def test_json_options_set_the_patterns_of_times(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    text = '{"d": "01/05/2024", "t": "01.05.2024 10", "n": "2024-05-01", "z": 1714521600}'
    schema = "d DATE, t TIMESTAMP, n TIMESTAMP_NTZ NOT NULL, z TIMESTAMP"
    patterns = {"dateFormat": "dd/MM/yyyy", "TimestampFormat": "dd.MM.yyyy HH"}
    for options, time in (
        (patterns, "2024-05-01 10:00:00"),
        (patterns | {"timeZone": "Asia/Tokyo"}, "2024-04-30 21:00:00"),
    ):
        found = parsed(spark, [text], Json(schema, options))
        nullable = spark.createDataFrame([], schema.replace(" NOT NULL", "")).schema
        assert found.schema[FIELDS].dataType == nullable
        texts = [F.col(FIELDS)[name].cast("string") for name in nullable.names]
        said = ("2024-05-01", time, "2024-05-01 00:00:00", "2024-04-30 20:00:00")
        assert found.select(*texts).first() == said


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        of_spark_4("a VARIANT", {}, "column 'Json.a' is variant. Declare it STRING"),
        ("a ARRAY<STRUCT<b: INTERVAL DAY>>", {}, "column 'Json.a[].b' is interval day"),
        ("a MAP<INT, INT>", {}, "JSON has no map with keys that are int32"),
        ("a STRUCT<b: INT, b: INT>", {}, "JSON has no object with two fields of one name"),
        ("t DATE", {"dateFormat": "EEE"}, "the pattern 'EEE' has EEE"),
        ("t TIMESTAMP", {"timeZone": "Nowhere"}, "the time zone Nowhere is not known"),
        ("a INT", {"locale": "de"}, "Option locale=de has no meaning for Json"),
        ("a INT", {"allowComments": "false"}, "Option allowComments=false has no meaning"),
    ],
)
def test_types_and_options_that_json_cannot_use_are_rejected_on_the_driver(
    spark: SparkSession, schema: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parser(spark, Json(schema, options), ())
