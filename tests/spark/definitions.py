"""Expressions as users write them, and how each is written into a birth certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.catalog.definition import Definition
from dedup.spark.driver.columns import Columns
from dedup.spark.job_tag import is_connect
from dedup.spark.versions import IS_SPARK_3

#: A Column and its definition; over a DataFrame of `support.SCHEMA`, in the session zone UTC.
N = ("n", "bigint")
ID = ("id", "string")
TS = ("ts", "timestamp")


def of(expression: str, kind: str, *inputs: tuple[str, str], zone: str = "") -> Definition:
    return Definition(expression=expression, kind=kind, inputs=inputs, time_zone=zone)


def expressions() -> list[tuple[Column, Definition]]:
    """Columns with what is to be kept of them."""
    return [
        (F.col("id").alias("k"), of("id", "string")),
        (F.col("ID"), of("id", "string")),
        (F.expr(" `Id` as k"), of("id", "string")),
        (F.lower("id").alias("k"), of("lower(id)", "string", ID)),
        (F.col("n").cast("string"), of("cast(n as string)", "string", N)),
        (
            F.concat("id", F.lit(':"'), F.col("n"), F.lit(None), F.lit(b"\x01")),
            of('concat(id, ":\\"", n, null, 0x01)', "string", ID, N),
        ),
        (
            F.when(F.col("n") > 1, "a").otherwise(F.col("id")),
            of('when(>(n, 1), "a", id)', "string", ID, N),
        ),
        (
            F.array_join(F.transform(F.split("id", ","), lambda x: F.upper(x)), ""),
            of('array_join(transform(split(id, ",", -1), ($0) -> upper($0)), "")', "string", ID),
        ),
        (F.split("id", ",")[1], of('get(split(id, ",", -1), 1)', "string", ID)),
        # Local time: another zone makes other bytes.
        (F.col("ts").cast("string"), of("cast(ts as string)", "string", TS, zone="UTC")),
        (F.from_unixtime("n", "HH"), of('from_unixtime(n, "HH")', "string", N, zone="UTC")),
        (F.timestamp_millis("n"), of("timestamp_millis(n)", "timestamp", N)),
        (F.coalesce("ts", "ts"), of("coalesce(ts, ts)", "timestamp", TS)),
        (F.udf(lambda x: x, "string")("id"), of("python <lambda>(id)", "string", ID, zone="UTC")),
        *(of_spark_3() if IS_SPARK_3 else of_spark_4()),
    ]  # fmt: skip


def of_spark_3() -> list[tuple[Column, Definition]]:
    """SQL, of which Spark 3.5 keeps what it has parsed."""
    return [
        (F.expr("lower(  id)||'n' AS k"), of('concat(lower(id), "n")', "string", ID)),
        (F.expr("date_format(ts, 'H')"), of('date_format(ts, "H")', "string", TS, zone="UTC")),
    ]


def of_spark_4() -> list[tuple[Column, Definition]]:
    """SQL, of which only the text is known, and which names may be meant."""
    return [
        (F.col("id").try_cast("int"), of("try_cast(id as int)", "int", ID)),
        (F.expr("lower(  id)||'n' AS k"), of("sql(lower(  id)||'n')", "string", ID, N, zone="UTC")),
        (F.expr("date_format(ts, 'H')"), of("sql(date_format(ts, 'H'))", "string", TS, zone="UTC")),
    ]


def differences(df: DataFrame) -> list[tuple[str, str]]:
    """What is kept and what should be, of each expression for which these differ."""
    found = []
    for given, wanted in expressions():
        kept = Columns(df, case_sensitive=False).resolve(given, "id").definition
        if replace(kept, ansi="") != wanted:
            found.append((str(kept), str(wanted)))
    return found


#: For pairs of expressions that look alike.
NESTED = (
    "id string, s string, n bigint, iso string, x0 string, arr array<string>, "
    "p struct<a: string, b: string, ts: timestamp>, ps array<struct<a: string, b: string>>"
)


#: Fragments of SQL, which Spark 3.5 has parsed.
SQL_LOOK_ALIKES = [
    ("transform(arr, x -> concat(x, id))", "transform(arr, x -> concat(x, s))"),
    ("transform(ps, x -> x.a)", "transform(ps, x -> x.b)"),
    ("concat(id, (select max(1)))", "concat(id, (select min(1)))"),
    ("id like any ('A%', 'b%')", "id like any ('A%, b%')"),
    ("hash(n, 1)", "hash(n, 1L)"),
    ("hash(n, 0.1F)", "hash(n, 0.1D)"),
    ("to_json(struct(id as x))", "to_json(struct(id as y))"),
]
#: So many that Scala keeps them in another kind of map.
PATTERNS = {
    "dateFormat": "d", "timestampFormat": "y", "mode": "PERMISSIVE", "allowComments": "true",
    "locale": "en-US",
}  # fmt: skip


def look_alikes(df: DataFrame) -> list[tuple[Column, Column]]:
    """Pairs over a DataFrame of `NESTED` that make different bytes."""

    def joined(inner: Callable[[Column], Column]) -> Column:
        return F.concat("x0", F.array_join(F.transform("arr", inner), ""))

    either: Any = F.udf(lambda x, y: x or y, "string")

    def by_name() -> tuple[Column, Column]:
        return either(x=F.col("id"), y=F.col("s")), either(y=F.col("id"), x=F.col("s"))

    return [
        (df["p.a"], df["p.b"]),
        (F.lower(df["p.a"]), F.lower(df["p.b"])),
        (F.to_json(df["ps.a"]), F.to_json(df["ps.b"])),
        (F.col("p")["a"], F.col("p")["b"]),
        (F.expr("concat(id, ' ', s)"), F.expr("concat(id, '  ', s)")),
        (
            (F.col("n") * F.lit(Decimal("1.0"))).cast("string"),
            (F.col("n") * F.lit(1.0)).cast("string"),
        ),
        (F.lit(date(2024, 1, 1)).cast("string"), F.lit(19723).cast("string")),
        (joined(lambda x: x), joined(lambda x: F.col("x0"))),
        *([] if IS_SPARK_3 else [by_name()]),  # where a Python function takes no names
        (
            F.to_json(F.col("p").withField("a", F.col("id"))),
            F.to_json(F.col("p").withField("b", F.col("id"))),
        ),
        (F.to_json(F.col("p").dropFields("a")), F.to_json(F.col("p").dropFields("b"))),
        *(
            (F.expr(one), F.expr(other))
            for one, other in SQL_LOOK_ALIKES
            if "(select" not in one or not is_connect(df)  # where subqueries are rejected
        ),
        (F.from_json("s", "map<string,int>"), F.from_json("s", "map<string,string>")),
        (
            F.from_json("s", "a date", PATTERNS),
            F.from_json("s", "a date", {**PATTERNS, "dateFormat": "y"}),
        ),
    ]


def zoned() -> list[Column]:
    """Expressions over `NESTED` whose result another session zone changes."""
    moment = F.timestamp_seconds("n")
    return [
        F.to_date(moment),
        F.date_format(moment, "HH"),
        F.date_format("iso", "HH"),
        F.unix_millis(F.to_timestamp("iso")),
        F.to_json("p"),
        F.col("p")["ts"].cast("string"),
        F.to_json(F.col("p").dropFields("a")),
        F.expr("date_format(cast(iso as timestamp), 'HH')"),
    ]


def coerced() -> list[tuple[Column, bool]]:
    """Expressions over `NESTED`, and whether ``spark.sql.ansi.enabled`` may change their result."""
    return [
        ((F.col("n") + F.col("s")).cast("string"), True),
        (F.concat("id", F.col("n").cast("string")), True),
        (F.expr("n + s"), True),
        (F.col("id"), False),
        (F.lower(F.concat("id", "s")), False),
    ]


def in_a_lambda() -> Column:
    """An expression whose variables Spark numbers on from call to call."""
    return F.to_json(F.transform("ps", lambda x: x.withField("a", F.upper(x["b"]))))


def mistaken(df: DataFrame) -> list[str]:
    """What is said of these expressions that is not so."""

    def kept(given: Column) -> Definition:
        return Columns(df, case_sensitive=False).resolve(given, "id").definition

    alike = [
        str(kept(one))
        for one, other in look_alikes(df)
        if kept(one).identity == kept(other).identity
    ]
    zoneless = [str(kept(one)) for one in zoned() if kept(one).time_zone != "UTC"]
    same = [(in_a_lambda(), in_a_lambda()), (df["p.a"], F.col("p.a")), (df["ps.a"], F.col("ps.a"))]
    unlike = [str(kept(one)) for one, other in same if kept(one) != kept(other)]
    unlike += [str(kept(one)) for one, may in coerced() if bool(kept(one).ansi) is not may]
    return alike + zoneless + unlike
