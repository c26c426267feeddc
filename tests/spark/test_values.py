"""dedup/cli/VALUES.md documents the readers: each example of its tables is tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup.errors import DataError
from dedup.sources.files.bypass import LeftToSpark, arrow_schema
from dedup.sources.files.csv_input import CsvReader
from dedup.sources.files.csv_records import CsvForm
from dedup.sources.files.json_input import JsonReader
from dedup.sources.files.orc_times import check_orc_times
from dedup.sources.files.parquet_input import ParquetInput, spark_columns
from dedup.sources.files.text_records import TextReader
from dedup.sources.files.text_values import Spelling
from dedup.sources.strict_json import CAUSE, FIELDS, NOT_STRICT, with_fields, with_tagged
from tests.support.pages import Row, table


def parsed(spark: SparkSession, texts: list[str | bytes | None], schema: str) -> DataFrame:
    rows = [(text.encode() if isinstance(text, str) else text,) for text in texts]
    records = spark.createDataFrame(rows, "value binary").coalesce(1)
    columns = spark.createDataFrame([], schema).schema
    return with_fields(with_tagged(records, F.col("value").cast("string")), columns, {})


def examples(row: Row) -> list[str]:
    return [*(text for text, _ in row.kept), *row.rejected]


def read_json(spark: SparkSession, row: Row, path: Path) -> list[str | None]:
    """Values of all examples of a row as texts, null for those that are rejected."""
    found = parsed(spark, [f'{{"v": {text}}}' for text in examples(row)], f"v {row.kind}")
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


def read_json_file(spark: SparkSession, row: Row, path: Path) -> list[str | None] | None:
    try:
        columns = arrow_schema(spark.createDataFrame([], f"number INT, v {row.kind}").schema, "UTC")
    except LeftToSpark:
        return None
    reader = JsonReader(columns, Spelling())
    lines = (f'{{"number": {n}, "v": {text}}}' for n, text in enumerate(examples(row)))
    return read_text(spark, row, reader, lines)


def test_a_name_of_no_number_may_look_like_one_of_java(spark: SparkSession, tmp_path: Path) -> None:
    row = Row("DOUBLE", [("-1.#IND", "NaN"), ("1.5", "1.5")], ["1D", "1.#IND"])
    assert read_csv(spark, row, tmp_path / "1", nan="-1.#IND") == ["NaN", "1.5", None, None]


#: How a format reads the examples of a row.
READERS: dict[str, Callable[[SparkSession, Row, Path], Iterable[str | None]]] = {
    "json": read_json, "csv": read_csv, "parquet": read_parquet, "orc": read_orc,
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_the_page_says_what_the_code_does(spark: SparkSession, tmp_path: Path, name: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for row in table(name):
        said = [value for _, value in row.kept] + [None] * len(row.rejected)
        assert list(READERS[name](spark, row, tmp_path / "1")) == said, row.kind
        if name == "json":
            assert read_json_file(spark, row, tmp_path / "1") in (said, None), row.kind


NESTED = '{"a":' + "[" * 2000 + "]" * 2000 + "}"
NOT_JSON = [
    '{"a":"x"}}', '{"a":"x"}{"a":"y"}', '{"a":"x"} y', '{"a":"x"},"_value":{"a":"y"}',
    '{"a":"x"}\0',
    '{"a":1,"a":2}', '{"b":{"c":1,"c":2}}', '{"a":1,"\\u0061":2}', '{"a":"x\\ud800"}',
    '{"a":"\\udc00x"}', '{"\\ud801":1}', '{"a":NaN}', "{'a':1}", '{"a":01}', '{"a":1.}', '{"a":.5}',
    '{"a":+1}', '{"a":1,}', "{a:1}", '{"a":1}//', '{5:1}', '{"a":"\t"}', '{"a":"x"', "\0",
    '1],["a"', "1,2", '\ufeff{"a":1}', NESTED, '{"a":' + "9" * 1001 + "}",
]  # fmt: skip


def test_what_is_not_exactly_one_json_value_is_rejected(spark: SparkSession) -> None:
    said = parsed(spark, NOT_JSON, "a STRING").select(CAUSE, FIELDS).collect()
    assert [row[CAUSE] for row in said] == [NOT_STRICT] * len(NOT_JSON)
    assert {row[FIELDS] for row in said} == {None}
    raw = [b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b"\xff\xfe{\0}\0"]
    causes = parsed(spark, raw, "a STRING").select(CAUSE).collect()
    assert {row[CAUSE] for row in causes} == {"It is not valid UTF-8."}


def test_a_session_that_allows_repeated_keys_is_refused(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.variant.allowDuplicateKeys", "true")
    try:
        with pytest.raises(Exception, match=r"ConfigError: .*allowDuplicateKeys to false"):
            parsed(spark, ['{"a":1}'], "a STRING").collect()
    finally:
        spark.conf.unset("spark.sql.variant.allowDuplicateKeys")


def test_a_text_column_keeps_what_looks_like_our_own_marks(spark: SparkSession) -> None:
    values = ["|", "5|", "|5", '"5|"', '\\"5|"', "a|", "5", "\\", "{}", "true", "\u0000|", "$1", ""]
    texts: list[str | bytes | None] = [
        json.dumps({"a": value, "|a": "no", "b": {value: [value, 5]}}) for value in values
    ]
    found = parsed(spark, texts, "a STRING, b STRING").select(f"{FIELDS}.*").collect()
    assert [row.a for row in found] == values
    assert [json.loads(row.b) for row in found] == [{value: [value, 5]} for value in values]


def test_surrogates_in_pairs_are_text(spark: SparkSession) -> None:
    pairs = [r"\ud83d\ude00", r"\\ud800", r"\\\\udc00", r"\uD83D\uDE00\ud83d\ude00", "\U0001f600"]
    halves = [
        r"\ud83d\ud83d\ude00",
        r"\ud83d\ude00\ude00",
        r"\\ud83d\ude00",
        r"\\\ud800",
        r"\uDFFF",
    ]
    texts: list[str | bytes | None] = [f'{{"a":"{text}"}}' for text in [*pairs, *halves]]
    found = parsed(spark, texts, "a STRING").select(F.col(FIELDS)["a"].alias("a"), CAUSE).collect()
    assert [row.a for row in found] == [json.loads(f'"{text}"') for text in pairs] + [None] * 5
    assert [row[CAUSE] for row in found] == [None] * len(pairs) + [NOT_STRICT] * len(halves)


def test_columns_may_have_any_name(spark: SparkSession) -> None:
    names = ["_corrupt_record", "_metadata", "_dedup_corrupt", "value", "none", "a.b", "|a", "x y"]
    schema = ", ".join(f"`{name}` STRING" for name in names)
    text = json.dumps({name: name for name in names})
    (row,) = parsed(spark, [text], schema).select(f"{FIELDS}.*").collect()
    assert list(row) == names
