"""The snippets of the sink's page run, as a reader meets them, in one program."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import dedup
from tests.postgres.tables import run
from tests.support.processes import python

PAGE = Path(dedup.__file__).parent / "sinks/postgres/README.md"
_BEFORE = """
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
)
made = spark.range(6).selectExpr(
    "'o' || id AS order_id", "id * 1.5 AS amount", "timestamp'2024-05-01 12:00:00' AS placed_at"
)
made.union(made.where("order_id = 'o3'")).coalesce(1).write.parquet("landing")
schema = spark.read.parquet("landing").schema
orders = spark.readStream.schema(schema).parquet("landing")
"""
_AFTER = """
for each in (query, again, apart):
    each.processAllAvailable()
    each.stop()
"""


@pytest.mark.slow
def test_the_page_runs(dsn: str, tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 3
    columns = "order_id text, amount numeric, placed_at timestamptz"
    for table, more in (
        ("orders_again", ""),
        ("orders_once", ""),
        ("order_copies", ", verdict text"),
        ("late_orders", ", verdict text"),
    ):
        run(dsn, f"CREATE TABLE {table} ({columns}{more})")  # fmt: skip
    # The first example runs at every start of the job.
    again = "query.stop()\n" + snippets[0]
    program = _BEFORE + snippets[0] + again + "".join(snippets[1:]) + _AFTER
    done = python(
        "-c", program.replace("postgresql://localhost/shop", dsn), cwd=tmp_path,
        env={"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [(f"o{n}",) for n in range(6)]
    for table in ("orders", "orders_once"):
        assert run(dsn, f"SELECT order_id FROM {table} ORDER BY 1") == expected
    assert len(run(dsn, "SELECT * FROM orders_again")) == 7
    assert run(dsn, "SELECT order_id FROM order_copies") == [("o3",)]
