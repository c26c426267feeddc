"""The snippets of the sinks' page run, as a reader meets them, in one program."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import dedup
from tests.support.processes import python

PAGE = Path(dedup.__file__).parent / "sinks/lakehouse/README.md"
_BEFORE = """
import os
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
)
os.mkdir("lake")
made = spark.range(6).selectExpr("'o' || id AS order_id", "id * 1.5 AS amount")
made.union(made.where("order_id = 'o3'")).coalesce(1).write.parquet("landing")
schema = spark.read.parquet("landing").schema
orders = spark.readStream.schema(schema).parquet("landing")
"""
_AFTER = """
for each in (query, iceberg_query, apart):
    each.processAllAvailable()
    each.stop()
"""
_LOOK = """
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
found = {}
for name in ("orders", "orders_once"):
    found[name] = DeltaTable(f"lake/{name}").to_pyarrow_table()
lake = load_catalog(
    "default", type="sql", uri="sqlite:///lake/catalog.db", warehouse="lake/warehouse"
)
for name in ("orders", "copies"):
    found[f"shop.{name}"] = lake.load_table(f"shop.{name}").scan().to_arrow()
print({name: sorted(rows["order_id"].to_pylist()) for name, rows in found.items()})
"""


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 3
    program = _BEFORE + "".join(snippets) + _AFTER + _LOOK
    done = python("-c", program, cwd=tmp_path, env={"PYSPARK_PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr[-3000:]
    once = [f"o{n}" for n in range(6)]
    everything = sorted([*once, "o3"])
    assert done.stdout.splitlines()[-1] == str({
        "orders": everything, "orders_once": once, "shop.orders": everything, "shop.copies": ["o3"]
    })  # fmt: skip
