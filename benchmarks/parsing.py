"""What strict reading costs: JSON against `from_json`, CSV against Spark's reader.

python -m benchmarks.parsing
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from benchmarks.cpu import Cpu
from benchmarks.results import finish, median
from dedup.cli.run.input.csv_records import CsvRecords
from dedup.cli.run.input.csv_values import as_text, with_types
from dedup.sources.strict_json import CAUSE, FIELDS, with_fields, with_tagged

FIELDS_OF_ORDER = {
    "order_id": T.StringType(), "amount": T.DoubleType(), "items": T.LongType(),
    "paid": T.BooleanType(), "ordered_at": T.TimestampType(), "city": T.StringType(),
}  # fmt: skip
SCHEMA = T.StructType([T.StructField(*each) for each in FIELDS_OF_ORDER.items()])
WARM_UP = 3


def values() -> list[Column]:
    """Six fields of a made-up order."""
    number = F.col("id")
    return [
        F.concat(F.lit("order-"), number).alias("order_id"),
        (number / 7).alias("amount"),
        (number * 3).alias("items"),
        (number % 2 == 0).alias("paid"),
        F.lit("2026-01-02T03:04:05.678Z").alias("ordered_at"),
        F.lit("Zürich").alias("city"),
    ]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """CPU microseconds of the JVM a record, each way in turn; and the count of CSV's records."""
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    rows = spark.range(arguments.rows).select(*values())
    with tempfile.TemporaryDirectory() as folder:
        rows.coalesce(1).write.csv(f"{folder}/csv", header=True)
        texts = rows.select(F.to_json(F.struct("*")).alias("text")).cache()
        texts.count()
        csv = spark.read.option("header", True)

        def strict_csv() -> DataFrame:
            read = csv.schema(as_text(SCHEMA, ()).add("__dedup_corrupt", T.StringType()))
            read = read.option("columnNameOfCorruptRecord", "__dedup_corrupt")
            rows = with_types(read.csv(f"{folder}/csv"), SCHEMA, {"header": "true"})
            return rows.select(*SCHEMA.names, CAUSE)

        ways: dict[str, Callable[[], DataFrame]] = {
            "from_json": lambda: texts.select(F.from_json("text", SCHEMA)),
            "strict JSON": lambda: with_fields(
                with_tagged(texts, F.col("text")), SCHEMA, {}
            ).select(FIELDS, CAUSE),
            "Spark's CSV reader": lambda: csv.schema(SCHEMA).csv(f"{folder}/csv"),
            "strict CSV": strict_csv,
        }
        cpu = Cpu.of(spark)
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(WARM_UP + arguments.rounds):
            for way, records in ways.items():
                cpu.lap()
                records().write.format("noop").mode("overwrite").save()
                spent[way].append(cpu.lap()["jvm"] * 1000 / arguments.rows)
        [file] = Path(f"{folder}/csv").glob("*.csv")
        counting = []
        for _ in range(arguments.rounds):
            begun = time.process_time()
            assert CsvRecords({"header": "true"}).count(file).rows == arguments.rows
            counting.append((time.process_time() - begun) * 1e6 / arguments.rows)
    return {"rows": arguments.rows, "warm_up": WARM_UP, "jvm_us": spent, "count_us": counting}


def table(result: dict[str, Any]) -> str:
    """Medians, and strict against lenient reading."""
    middle = {way: median(each[WARM_UP:]) for way, each in result["jvm_us"].items()}
    lines = [f"{'CPU us a record':20}{'median':>8}"]
    lines += [f"{way:20}{value:8.1f}" for way, value in middle.items()]
    lines.append(f"{'count of CSV':20}{median(result['count_us']):8.1f}  (driver)")
    lines.append(f"JSON {middle['strict JSON'] / middle['from_json']:.1f}x")
    csv = (middle["strict CSV"] + median(result["count_us"])) / middle["Spark's CSV reader"]
    lines.append(f"CSV {csv:.1f}x, with the count")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=7)
    finish("parsing", run(parser.parse_args()), table)


if __name__ == "__main__":
    main()
