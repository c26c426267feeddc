"""The package's pages as tests read them: snippets that run, and tables of examples to try."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import dedup

PACKAGE = Path(dedup.__file__).parent
#: What the snippets of a page on a sink begin with: six orders, one of them twice.
ORDERS = """
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
#: What they end with, once each query has taken all orders.
TO_THE_END = """
for each in spark.streams.active:
    each.processAllAvailable()
    each.stop()
"""
_KEPT = re.compile("`([^`]+)` → `([^`]*)`")
_ONE = re.compile("`([^`]+)`")


def snippets(page: str) -> list[str]:
    """Return the Python of a page of the package."""
    return re.findall(r"```python\n(.*?)```", (PACKAGE / page).read_text(), re.DOTALL)


def releases() -> list[tuple[str, str]]:
    """Return version and commit of each release in CHANGELOG.md, the newest first."""
    text = (PACKAGE / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.findall(r"^## ([\d.]+) \(\d{4}-[^#]*", text, re.MULTILINE)
    commits = re.findall(
        r"^## [\d.]+ \(\d{4}-[^#]*?\bcommit ([0-9a-f]{8,40})\b", text, re.MULTILINE
    )
    assert len(entries) == len(commits) > 0, "an entry does not name its commit"
    return list(zip(entries, commits, strict=True))


class Row(NamedTuple):
    """What a column of one type, as DDL, does."""

    kind: str
    #: A text of the input, and the value as Spark casts it to STRING.
    kept: list[tuple[str, str]]
    rejected: list[str]


def table(name: str) -> list[Row]:
    """Return the rows of the table of cli/VALUES.md behind ``<!-- values NAME -->``."""
    text = (
        (PACKAGE / "cli/VALUES.md")
        .read_text(encoding="utf-8")
        .partition(f"<!-- values {name} -->\n")[2]
    )
    lines = text.partition("\n\n")[0].splitlines()[2:]
    assert lines, name
    rows = []
    for line in lines:
        kind, kept, rejected = line.strip("|").split("|")
        (ddl,) = _ONE.findall(kind)
        rows.append(Row(ddl, _KEPT.findall(kept), _ONE.findall(rejected)))
    return rows
