"""Values of Spark's types arrive unchanged, or are rejected with the name of their column."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

import dedup
from dedup.errors import ConfigError, DataError
from dedup.sinks.mysql.columns import _FITTING
from dedup.sinks.postgres.columns import _SCALARS
from tests.databases.database import Database, cases
from tests.databases.mysql import Mysql
from tests.databases.postgres import Postgres
from tests.support.edge_values import NESTED, SCALARS, batch_of, has_nul, told
from tests.support.needs import some_long

US = pa.timestamp("us", "Europe/Berlin")
NTZ = pa.timestamp("us")
KINDS = pytest.mark.parametrize("kind", [Postgres, Mysql])
TYPES = ("CREATE TYPE mood AS ENUM ('sad', 'happy')", "CREATE DOMAIN short_text AS varchar(2)")
INTS = [-(2**31), 2**31 - 1]
LONG_DECIMALS = [Decimal("9" * 28 + ".1234567891"), Decimal("-0.0000000001"), Decimal(0),
                 Decimal(10000)]  # fmt: skip
TIMES = [datetime(1000, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999),
         datetime(2024, 3, 31, 2, 30, 0, 1),
         datetime(9999, 12, 31, 23, 59, 59, 999999)]  # fmt: skip
INSTANTS = [each.replace(tzinfo=UTC) for each in TIMES]


@cases(
    # A type of the server that is not the usual one, or has limits.
    "spark arrow kind values",
    both=[
        ("int", pa.int32(), "bigint", INTS),
        ("int", pa.int32(), "numeric(12,2)", INTS),
        ("bigint", pa.int64(), "numeric(19)", [-(2**63), 2**63 - 1]),
        ("decimal(9,2)", pa.decimal128(9, 2), "numeric(12,4)", [Decimal("9999999.99")]),
        ("string collate UNICODE_CI", pa.string(), "text", ["a"]),
        ("string", pa.string(), "varchar(3)", ["é🐍x", "a  "]),
    ],
    postgres=[
        ("tinyint", pa.int8(), "bigint", [-128, 127]),
        ("float", pa.float32(), "double precision", [0.5, -math.inf]),
        ("decimal(38,10)", pa.decimal128(38, 10), "numeric", LONG_DECIMALS),
        ("string", pa.string(), "json", ['{"b": [1, null],  "a": 1}']),
        ("string", pa.string(), "jsonb", ['{"b": [1, null]}']),
        ("string", pa.string(), "mood", ["sad", "happy"]),
        ("string", pa.string(), "uuid", ["00112233-4455-6677-8899-aabbccddeeff",
                                         "AABBCCDD-4455-6677-8899-AABBCCDDEEFF"]),
        ("string", pa.string(), "short_text", ["ab"]),
        ("timestamp", US, "timestamptz", [datetime(1, 1, 1, tzinfo=UTC), *INSTANTS]),
        ("timestamp_ntz", NTZ, "timestamp(6)", [datetime(1, 1, 1), *TIMES]),
        ("interval day to second", pa.duration("us"), "interval",
         [timedelta(days=-3, microseconds=5), timedelta(days=100_000, hours=5)]),
        ("array<int>", pa.list_(pa.int32()), "integer[]", [[1, None, -1], []]),
        ("array<date>", pa.list_(pa.date32()), "date[]", [[date(1, 1, 1)]]),
        ("array<double>", pa.list_(pa.float64()), "double precision[]", [[0.1]]),
        ("array<boolean>", pa.list_(pa.bool_()), "boolean[]", [[True, None]]),
        ("array<binary>", pa.list_(pa.binary()), "bytea[]", [[b"\0"]]),
    ],
    mysql=[
        ("tinyint", pa.int8(), "mediumint", [-128, 127]),
        ("float", pa.float32(), "double", [0.5, -3.4028234663852886e38, 1.401298464324817e-45]),
        ("decimal(38,10)", pa.decimal128(38, 10), "decimal(65,30)", LONG_DECIMALS),
        ("decimal(38,38)", pa.decimal128(38, 38), "decimal(38,38)",
         [Decimal("0." + "0" * 15 + "12345678901234567890123"), Decimal("-0." + "0" * 37 + "1")]),
        ("string", pa.string(), "longtext", ["", "é🐍\n\t\\", "x" * 100_000, "O'Brien\\", "%s%%",
                                             "\x1a", "\0\0\0"]),
        ("string", pa.string(), "tinytext", ["é" * 127]),
        ("binary", pa.binary(), "varbinary(4)", [b"", b"\0\xff '", b"a \0\0", b"'\\"]),
        ("binary", pa.binary(), "longblob", [bytes(range(256)) * 5000]),
        ("timestamp", US, "timestamp(6)", [datetime(1971, 1, 1, 0, 0, 0, 1, UTC),
                                           datetime(2038, 1, 19, 3, 14, 7, 999999, UTC)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", some_long(["append", "upsert"], "append"))
def test_values_arrive_as_they_are(
    db: Database, spark: str, arrow: pa.DataType, kind: str, values: list[Any],
    mode: str,
) -> None:  # fmt: skip
    values = [*values, None]
    key = {"key": "n"} if mode == "upsert" else {}
    made = TYPES if kind in ("mood", "short_text") else ()
    db.run(*made, f"CREATE TABLE t (n int{' PRIMARY KEY' * len(key)}, c {kind} NULL)")
    rows = pa.RecordBatch.from_arrays(
        [pa.array(range(len(values)), pa.int32()), pa.array(values, arrow)], names=["n", "c"]
    )
    # A batch that is a part of another one, as Arrow hands them over.
    shifted = pa.Table.from_batches([rows, rows]).combine_chunks().to_batches()[0]
    columns = [("n", "int"), ("c", spark)]
    db.write(shifted.slice(len(values)), columns=columns, mode=mode, **key)
    expected = [v.lower() if kind == "uuid" and v else v for v in values]
    found = [told(value) for (value,) in db.values({"c": spark})]
    assert found == [told(v) for v in expected for _ in range(1 if key else 2)]


SPARK: dict[str, T.DataType] = {
    "boolean": T.BooleanType(), "tinyint": T.ByteType(), "smallint": T.ShortType(),
    "int": T.IntegerType(), "bigint": T.LongType(), "float": T.FloatType(),
    "double": T.DoubleType(), "decimal(38,0)": T.DecimalType(38, 0),
    "decimal(38,38)": T.DecimalType(38, 38), "decimal(12,2)": T.DecimalType(12, 2),
    "string": T.StringType(), "binary": T.BinaryType(), "date": T.DateType(),
    "timestamp": T.TimestampType(), "timestamp_ntz": T.TimestampNTZType(),
    "array<string>": T.ArrayType(T.StringType()),
    "array<decimal(12,2)>": T.ArrayType(T.DecimalType(12, 2)),
}  # fmt: skip


def is_held_by_mysql(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, date) or value.year >= 1000


@pytest.mark.parametrize("mode", some_long(["append", "upsert", "atomic"], "upsert"))
def test_edge_values_are_read_back_unchanged(db: Database, mode: str) -> None:
    """The table has 200 columns, with each type as the DDL declares it."""
    if db.name == "postgres":
        edges = [edge.only(lambda value: not has_nul(value)) for edge in (*SCALARS, *NESTED)]
    else:
        edges = [edge.only(is_held_by_mysql) for edge in SCALARS]
    edges = [edge for edge in edges if edge.spark in SPARK]
    rows = batch_of(edges)
    kinds = {"n": "int"} | {edge.name: edge.spark for edge in edges}
    for number in range(200 - len(kinds)):
        kinds[f"x{number}"] = "bigint"
        rows = rows.append_column(f"x{number}", rows["n"].cast(pa.int64()))
    schema = T.StructType(
        [T.StructField(name, SPARK[spark], nullable=name != "n") for name, spark in kinds.items()]
    )
    key = {"key": "n"} if mode == "upsert" else {}
    db.run(db.ddl(schema, "t", **key))
    db.write(rows, columns=list(kinds.items()), mode=mode, **key)
    found, copies = db.values(kinds), 1 if key else 2
    for place, name in enumerate(kinds):
        for copy in range(copies):
            column = [told(row[place]) for row in found[copy::copies]]
            assert column == list(map(told, rows[name].to_pylist())), name


def raw(number: int, arrow: pa.DataType) -> pa.Array:
    """Return a value from the number that Arrow has for it."""
    if pa.types.is_list(arrow):
        return pa.ListArray.from_arrays([0, 1], raw(number, arrow.value_type))
    return pa.array([number], pa.int32() if pa.types.is_date(arrow) else pa.int64()).cast(arrow)


FIRST_DAY, LENGTH = "a record is before 24 November 4714", r"too long: 4 characters, and .* takes"


@cases(
    "spark arrow kind value why",
    postgres=[
        ("date", pa.date32(), "date", raw(-(2**31), pa.date32()), FIRST_DAY),
        ("timestamp", US, "timestamptz", raw(-(2**63), US), FIRST_DAY),
        # PostgreSQL would take these for -infinity.
        ("date", pa.date32(), "date", raw(-(2**31) + 10_957, pa.date32()), FIRST_DAY),
        ("timestamp_ntz", NTZ, "timestamp", raw(-(2**63) + 946_684_800_000_000, NTZ), FIRST_DAY),
        ("array<date>", pa.list_(pa.date32()), "date[]",
         raw(-(2**31) + 10_957, pa.list_(pa.date32())), FIRST_DAY),
        # The server would silently remove the blanks.
        ("string", pa.string(), "varchar(3)", "ab  ", f"{LENGTH} 3"),
        ("string", pa.string(), "short_text", "ab  ", f"{LENGTH} 2"),
        ("string", pa.string(), "text", "a\0b", "invalid byte sequence"),
        ("array<string>", pa.list_(pa.string()), "text[]", ["a\0b"], "invalid byte sequence"),
        *(("string", pa.string(), "uuid", text, "is not a UUID")
          for text in ("no-uuid", "00112233-4455-6677-8899-aabbccddeeffg", "")),
    ],
    mysql=[
        ("double", pa.float64(), "double", math.nan, "NaN and infinity have no value"),
        ("float", pa.float32(), "double", -math.inf, "NaN and infinity have no value"),
        ("date", pa.date32(), "date", date(999, 12, 31), "its year is not from 1000 to 9999"),
        ("date", pa.date32(), "date", raw(2_932_897, pa.date32()), "its year is not from"),
        ("timestamp", US, "datetime(6)", datetime(999, 12, 31, tzinfo=UTC), "its year is not from"),
        ("timestamp", US, "datetime(6)", raw(253_402_300_800_000_000, US), "its year is not from"),
        ("timestamp_ntz", NTZ, "datetime(6)", raw(-(2**63), NTZ), "its year is not from"),
        ("timestamp", US, "timestamp(6)", datetime(1960, 1, 1, tzinfo=UTC), "Incorrect datetime v"),
        ("string", pa.string(), "varchar(3)", "ab  ", "4 characters, and the column takes 3"),
        ("string", pa.string(), "tinytext", "é" * 127 + "  ", "256 bytes, and the column takes"),
        ("binary", pa.binary(), "varbinary(3)", b"ab  ", "Data too long for column"),
        ("binary", pa.binary(), "tinyblob", b"x" * 255 + b"\0", "Data too long"),
        ("string", pa.string(), "varchar(3) NOT NULL", None, "no value, and the column is NOT NU"),
        ("bigint", pa.int64(), "bigint AUTO_INCREMENT UNIQUE", None, "no value, and the col"),
        ("timestamp", US, "timestamp(6) NOT NULL", None, "no value, and the column is NOT NULL"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named(
    db: Database, spark: str, arrow: pa.DataType, kind: str, value: Any, why: str
) -> None:
    made = TYPES if kind == "short_text" else ()
    db.run(*made, f"CREATE TABLE t (n int, c {kind})")
    values = value if isinstance(value, pa.Array) else pa.array([value], arrow)
    rows = pa.RecordBatch.from_arrays([pa.array([7], pa.int32()), values], names=["n", "c"])
    with pytest.raises(DataError, match=rf'Table t[,:].*{why}.*record is {{"n": 7, "c": ') as no:
        db.write(rows, columns=[("n", "int"), ("c", spark)])
    assert re.search("['`]c['`]|column c", str(no.value))
    assert db.run("SELECT * FROM t") == []


@cases(
    "spark kind why",
    both=[("decimal(10,3)", "numeric(10,2)", "10 digits, 3 .* room for 10 and 2"),
          ("decimal(10,0)", "numeric(9,0)", "room for 9 and 0")],
    postgres=[
        ("bigint", "integer", "it is bigint, and there integer; .* goes into bigint"),
        ("double", "real", "goes into double precision"),
        ("int", "text", "goes into integer, bigint"),
        ("string", "integer", "goes into text"),
        ("string", "character(10)", "it is string, and there character"),
        ("decimal(10,0)", "numeric(13,-2)", "room for 13 and -2"),
        ("double", "numeric", "make it a decimal"),
        ("timestamp", "timestamptz(3)", "keeps 3 digits of its seconds"),
        ("timestamp", "timestamp", "timestamp with time zone"),
        ("struct<a:int>", "jsonb", "it is struct; make it a text with to_json"),
        ("map<string,int>", "jsonb", "it is map; make it a text"),
        ("array<array<int>>", "integer[]", "this sink does not write"),
        ("array<timestamp>", "timestamptz[]", "this sink does not write"),
        ("array<int>", "integer", "it is array<int>, and there integer"),
        ("interval day to second", "interval(3)", "make it a plain interval"),
        ("void", "text", "none that this sink knows"),
        ("interval year to month", "interval", "none that this sink knows"),
    ],
    mysql=[
        ("bigint", "int", "it is bigint, and there int; without loss it fits bigint"),
        ("int", "int unsigned", "the column is unsigned"),
        ("int", "decimal(12,0) unsigned", "the column is unsigned"),
        ("double", "double unsigned", "the column is unsigned"),
        ("double", "float", "it is double, and there float"),
        ("float", "float", "it is float, and there float; without loss it fits double"),
        ("int", "text", "it is int, and there text"),
        ("string", "int", "without loss it fits longtext"),
        ("string", "char(10)", "it is string, and there char"),
        ("string", "enum('a')", "it is string, and there enum"),
        ("string", "varchar(9) CHARACTER SET latin1", "the character set latin1; use utf8mb4"),
        ("string", "text CHARACTER SET utf8mb3", "the character set utf8mb3"),
        ("binary", "binary(4)", "it is binary, and there binary"),
        ("double", "decimal(30,10)", "it is double, and there decimal"),
        ("timestamp", "datetime", "keeps 0 digits of a second"),
        ("timestamp", "timestamp(3)", "keeps 3 digits"),
        ("timestamp_ntz", "timestamp(6)", "it is timestamp_ntz, and there timestamp"),
        ("date", "datetime(6)", "it is date, and there datetime"),
        ("array<int>", "longtext", "it is array<int>, .* make it a text with to_json"),
        ("struct<a:int>", "longtext", "make it a text with to_json"),
        ("int", "int GENERATED ALWAYS AS (n + 1) STORED", "the table computes this column"),
        ("int", "int AS (n + 1) VIRTUAL", "the table computes this column"),
    ],
)  # fmt: skip
def test_a_column_that_would_lose_information_is_rejected(
    db: Database, spark: str, kind: str, why: str
) -> None:
    db.run(f"CREATE TABLE t (n int, c {kind})")
    with pytest.raises(ConfigError, match=f"Column 'c' of the stream .* table t: .*{why}"):
        db.work([("n", "int"), ("c", spark)])


@KINDS
def test_the_ddl_declares_the_key_and_rejects_columns_without_a_type(kind: type[Database]) -> None:
    fields = [T.StructField("id", T.StringType(), False), T.StructField("Na me", T.LongType())]
    made = kind.ddl(T.StructType(fields), "t", key=["id"])
    assert made == kind.ddl(T.StructType(fields), "t", key="id")
    assert re.search(r"[\"`]id[\"`] .* NOT NULL,", made)
    assert re.search(r"PRIMARY KEY \([\"`]id[\"`]\)", made)
    with pytest.raises(ConfigError, match="key='x' is not a column"):
        kind.ddl(T.StructType(fields), "t", key=["x"])
    schema = T.StructType([T.StructField("m", T.MapType(T.StringType(), T.StringType()))])
    with pytest.raises(ConfigError, match=r"Column 'm' .* does not go into table t: it is map"):
        kind.ddl(schema, "t")


#: Types that the page describes in words, and PostgreSQL's longer names of types.
IN_WORDS = {"tinyint", "smallint", "int", "bigint", "decimal(p,s)"}
NAMES = {"varchar": "character varying", "timestamptz": "timestamp with time zone",
         "timestamp": "timestamp without time zone", "datetime(6)": "datetime",
         "timestamp(6)": "timestamp"}  # fmt: skip


@pytest.mark.parametrize(
    ("sink", "fitting"), [("postgres", _SCALARS), ("mysql", _FITTING)], ids=["postgres", "mysql"]
)
def test_the_page_lists_the_types(sink: str, fitting: dict[str, Sequence[str]]) -> None:
    page = (Path(dedup.__file__).parent / f"sinks/{sink}/README.md").read_text()
    table = page.split("## Types\n\n")[1].split("\n\n")[0]
    rows = {
        spark: re.findall(r"`([^`]+)`", right)
        for left, right in re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE)
        for spark in re.findall(r"`([^`]+)`", left)
    }
    assert rows.keys() >= IN_WORDS
    assert rows.keys() - IN_WORDS == fitting.keys() - IN_WORDS
    for spark in rows.keys() - IN_WORDS:
        names = [NAMES.get(kind, kind) if sink == "postgres" or "(" in kind else kind
                 for kind in rows[spark] if kind != "utf8mb4"]  # fmt: skip
        assert names == list(fitting[spark]), spark
