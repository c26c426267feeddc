"""Values of Spark's types arrive unchanged, or are rejected with the name of their column."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

import dedup
from dedup.errors import ConfigError, DataError
from dedup.sinks import mysql_ddl
from dedup.sinks.mysql.columns import _FITTING, _wanted
from tests.mysql.tables import Where, made, run, write
from tests.support.edge_values import SCALARS, batch_of, told
from tests.support.needs import some_long

US = pa.timestamp("us", "Europe/Berlin")
TIMES = [datetime(1000, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999),
         datetime(2024, 3, 31, 2, 30, 0, 1),
         datetime(9999, 12, 31, 23, 59, 59, 999999)]  # fmt: skip
#: Spark's type, Arrow's, a type of MySQL that is not the usual one or has limits, and values.
CASES: list[tuple[str, pa.DataType, str, list[Any]]] = [
    ("boolean", pa.bool_(), "tinyint(1)", [True, False]),
    ("tinyint", pa.int8(), "mediumint", [-128, 127]),
    ("int", pa.int32(), "bigint", [-(2**31), 2**31 - 1]),
    ("int", pa.int32(), "decimal(12,2)", [-(2**31), 2**31 - 1]),
    ("bigint", pa.int64(), "decimal(19)", [-(2**63), 2**63 - 1]),
    ("float", pa.float32(), "double", [0.5, -3.4028234663852886e38, 1.401298464324817e-45]),
    ("double", pa.float64(), "double", [-0.0, 0.1, 1e16, 1.7976931348623157e308, 5e-324]),
    ("decimal(9,2)", pa.decimal128(9, 2), "decimal(12,4)", [Decimal("9999999.99")]),
    ("decimal(38,10)", pa.decimal128(38, 10), "decimal(65,30)",
     [Decimal("9" * 28 + ".1234567891"), Decimal("-0.0000000001"), Decimal(0), Decimal(10000)]),
    ("decimal(38,38)", pa.decimal128(38, 38), "decimal(38,38)",
     [Decimal("0." + "0" * 15 + "12345678901234567890123"), Decimal("-0." + "0" * 37 + "1")]),
    ("string", pa.string(), "longtext", ["", "é🐍\n\t\\", "x" * 100_000, "O'Brien\\", "%s%%",
                                         "\x1a"]),
    ("string collate UNICODE_CI", pa.string(), "text", ["a"]),
    ("string", pa.string(), "varchar(3)", ["é🐍x", "a  ", "\0\0\0"]),
    ("string", pa.string(), "tinytext", ["é" * 127]),
    ("binary", pa.binary(), "varbinary(4)", [b"", b"\0\xff '", b"a \0\0", b"'\\"]),
    ("binary", pa.binary(), "longblob", [bytes(range(256)) * 5000]),
    ("timestamp", US, "timestamp(6)", [datetime(1971, 1, 1, 0, 0, 0, 1, UTC),
                                       datetime(2038, 1, 19, 3, 14, 7, 999999, UTC)]),
    ("timestamp", US, "datetime(6)", [each.replace(tzinfo=UTC) for each in TIMES]),
    ("timestamp_ntz", pa.timestamp("us"), "datetime(6)", TIMES),
]  # fmt: skip


def arrived(where: Where, kinds: dict[str, str]) -> list[tuple[Any, ...]]:
    """Return the rows by a plain client, with values as Arrow has them."""
    ask = f"SELECT {', '.join(kinds)} FROM t ORDER BY n"
    found = run(where, "SET time_zone = '+00:00'", ask)
    return [
        tuple(_as_arrow(v, s) for v, s in zip(row, kinds.values(), strict=True)) for row in found
    ]


def _as_arrow(value: Any, spark: str) -> Any:
    if value is None:
        return None
    if spark == "boolean":
        return bool(value)
    return value.replace(tzinfo=UTC) if spark == "timestamp" else value


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_values_arrive_as_they_are(
    where: Where, tmp_path: Path, case: tuple[str, pa.DataType, str, list[Any]]
) -> None:
    spark, arrow, kind, values = case
    values = [*values, None]
    text = " CHARACTER SET utf8mb4" if "string" in spark else ""
    run(where, f"CREATE TABLE t (n int, c {kind}{text} NULL)")
    rows = pa.RecordBatch.from_arrays(
        [pa.array(range(len(values)), pa.int32()), pa.array(values, arrow)], names=["n", "c"]
    )
    # A batch that is a part of another one, as Arrow hands them over.
    shifted = pa.Table.from_batches([rows, rows]).combine_chunks().to_batches()[0]
    write(where, tmp_path, [("n", "int"), ("c", spark)], shifted.slice(len(values)))
    found = [told(row[0]) for row in arrived(where, {"c": spark})]
    assert found == [told(v) for v in values for _ in range(2)]


TYPES: dict[str, T.DataType] = {
    "boolean": T.BooleanType(), "tinyint": T.ByteType(), "smallint": T.ShortType(),
    "int": T.IntegerType(), "bigint": T.LongType(), "float": T.FloatType(),
    "double": T.DoubleType(), "decimal(38,0)": T.DecimalType(38, 0),
    "decimal(38,38)": T.DecimalType(38, 38), "decimal(12,2)": T.DecimalType(12, 2),
    "string": T.StringType(), "binary": T.BinaryType(), "date": T.DateType(),
    "timestamp": T.TimestampType(), "timestamp_ntz": T.TimestampNTZType(),
}  # fmt: skip


def is_held(value: Any) -> bool:
    """Whether MySQL has the value at all."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, date) or value.year >= 1000


@pytest.mark.parametrize("mode", some_long(["append", "upsert", "atomic"], "upsert"))
def test_edge_values_are_read_back_unchanged(where: Where, tmp_path: Path, mode: str) -> None:
    """The table has 200 columns, with each type as `mysql_ddl` declares it."""
    edges = [edge.only(is_held) for edge in SCALARS]
    rows = batch_of(edges)
    kinds = {"n": "int"} | {edge.name: edge.spark for edge in edges}
    for number in range(200 - len(kinds)):
        kinds[f"`x{number}"] = "bigint"
        rows = rows.append_column(f"`x{number}", rows["n"].cast(pa.int64()))
    schema = T.StructType(
        [T.StructField(name, TYPES[spark], nullable=name != "n") for name, spark in kinds.items()]
    )
    key = {"key": "n"} if mode == "upsert" else {}
    run(where, mysql_ddl(schema, "t", server="mariadb", **key))
    write(where, tmp_path, list(kinds.items()), rows, mode=mode, **key)
    quoted = {"`" + name.replace("`", "``") + "`": spark for name, spark in kinds.items()}
    found = arrived(where, quoted)
    for place, name in enumerate(kinds):
        for copy in range(1 if key else 2):
            column = [told(row[place]) for row in found[copy :: 1 if key else 2]]
            assert column == list(map(told, rows[name].to_pylist())), name


#: Spark's type, Arrow's, the type in MySQL, a value that does not fit, and the reason.
BAD: list[tuple[str, pa.DataType, str, Any, str]] = [
    ("double", pa.float64(), "double", math.nan, "NaN and infinity have no value"),
    ("float", pa.float32(), "double", -math.inf, "NaN and infinity have no value"),
    ("date", pa.date32(), "date", date(999, 12, 31), "its year is not from 1000 to 9999"),
    ("date", pa.date32(), "date", 2_932_897, "its year is not from"),
    ("timestamp", US, "datetime(6)", datetime(999, 12, 31, tzinfo=UTC), "its year is not from"),
    ("timestamp", US, "datetime(6)", 253_402_300_800_000_000, "its year is not from"),
    ("timestamp_ntz", pa.timestamp("us"), "datetime(6)", -(2**63), "its year is not from"),
    ("timestamp", US, "timestamp(6)", datetime(1960, 1, 1, tzinfo=UTC), "Incorrect datetime value"),
    ("string", pa.string(), "varchar(3)", "ab  ", "4 characters, and the column takes 3"),
    ("string", pa.string(), "tinytext", "é" * 127 + "  ", "256 bytes, and the column takes 255"),
    ("binary", pa.binary(), "varbinary(3)", b"ab  ", "Data too long for column"),
    ("binary", pa.binary(), "tinyblob", b"x" * 255 + b"\0", "Data too long"),
    ("string", pa.string(), "varchar(3) NOT NULL", None, "no value, and the column is NOT NULL"),
    ("bigint", pa.int64(), "bigint AUTO_INCREMENT UNIQUE", None, "no value, and the col"),
    ("timestamp", US, "timestamp(6) NOT NULL", None, "no value, and the column is NOT NULL"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case[2]}-{str(case[3])[:20]}")
def test_a_value_that_does_not_fit_is_named(
    where: Where, tmp_path: Path, case: tuple[str, pa.DataType, str, Any, str]
) -> None:
    spark, arrow, kind, value, why = case
    run(where, f"CREATE TABLE t (n int, c {kind}) CHARACTER SET utf8mb4")
    plain = pa.int32() if pa.types.is_date(arrow) else pa.int64()
    is_raw = pa.types.is_temporal(arrow) and isinstance(value, int)
    values = pa.array([value], plain).cast(arrow) if is_raw else pa.array([value], arrow)
    rows = pa.RecordBatch.from_arrays([pa.array([7], pa.int32()), values], names=["n", "c"])
    columns = [("n", "int"), ("c", spark)]
    with pytest.raises(DataError, match=rf'Table t[,:].*{why}.*record is {{"n": 7, "c": ') as no:
        write(where, tmp_path, columns, rows)
    assert re.search("['`]c['`]", str(no.value))
    assert run(where, "SELECT * FROM t") == []


def test_a_text_that_is_not_utf8_is_refused(where: Where, tmp_path: Path) -> None:
    run(where, "CREATE TABLE t (c text CHARACTER SET utf8mb4)")
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
    with pytest.raises(DataError, match="not UTF-8, which table t does not take"):
        write(where, tmp_path, [("c", "string")], pa.record_batch({"c": broken}))


@pytest.mark.parametrize(
    ("spark", "kind", "why"),
    [
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
        ("decimal(10,3)", "decimal(10,2)", "10 digits, 3 .* room for 10 and 2"),
        ("decimal(10,0)", "decimal(9,0)", "room for 9 and 0"),
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
    where: Where, tmp_path: Path, spark: str, kind: str, why: str
) -> None:
    run(where, f"CREATE TABLE t (n int, c {kind})")
    with pytest.raises(ConfigError, match=f"Column 'c' of the stream .* table t: .*{why}"):
        made(where, tmp_path, [("n", "int"), ("c", spark)])


def test_the_page_lists_the_types() -> None:
    page = (Path(dedup.__file__).parent / "sinks/mysql/README.md").read_text()
    table = page.split("## Types\n\n")[1].split("\n\n")[0]
    rows = {
        spark: re.findall(r"`([^`]+)`", right)
        for left, right in re.findall(r"^\| (`.*?) \| (.*) \|$", table, re.MULTILINE)
        for spark in re.findall(r"`([^`]+)`", left)
    }
    assert rows.pop("decimal(p,s)") == ["decimal"]
    for spark in ("tinyint", "smallint", "int", "bigint"):
        assert rows.pop(spark) == ["decimal"], "a wider one, in words"
        assert _wanted(spark)[0] == spark
    assert rows.keys() == _FITTING.keys() - {"tinyint", "smallint", "int", "bigint"}
    for spark, kinds in rows.items():
        assert [kind for kind in kinds if kind != "utf8mb4"] == _wanted(spark), spark


def test_mysql_ddl_rejects_unsupported_columns_keys_and_servers() -> None:
    schema = T.StructType([T.StructField("m", T.MapType(T.StringType(), T.StringType()))])
    with pytest.raises(ConfigError, match=r"Column 'm' .* does not go into table t: it is map"):
        mysql_ddl(schema, "t", server="mysql")
    small = T.StructType([T.StructField("d", T.DecimalType(38, 31))])
    with pytest.raises(ConfigError, match=r"Column 'd' .* MySQL keeps 30 digits after the point"):
        mysql_ddl(small, "t", server="mysql")
    assert "decimal(38,31)" in mysql_ddl(small, "t", server="mariadb")
    with pytest.raises(ConfigError, match="key='x' is not a column"):
        mysql_ddl(schema, "t", server="mysql", key=["x"])
    with pytest.raises(ConfigError, match="server='oracle' must be one of mysql, mariadb"):
        mysql_ddl(schema, "t", server="oracle")  # type: ignore[arg-type]
