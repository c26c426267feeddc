"""Every Spark type that Arrow functions carry passes unharmed; IDs of every hashable type work."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import record_id
from dedup.errors import ConfigError, cause
from dedup.sinks import WriteAheadSink, custom_sink
from dedup.spark.versions import IS_SPARK_3, numbers, to_arrow
from tests.support.needs import of_spark_4
from tests.support.spark_query import Query, daily, shown

#: Two values per type, SQL; a null comes on top.
VALUES = {
    "bool": ("true", "false"),
    "i8": ("-128Y", "127Y"),
    "i16": ("-32768S", "32767S"),
    "i32": ("-2147483648", "2147483647"),
    "i64": ("-9223372036854775807L - 1", "9223372036854775807L"),
    "f32": ("float('NaN')", "float('-0.0')"),
    "f64": ("double('NaN')", "double('-0.0')"),
    "f64_more": ("double('-Infinity')", "5e-324d"),
    "dec": (f"-{'9' * 38}BD", "12345678901234567890123456789012345678BD"),
    "dec_scale": (
        "cast('0.00000000000000000000000000000000000001' as decimal(38,38))",
        "cast('-0.1' as decimal(38,38))",
    ),
    "dec_small": ("cast(-9.99 as decimal(3,2))", "cast(0 as decimal(3,2))"),
    "text": ("''", "'\\u0000 ü 漢 \\uD83D\\uDE00'"),
    "text_long": ("repeat('long ', 20000)", "' '"),
    "lcase": ("'ABC' collate UTF8_LCASE", "'abc' collate UTF8_LCASE"),
    "bytes": ("X''", "X'00FF80'"),
    "day": ("date'0001-01-01'", "date'9999-12-31'"),
    "ts": ("timestamp'0001-01-01 00:00:00.000001'", "timestamp'9999-12-31 23:59:59.999999'"),
    "ts_old": ("timestamp'1582-10-10 00:00:00'", "timestamp'1969-12-31 23:59:59.999999'"),
    "ntz": ("timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
    "dt": (
        "make_dt_interval(-106751991, 4, 0, 54.775807)",
        "interval '1 02:03:04.000005' day to second",
    ),
    "dt_hours": ("interval '5' hour", "interval '-7' hour"),
    "clock": ("time'00:00:00'", "time'23:59:59.999999'"),
    "doc": ("""parse_json('{"a":[1,2.5,null,{"b":"x"}]}')""", "parse_json('null')"),
    "list": ("array(1, null, 3)", "array()"),
    "lists": ("array(array('a', null), null, array())", "array(array(repeat('b', 3)))"),
    "map": ("map('b', 1.5d, 'a', double('NaN'))", "map()"),
    "maps": ("map(1, map('x', array(1)), 2, null)", "map(3, map())"),
    "struct": (
        "named_struct('a', 1, 'b', named_struct('c', 'x', 'd', timestamp'0001-01-01 00:00:00'))",
        "named_struct('a', null, 'b', named_struct('c', null, 'd', null))",
    ),
    "structs": (
        "array(named_struct('dec', 1.23456789012345678901234567890BD, 'bin', X'01'), null)",
        "array()",
    ),
    "docs": ("array(parse_json('1'), null)", "array(parse_json('[]'))"),
    "deep": (
        "map('k', array(named_struct('m', map(date'2024-01-01', interval 1 second))))",
        "map('k', null)",
    ),
}  # fmt: skip
HAS_TIME = numbers(pyspark.__version__) >= (4, 1)
if not HAS_TIME:
    del VALUES["clock"]
if IS_SPARK_3:
    for name in ("lcase", "doc", "docs"):
        del VALUES[name]


@pytest.fixture
def typed(spark: SparkSession) -> DataFrame:
    """Three rows: the first values, the second ones, nulls."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    for use in ("Read", "Write"):  # the default of Spark 4
        spark.conf.set(f"spark.sql.parquet.datetimeRebaseModeIn{use}", "CORRECTED")
    rows = [", ".join(f"{value[n]} AS {name}" for name, value in VALUES.items()) for n in range(2)]
    rows.append(", ".join(f"null AS {name}" for name in VALUES))
    return spark.sql(
        " UNION ALL ".join(f"SELECT {n} AS id, {row}" for n, row in enumerate(rows))
    ).coalesce(1)


def kept_unharmed(before: DataFrame, after: DataFrame) -> None:
    assert after.schema == before.schema
    assert shown(after) == shown(before)


def test_every_type_passes_a_batch_unchanged(typed: DataFrame) -> None:
    twice = typed.unionAll(typed)
    kept_unharmed(typed, twice.transform(daily("id")))


def test_every_type_passes_a_stream_unchanged(
    spark: SparkSession, typed: DataFrame, tmp_path: Path
) -> None:
    """The second micro-batch holds the rows of the first again, and new ones."""
    query = Query(spark, tmp_path, {"horizon": "1 day"}, schema=typed.schema)
    more = typed.withColumn("id", F.col("id") + 10)
    query.add_frame(typed).add_frame(typed.unionAll(more))
    run = query.run(shown)
    assert query.result().schema == query.source().schema
    assert [len(rows) for rows in run.rows.values()] == [3, 3]
    assert sorted(run.all_rows()) == shown(typed.unionAll(more))
    assert [m.duplicate for m in run.metrics] == [0, 3]


class Kept(WriteAheadSink):
    """Keeps the rows of all micro-batches."""

    def __init__(self) -> None:
        self.rows: list[pa.RecordBatch] = []

    def send(self, rows: pa.RecordBatch, keys: Sequence[str], versions: Sequence[int]) -> None:
        self.rows.append(rows)


def into(kept: Kept, rows: DataFrame, folder: Path) -> None:
    checkpoint = str(folder / "checkpoint")
    writer = rows.writeStream.foreachBatch(custom_sink(kept, checkpoint=checkpoint))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination(120)


def test_every_type_that_spark_can_pass_reaches_a_custom_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1").write_text("one row")
    values = [f"{value[0]} AS {name}" for name, value in VALUES.items()]
    source = spark.readStream.text(str(tmp_path / "in"))
    kept = Kept()
    into(kept, source.selectExpr(*values), tmp_path)
    [found] = kept.rows
    assert (found.num_rows, found.schema.names) == (1, list(VALUES))
    assert all(column.null_count == 0 for column in found.columns)
    months = source.selectExpr("interval '1-2' year to month AS m")
    with pytest.raises(StreamingQueryException) as stopped:
        into(kept, months, tmp_path / "other")
    assert isinstance(error := cause(stopped.value), ConfigError)
    assert "Column 'm' is interval year to month, which Spark cannot pass" in str(error)
    assert len(kept.rows) == 1
    assert not list((tmp_path / "other").rglob("*dedup-sinks*"))


def test_large_arrow_types_pass_unchanged(spark: SparkSession, typed: DataFrame) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    twice = typed.unionAll(typed)
    kept_unharmed(typed, twice.transform(daily(["text", "bytes", "id"])))


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kolkata"])
def test_times_pass_unchanged_in_another_session_time_zone(
    spark: SparkSession, typed: DataFrame, zone: str
) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    columns = ["id", "unix_micros(ts)", "cast(ntz AS string)", "unix_micros(ts_old)"]
    after = typed.unionAll(typed).transform(daily(["id", "ts", "ntz"]))
    found, wanted = (frame.selectExpr(*columns).collect() for frame in (after, typed))
    assert sorted(map(str, found)) == sorted(map(str, wanted))


@pytest.mark.slow
def test_a_stream_may_have_2000_columns(spark: SparkSession, tmp_path: Path) -> None:
    wide = spark.range(4).select("id", *(F.lit(n).alias(f"c{n}") for n in range(2000)))
    query = Query(spark, tmp_path, {"horizon": "1 day"}, schema=wide.schema)
    query.add_frame(wide).add_frame(wide.withColumn("c1999", F.lit(7)))
    run = query.run()
    assert [len(rows) for rows in run.rows.values()] == [4, 0]
    expected = {"id": 0, **{f"c{n}": n for n in range(2000)}}
    assert sorted(run.rows[0], key=lambda row: row["id"])[0] == expected


def test_awkward_column_names_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    names = ["user.id", "a b", 'qu"ote', "back`tick", "ünï", "verdict?", "1", "__x"]
    frame = spark.createDataFrame([(n % 3, *range(len(names) - 1)) for n in range(9)]).toDF(*names)
    for given in ("user.id", "`user.id`", F.col("`user.id`")):
        kept = frame.transform(daily(given, order_by=["a b", "back`tick"], verdict="v."))
        assert kept.columns == [*names, "v."]
        kept = frame.transform(daily(given))
        assert kept.columns == names
        assert sorted(tuple(row) for row in kept.collect()) == [
            (n, *range(len(names) - 1)) for n in range(3)
        ]
    query = Query(spark, tmp_path, {"horizon": "1 day"}, id="user.id", schema=frame.schema)
    run = query.add_frame(frame).run()
    assert sorted(row["user.id"] for row in run.all_rows()) == [0, 1, 2]


@pytest.mark.slow
def test_an_id_expression_may_quote_names_or_use_a_dotted_capital_i(spark: SparkSession) -> None:
    """SQL often quotes plain names. Python, unlike Spark, lower-cases İ to two characters."""
    frame = spark.createDataFrame([("A", 1), ("a", 1), ("B", 2)], ["İşlem", "order_id"])
    for given, count in (
        (F.expr("`order_id` + 1"), 2), (F.expr("lower(`İşlem`)"), 2), (F.lower("İşlem"), 2),
        (record_id.from_columns(F.expr("`order_id` + 1")), 2),
        (record_id.from_columns("İşlem", "order_id"), 3),
    ):  # fmt: skip
        assert frame.transform(daily(given)).count() == count, given
    with pytest.raises(ConfigError, match="reads no column"):
        frame.transform(daily(F.expr("1 + 1")))


@pytest.mark.slow
def test_fields_of_structs_and_expressions_can_be_the_id(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(("A", 1),), (("a", 1),), (("A", 2),)], "e struct<name:string,n:int>"
    )
    for given, count in (
        ("e.name", 2), ("e.n", 2), (["e.name", "e.n"], 3), (F.lower("e.name"), 1),
        ([F.lower("e.name"), "e.n"], 2), (F.col("e").getField("n") % 1, 1),
    ):  # fmt: skip
        assert frame.transform(daily(given)).count() == count, given
        assert frame.transform(daily(given)).columns == ["e"]


def test_names_that_differ_only_in_case_follow_the_setting_of_spark(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    frame = spark.createDataFrame([(1, 1), (1, 2), (2, 2)], ["id", "ID"])
    assert frame.transform(daily("id")).count() == 2
    assert frame.transform(daily(["ID", "id"])).count() == 3
    with pytest.raises(ConfigError, match=r"id='Id': there is no such column\. Did you mean"):
        frame.transform(daily("Id"))
    spark.conf.set("spark.sql.caseSensitive", "false")
    with pytest.raises(AnalysisException, match="Reference `id` is ambiguous"):
        frame.transform(daily("id"))


# --- IDs

UUID_A, UUID_B = "6f1c1f2e-0000-7000-8000-00000000000a", "6f1c1f2e-0000-7000-8000-00000000000b"

#: SQL values per ID type, all different.
IDS = {
    "string": ["''", "'a'", "'A'", "'a '", "'\\u0000'", "'ü'", f"'{UUID_A}'", f"'{UUID_B}'"],
    "char(3)": ["cast('a' as char(3))", "cast('ab' as char(3))"],
    "binary": ["X''", "X'00'", "X'0000'", "X'FF'"],
    "boolean": ["true", "false"],
    "tinyint": ["0Y", "-1Y", "127Y"],
    "smallint": ["0S", "-1S", "255S"],
    "int": ["0", "-1", "65536", "2147483647"],
    "bigint": ["0L", "-1L", "4294967296L", "9223372036854775807L"],
    "decimal": ["0BD", "-1BD", f"{'9' * 38}BD", "18446744073709551616BD"],
    "date": ["date'0001-01-01'", "date'1970-01-01'", "date'9999-12-31'"],
    "timestamp": ["timestamp'1970-01-01 00:00:00'", "timestamp'1970-01-01 00:00:00.000001'",
                  "timestamp'0001-01-01 00:00:00'"],
    "timestamp_ntz": ["timestamp_ntz'1970-01-01 00:00:00'", "timestamp_ntz'9999-12-31 00:00:00'"],
    "interval": ["interval 0 second", "interval 1 day", "interval -1 day"],
    "time": ["time'00:00:00'", "time'00:00:00.000001'", "time'23:59:59'"],
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in IDS if HAS_TIME or kind != "time"])
def test_each_id_of_every_hashable_type_passes_once(spark: SparkSession, kind: str) -> None:
    """Each value comes three times. Every null passes."""
    values = ", ".join(f"({value})" for value in IDS[kind] * 3)
    frame = spark.sql(f"SELECT id FROM VALUES {values}, (null), (null), (null) AS t(id)")
    kept = frame.repartition(2).transform(daily("id"))
    told = [repr(row["id"]) for row in to_arrow(kept).to_pylist()]
    assert told.count("None") == 3
    assert sorted(told) == sorted(
        [repr(row["id"]) for row in to_arrow(frame.distinct()).to_pylist()] + ["None"] * 2
    )
    assert len(set(told)) == len(IDS[kind]) + 1


def test_composite_ids_with_nulls_stay_different(spark: SparkSession) -> None:
    """A null component is a value. An ID is null only if all components are null."""
    ids: list[Any] = [
        ("a", "bc", 1), ("ab", "c", 1), ("abc", "", 1), ("", "abc", 1), ("abc", None, 1),
        (None, "abc", 1), ("", None, None), (None, "", None), (None, None, 1), (None, None, 0),
        ("a", "bc", None), ("a", None, None),
        # These two run together if lengths are left out: the middle is what parts two columns.
        ("x\x01\x00\x00\x00\x00\x00y", "z", 0), ("x", "y\x01\x00\x00\x00\x00\x00z", 0),
    ]  # fmt: skip
    frame = spark.createDataFrame([*ids * 2, (None,) * 3, (None,) * 3], "a string, b string, c int")
    kept = frame.transform(daily(["a", "b", "c"], verdict="v"))
    told = [(*row[:3], row.v) for row in kept.collect()]
    assert sorted(told, key=repr) == sorted(
        [(*i, v) for i in ids for v in ("unique", "duplicate")]
        + [(None, None, None, "null_id")] * 2,
        key=repr,
    )


def test_composite_ids_are_deduplicated_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    schema = "a string, b decimal(20,2), c binary"
    rows: list[Any] = [("x", Decimal("1.00"), b"1"), ("x", None, b"1"), (None, None, None)]
    query = Query(spark, tmp_path, {"horizon": "1 day"}, id=["a", "b", "c"], schema=schema)
    frame = spark.createDataFrame(rows, schema)
    query.add_frame(frame)
    query.add_frame(frame.unionAll(spark.createDataFrame([("x", Decimal("1.00"), None)], schema)))
    run = query.run()
    assert [len(batch) for batch in run.rows.values()] == [3, 2]
    assert [m.null_id for m in run.metrics] == [1, 1]


def test_uuids_and_texts_that_look_like_them_stay_different(spark: SparkSession) -> None:
    """UUID text is kept in 16 bytes, but is the same ID as its text."""
    raw = uuid.UUID(UUID_A).bytes
    sixteen = "\x01" + "z" * 16
    texts = [UUID_A, UUID_A.upper(), UUID_A.replace("-", ""), "{" + UUID_A + "}", "z" * 16, sixteen]
    frame = spark.createDataFrame([(t,) for t in texts * 2], "id string")
    assert sorted(r.id for r in frame.transform(daily("id")).collect()) == (sorted(texts))
    # One tag byte distinguishes the two even if their 16 bytes are equal.
    ascii_uuid = str(uuid.UUID(bytes=b"zzzzzzzzzzzzzzzz"))
    both = spark.createDataFrame([("z" * 16,), (ascii_uuid,), ("\x01" + "z" * 16,)], "id string")
    assert both.transform(daily("id")).count() == 3
    binary = spark.createDataFrame([(raw,), (b"\x01" + raw,), (raw,)], "id binary")
    assert binary.transform(daily("id")).count() == 2


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("1.5d", "ID column 'id' is double: NaN and -0.0 have several byte forms; cast it to"),
        ("cast(1 as float)", "ID column 'id' is float: NaN and -0.0"),
        ("array(1)", "ID column 'id' is array<int>: it is nested; name its fields instead"),
        ("map(1, 2)", "ID column 'id' is map<int,int>: it is nested"),
        ("struct(1 AS a)", "ID column 'id' is struct<a:int>: it is nested"),
        of_spark_4(
            "parse_json('1')", "ID column 'id' is variant: the type has no byte identity; cast it"
        ),
        of_spark_4(
            "'x' collate UTF8_LCASE", "ID column 'id' has collation UTF8_LCASE, in which different"
        ),
        of_spark_4("'x' collate UNICODE_CI", "has collation UNICODE_CI"),
    ],
)
def test_ids_without_byte_identity_are_refused(spark: SparkSession, sql: str, message: str) -> None:
    frame = spark.sql(f"SELECT {sql} AS id, 1 AS x")
    with pytest.raises(ConfigError) as caught:
        frame.transform(daily(["x", "id"]))
    assert str(caught.value).startswith(message) or message in str(caught.value)
    with pytest.raises(ConfigError, match="ID column"):
        frame.transform(daily(F.col("id")))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        of_spark_4("make_interval(1, 2) AS c", "Column 'c' is interval, .* cast it"),
        ("interval 1 year AS c", "Column 'c' is interval year, .* cast it"),
        ("array(struct(interval 1 month AS m)) AS c", "Column 'c' is array<struct<m:interval mon"),
        ("map('k', interval '1-2' year to month) AS c", "'c' is map<string,interval year to"),
        ("null AS c", "Column 'c' is void, .* cast it"),
        ("struct(1 AS a, null AS b) AS c", "Column 'c' is struct<a:int,b:void>"),
    ],
)
def test_columns_that_spark_cannot_carry_are_refused_by_name(
    spark: SparkSession, sql: str, message: str
) -> None:
    frame = spark.sql(f"SELECT 1 AS id, {sql}")
    with pytest.raises(ConfigError, match=message):
        frame.transform(daily("id"))


@pytest.mark.slow
def test_the_advice_of_a_refusal_works(spark: SparkSession) -> None:
    frame = spark.sql(
        """SELECT a collate UTF8_LCASE AS a, 1.5d AS b, struct(1 AS x, '2' AS y) AS c
           FROM VALUES ('ID'), ('id') AS t(a)"""
    )
    bytes_of_a = F.col("a").cast("string")
    for given, count in (
        (bytes_of_a, 2), (F.lower(bytes_of_a), 1), (F.col("b").cast("string"), 1),
        (F.col("b").cast("decimal(5,2)"), 1), (["c.x", "c.y"], 1), (F.to_json("c"), 1),
    ):  # fmt: skip
        assert frame.transform(daily(given)).count() == count
    odd = spark.sql("SELECT 1 AS id, make_interval(1, 2) AS i, interval 1 year AS y, null AS n")
    cast = odd.select("id", *(F.col(c).cast("string") for c in ("i", "y", "n")))
    assert cast.transform(daily("id")).count() == 1


def test_spark_cannot_carry_the_types_that_we_refuse(spark: SparkSession) -> None:
    """Each refusal has a reason: the day Spark carries a type, this fails.

    Before 4.2 it carries fields of one name. They are refused there too, so that an upgrade of
    Spark stops no query.
    """
    twice = ["named_struct('a', 1, 'a', 2)"] if pyspark.__version__ > "4.2" else []
    odd = [] if IS_SPARK_3 else ["make_interval(1, 2)"]  # which 3.5 does not even describe
    for sql in ("interval 1 year", *odd, *twice):
        frame = spark.sql(f"SELECT {sql} AS c")
        with pytest.raises(Exception, match=r"(?i)not.implemented|duplicate"):
            frame.mapInArrow(lambda batches: batches, frame.schema).collect()
