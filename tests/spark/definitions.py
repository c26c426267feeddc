"""Expressions as users write them, and how each is written into a birth certificate."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.catalog.definition import Definition
from dedup.spark.columns import Columns

#: A Column and its definition; over a DataFrame of `support.SCHEMA`, in the session zone UTC.
N = ("n", "bigint")
ID = ("id", "string")
TS = ("ts", "timestamp")


def expressions() -> list[tuple[Column, Definition]]:
    """Columns with what is to be kept of them."""

    def of(expression: str, kind: str, *inputs: tuple[str, str], zone: str = "") -> Definition:
        return Definition(expression=expression, kind=kind, inputs=inputs, time_zone=zone)

    return [
        (F.col("id").alias("k"), of("id", "string")),
        (F.col("ID"), of("id", "string")),
        (F.expr(" `Id` as k"), of("id", "string")),
        (F.lower("id").alias("k"), of("lower(id)", "string", ID)),
        (F.col("n").cast("string"), of("cast(n as string)", "string", N)),
        (F.col("id").try_cast("int"), of("try_cast(id as int)", "int", ID)),
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
            of('array_join(transform(split(id, ",", -1), (x0) -> upper(x0)), "")', "string", ID),
        ),
        (F.split("id", ",")[1], of('get(split(id, ",", -1), 1)', "string", ID)),
        # Local time: another zone makes other bytes.
        (F.col("ts").cast("string"), of("cast(ts as string)", "string", TS, zone="UTC")),
        (F.from_unixtime("n", "HH"), of('from_unixtime(n, "HH")', "string", N, zone="UTC")),
        (F.timestamp_millis("n"), of("timestamp_millis(n)", "timestamp", N)),
        (F.coalesce("ts", "ts"), of("coalesce(ts, ts)", "timestamp", TS)),
        # Of SQL only the text is known, and which names may be meant.
        (F.expr("lower(  id)||'n' AS k"), of("sql(lower( id)||'n')", "string", ID, N)),
        (F.expr("date_format(ts, 'H')"), of("sql(date_format(ts, 'H'))", "string", TS, zone="UTC")),
        (F.udf(lambda x: x, "string")("id"), of("python <lambda>(id)", "string", ID)),
    ]  # fmt: skip


def differences(df: DataFrame) -> list[tuple[str, str]]:
    """What is kept and what should be, of each expression for which these differ."""
    found = []
    for given, wanted in expressions():
        kept = Columns(df, case_sensitive=False).resolve(given, "id").definition
        if kept != wanted:
            found.append((str(kept), str(wanted)))
    return found
