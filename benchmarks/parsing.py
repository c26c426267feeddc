"""What reading text costs in tasks: CSV and JSON against Spark's readers with the same columns.

python -m benchmarks.parsing
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from benchmarks.cpu import Cpu
from benchmarks.results import finish, median
from dedup.sources.files.bypass import arrow_schema
from dedup.sources.files.csv_input import CsvFormat
from dedup.sources.files.csv_records import CsvForm
from dedup.sources.files.json_input import JsonFormat
from dedup.sources.files.text_input import TextInput
from dedup.sources.files.text_values import Spelling
from dedup.sources.kafka.decoder import FIELDS
from dedup.sources.kafka.values import Json, parser

FIELDS_OF_ORDER = {
    "order_id": T.StringType(), "amount": T.DoubleType(), "items": T.LongType(),
    "paid": T.BooleanType(), "ordered_at": T.TimestampType(), "city": T.StringType(),
}  # fmt: skip
SCHEMA = T.StructType([T.StructField(*each) for each in FIELDS_OF_ORDER.items()])
#: Arrow may not read one record in so many.
ODD = {"plain": 0, "one in 1,000": 1000, "all": 1}
WARM_UP = 2


def lines(rows: int, file_format: str, odd: int) -> Iterator[str]:
    """Made-up orders. Odd ones have a whole number with a point."""
    for n in range(rows):
        items = f"{n * 3}.0" if odd and n % odd == 0 else f"{n * 3}"
        paid = "true" if n % 2 else "false"
        at, city = "2026-01-02T03:04:05.678Z", "Zürich"
        if file_format == "csv":
            yield f"order-{n},{n / 7},{items},{paid},{at},{city}\n"
        else:
            yield (
                f'{{"order_id":"order-{n}","amount":{n / 7},"items":{items},"paid":{paid},'
                f'"ordered_at":"{at}","city":"{city}"}}\n'
            )


def by_tasks(path: Path, text_format: CsvFormat | JsonFormat) -> int:
    """Read a file as a task does, and return the number of its rows."""
    with TextInput(path, text_format) as file:
        return sum(located.good.num_rows for located in file.rows())


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """CPU microseconds a record, each way in turn: of this process, or of Spark's processes."""
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    columns: pa.Schema = arrow_schema(SCHEMA, "UTC")
    csv_format = CsvFormat(columns=columns, form=CsvForm(), spelling=Spelling())
    json_format = JsonFormat(columns=columns, spelling=Spelling())
    tasks: dict[str, Callable[[], int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for file_format in ("csv", "json"):
            for name, odd in ODD.items():
                path = Path(folder, f"{name}.{file_format}".replace(" ", "-").replace(",", ""))
                header = "".join(f"{each}," for each in SCHEMA.names)[:-1] + "\n"
                head = header if file_format == "csv" else ""
                path.write_text(head + "".join(lines(arguments.rows, file_format, odd)))
                wanted: CsvFormat | JsonFormat = csv_format if head else json_format
                tasks[f"{file_format}, odd: {name}"] = lambda p=path, w=wanted: by_tasks(p, w)
        csv, json = f"{folder}/plain.csv", f"{folder}/plain.json"
        records = spark.read.text(json).select(F.col("value").cast("binary")).cache()
        records.count()
        decode = parser(spark, Json(SCHEMA), ())
        assert decode is not None
        ways: dict[str, Callable[[], DataFrame]] = {
            "Spark's CSV reader": lambda: spark.read.schema(SCHEMA).csv(csv, header=True),
            "Spark's JSON reader": lambda: spark.read.schema(SCHEMA).json(json),
            "Kafka's Json": lambda: decode(records).select(FIELDS),
        }
        cpu = Cpu.of(spark)
        spent: dict[str, list[float]] = {way: [] for way in (*tasks, *ways)}
        for _ in range(WARM_UP + arguments.rounds):
            for way, read in tasks.items():
                begun = time.process_time()
                assert read() == arguments.rows
                spent[way].append((time.process_time() - begun) * 1e6 / arguments.rows)
            for way, frame in ways.items():
                cpu.lap()
                frame().write.format("noop").mode("overwrite").save()
                lap = cpu.lap()
                spent[way].append((lap["jvm"] + lap["python"]) * 1000 / arguments.rows)
    return {"rows": arguments.rows, "warm_up": WARM_UP, "cpu_us": spent}


def table(result: dict[str, Any]) -> str:
    """Medians."""
    head = f"{'CPU us a record':24}{'median':>8}"
    middle = {way: median(each[result["warm_up"] :]) for way, each in result["cpu_us"].items()}
    return "\n".join([head, *(f"{way:24}{value:8.2f}" for way, value in middle.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    finish("parsing", run(parser.parse_args()), table)


if __name__ == "__main__":
    main()
