"""Values of Spark's types arrive unchanged, or are rejected with the name of their column."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, DataError
from dedup.sinks import postgres_ddl
from dedup.sinks.columns import Unsuitable
from dedup.sinks.postgres.columns import _SCALARS, column_type, encoding
from tests.postgres.tables import run, write
from tests.support.edge_values import ALL, Edge, batch_of, has_nul, told

US = pa.timestamp("us", "Europe/Berlin")
#: Spark's type, Arrow's, a PostgreSQL type that is not the usual one or has limits, and values.
CASES: list[tuple[str, pa.DataType, str, list[Any]]] = [
    ("tinyint", pa.int8(), "bigint", [-128, 127]),
    ("int", pa.int32(), "bigint", [-(2**31), 2**31 - 1]),
    ("int", pa.int32(), "numeric(12,2)", [-(2**31), 2**31 - 1]),
    ("bigint", pa.int64(), "numeric", [-(2**63), 2**63 - 1]),
    ("float", pa.float32(), "double precision", [0.5, -math.inf]),
    ("decimal(9,2)", pa.decimal128(9, 2), "numeric(12,4)", [Decimal("9999999.99")]),
    ("decimal(38,10)", pa.decimal128(38, 10), "numeric",
     [Decimal("9" * 28 + ".1234567891"), Decimal("-0.0000000001"), Decimal(0), Decimal(10000)]),
    ("string", pa.string(), "text", ["", "é🐍\n\t\\", "x" * 100_000]),
    ("string collate UNICODE_CI", pa.string(), "text", ["a"]),
    ("string", pa.string(), "varchar(3)", ["é🐍x"]),
    ("string", pa.string(), "json", ['{"b": [1, null],  "a": 1}']),
    ("string", pa.string(), "jsonb", ['{"b": [1, null]}']),
    ("string", pa.string(), "mood", ["sad", "happy"]),
    ("string", pa.string(), "uuid", ["00112233-4455-6677-8899-aabbccddeeff",
                                     "AABBCCDD-4455-6677-8899-AABBCCDDEEFF"]),
    ("string", pa.string(), "short_text", ["ab"]),
    ("timestamp", US, "timestamptz",
     [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
      datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]),
    ("timestamp_ntz", pa.timestamp("us"), "timestamp(6)",
     [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    ("interval day to second", pa.duration("us"), "interval",
     [timedelta(days=-3, microseconds=5), timedelta(days=100_000, hours=5)]),
    ("array<int>", pa.list_(pa.int32()), "integer[]", [[1, None, -1], []]),
    ("array<date>", pa.list_(pa.date32()), "date[]", [[date(1, 1, 1)]]),
    ("array<double>", pa.list_(pa.float64()), "double precision[]", [[0.1]]),
    ("array<boolean>", pa.list_(pa.bool_()), "boolean[]", [[True, None]]),
    ("array<binary>", pa.list_(pa.binary()), "bytea[]", [[b"\0"]]),
]  # fmt: skip
TYPES = "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN short_text AS varchar(2)"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_values_arrive_as_they_are(
    dsn: str, tmp_path: Path, case: tuple[str, pa.DataType, str, list[Any]], mode: str
) -> None:
    spark, arrow, kind, values = case
    values = [*values, None]
    run(dsn, TYPES, f'CREATE TABLE rows (n integer PRIMARY KEY, c {kind}, "Ca""p" text)')
    if mode == "append":
        run(dsn, "ALTER TABLE rows DROP CONSTRAINT rows_pkey")
    rows = pa.RecordBatch.from_arrays(
        [pa.array(range(len(values)), pa.int32()), pa.array(values, arrow)], names=["n", "c"]
    )
    # A batch that is a part of another one, as Arrow hands them over.
    shifted = pa.Table.from_batches([rows, rows]).combine_chunks().to_batches()[0]
    columns = [("n", "int"), ("c", spark)]
    options = {"mode": "upsert", "key": "n"} if mode == "upsert" else {}
    write(dsn, tmp_path, columns, shifted.slice(len(values), len(values)), **options)
    shown = "c::text" if "json" in kind else "c"
    with psycopg.connect(dsn, options="-c timezone=UTC") as connection:
        found = connection.execute(f"SELECT {shown} FROM rows ORDER BY n".encode()).fetchall()
    expected = [v.lower() if kind == "uuid" and v else v for v in values]
    copies = 1 if mode == "upsert" else 2
    assert [told(row[0]) for row in found] == [told(v) for v in expected for _ in range(copies)]


WRITTEN = [edge for edge in ALL if not edge.spark.startswith(("map", "struct", "array<array"))]


@pytest.mark.parametrize("mode", ["append", "upsert", "atomic"])
def test_edge_values_are_read_back_unchanged(dsn: str, tmp_path: Path, mode: str) -> None:
    """Each column has the type that the sink would create."""
    edges = [edge.only(lambda value: not has_nul(value)) for edge in WRITTEN]
    rows = batch_of(edges)
    columns = [("n", "int"), *((edge.name, edge.spark) for edge in edges)]
    kinds = ", ".join(f"{name} {column_type(spark)}" for name, spark in columns)
    run(dsn, f"CREATE TABLE rows ({kinds})")
    key = {}
    if mode == "upsert":
        run(dsn, "ALTER TABLE rows ADD PRIMARY KEY (n)")
        key = {"key": "n"}
    write(dsn, tmp_path, columns, rows, mode=mode, **key)
    names = ", ".join(name for name, _ in columns)
    with psycopg.connect(dsn, options="-c timezone=UTC") as connection:
        # Texts of a real are shorter than its value.
        ask = connection.cursor(binary=True).execute(
            f"SELECT {names} FROM rows ORDER BY n".encode()
        )
        found = ask.fetchall()
    for place, (name, wanted) in enumerate(zip(rows.schema.names, rows.columns, strict=True)):
        for copy in range(1 if key else 2):
            column = [told(row[place]) for row in found[copy :: 1 if key else 2]]
            assert column == list(map(told, wanted.to_pylist())), name


@pytest.mark.parametrize("edge", WRITTEN, ids=lambda each: each.spark)
def test_a_nul_character_is_refused(dsn: str, tmp_path: Path, edge: Edge) -> None:
    run(dsn, f"CREATE TABLE rows (c {column_type(edge.spark)})")
    for value in filter(has_nul, edge.values):
        rows = pa.RecordBatch.from_arrays([pa.array([value], edge.arrow)], names=["c"])
        with pytest.raises(DataError, match="invalid byte sequence"):
            write(dsn, tmp_path, [("c", edge.spark)], rows)


@pytest.mark.parametrize("kind", ["varchar(3)", "short_text"])
@pytest.mark.parametrize("mode", ["append", "atomic"])
def test_blanks_beyond_the_length_of_the_column_are_refused(
    dsn: str, tmp_path: Path, kind: str, mode: str
) -> None:
    """The server would silently remove them, and two keys would become one row."""
    run(dsn, TYPES, f"CREATE TABLE rows (c {kind} PRIMARY KEY)")
    rows = pa.record_batch({"c": ["ab", "ab  "]})
    options = {"mode": "atomic", "key": "c"} if mode == "atomic" else {}
    with pytest.raises(DataError, match=r"value too long: 4 characters, and .* takes [23].*"):
        write(dsn, tmp_path, [("c", "string")], rows, **options)
    assert run(dsn, "SELECT c FROM rows") == []


@pytest.mark.parametrize("kind", ["uuid", "varchar(3)"])
def test_a_text_that_is_not_utf8_is_refused(dsn: str, tmp_path: Path, kind: str) -> None:
    run(dsn, f"CREATE TABLE rows (c {kind})")
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
    with pytest.raises(DataError, match=r"is not a UUID|invalid byte sequence"):
        write(dsn, tmp_path, [("c", "string")], pa.record_batch({"c": broken}))


SPARK_TYPES = [*_SCALARS, "decimal(12,2)", "decimal(38,38)", "void", "interval day", "time(6)",
               "interval year to month", "variant", "struct<a:int>", "map<string,int>"]  # fmt: skip


@pytest.mark.parametrize("spark", [*SPARK_TYPES, *(f"array<{each}>" for each in SPARK_TYPES)])
def test_every_type_that_the_sink_writes_has_a_column_type(spark: str) -> None:
    kinds = {"numeric", *(kind for found in _SCALARS.values() for kind in found)}
    written = set()
    for kind in (*kinds, *(f"{each}[]" for each in kinds)):
        with suppress(Unsuitable):
            encoding(spark, kind, -1)
            written.add(kind)
    if not written:
        with pytest.raises(Unsuitable):
            column_type(spark)
        return
    base, modifier, rest = re.fullmatch(r"([a-z ]+)(\(.*\))?(.*)", column_type(spark)).groups()
    assert base + rest in written
    if modifier:
        digits, scale = map(int, modifier[1:-1].split(","))
        encoding(spark, base + rest, (digits << 16 | scale) + 4)


@pytest.mark.parametrize(
    ("spark", "kind", "modifier", "why"),
    [
        ("bigint", "integer", -1, "it is bigint, and there integer; .* goes into bigint"),
        ("double", "real", -1, "goes into double precision"),
        ("int", "text", -1, "goes into integer, bigint"),
        ("string", "integer", -1, "goes into text"),
        ("string", "character", 10, "it is string, and there character"),
        ("decimal(10,3)", "numeric", (10 << 16 | 2) + 4, "10 digits, 3 .* room for 10 and 2"),
        ("decimal(10,0)", "numeric", (9 << 16) + 4, "room for 9 and 0"),
        ("double", "numeric", -1, "make it a decimal"),
        ("timestamp", "timestamp with time zone", 3, "keeps 3 digits of its seconds"),
        ("timestamp", "timestamp without time zone", -1, "timestamp with time zone"),
        ("struct<a:int>", "jsonb", -1, "it is struct; make it a text with to_json"),
        ("map<string,int>", "jsonb", -1, "it is map; make it a text"),
        ("array<array<int>>", "integer[]", -1, "this sink does not write"),
        ("array<timestamp>", "timestamp with time zone[]", -1, "this sink does not write"),
        ("array<int>", "integer", -1, "it is array<int>, and there integer"),
        ("interval day to second", "interval", 0x7FFF0000, "make it a plain interval"),
        ("void", "text", -1, "none that this sink knows"),
        ("interval year to month", "interval", -1, "none that this sink knows"),
    ],
)
def test_a_column_that_would_lose_information_is_rejected(
    spark: str, kind: str, modifier: int, why: str
) -> None:
    with pytest.raises(Unsuitable, match=why):
        encoding(spark, kind, modifier)


def test_a_numeric_column_with_a_negative_scale_is_rejected() -> None:
    assert encoding("decimal(10,3)", "numeric", (13 << 16 | 5) + 4).arrow == pa.decimal128(10, 3)
    with pytest.raises(Unsuitable):  # numeric(13,-2)
        encoding("decimal(10,0)", "numeric", (13 << 16 | (-2 & 0x7FF)) + 4)


def test_the_table_of_postgres_ddl_accepts_the_stream(dsn: str, tmp_path: Path) -> None:
    schema = T.StructType(
        [
            T.StructField("id", T.StringType(), False),
            T.StructField("Na me", T.DecimalType(10, 2)),
            T.StructField("at", T.TimestampType()),
            T.StructField("many", T.ArrayType(T.LongType())),
        ]
    )
    statement = postgres_ddl(schema, "rows", key=["id"])
    assert postgres_ddl(schema, "rows", key="id") == statement
    assert '"id" text NOT NULL' in statement
    run(dsn, statement)
    rows = pa.RecordBatch.from_pydict(
        {"id": ["a"], "Na me": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
         "at": pa.array([0], US), "many": [[1, 2]]}
    )  # fmt: skip
    columns = [(f.name, f.dataType.simpleString()) for f in schema.fields]
    write(dsn, tmp_path, columns, rows, mode="upsert", key="id")
    assert run(dsn, 'SELECT id, "Na me", many FROM rows') == [("a", Decimal("1.50"), [1, 2])]


def test_postgres_ddl_rejects_unsupported_columns_and_keys() -> None:
    schema = T.StructType([T.StructField("m", T.MapType(T.StringType(), T.StringType()))])
    with pytest.raises(ConfigError, match=r"Column 'm' .* does not go into table t: it is map"):
        postgres_ddl(schema, "t")
    with pytest.raises(ConfigError, match="key='x' is not a column"):
        postgres_ddl(schema, "t", key=["x"])
    assert column_type("array<string>") == "text[]"
    for kind in ("void", "interval year", "array<time(6)>"):  # of which to_json takes none
        with pytest.raises(Unsuitable, match=r"; cast it$"):
            column_type(kind)


@pytest.mark.parametrize("text", ["no-uuid", "00112233-4455-6677-8899-aabbccddeeffg", ""])
def test_a_text_that_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(Unsuitable, match="is not a UUID"):
        encoding("string", "uuid", -1)(pa.array([None, text]))
