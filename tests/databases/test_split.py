"""Verdicts go to a table each, within one micro-batch, each row once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import dedup_by_id, split
from dedup.errors import ConfigError
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.kit.slots import forget_slots
from tests.databases.database import Database
from tests.databases.postgres import Postgres
from tests.support.file_query import FileQuery
from tests.support.needs import long

#: Its first hours are before the late watermark once the last one has come.
HOUR_S = 3600


class SplitQuery(FileQuery):
    """Numbers with times to tables of their verdicts, and a note of each task that read a file."""

    def __init__(self, spark: SparkSession, db: Database, **options: Any) -> None:
        super().__init__(spark, "none", db.folder)
        self.db, self.notes = db, db.folder / "notes"
        self.notes.mkdir()
        time = db.own(postgres="timestamp", mysql="datetime(6)")
        db.run(f"CREATE TABLE uniques (n bigint, at {time})",
            f"CREATE TABLE others (n bigint, at {time}, verdict text)")  # fmt: skip
        operator = dedup_by_id(
            "n", horizon="1 day", timestamp="at", lateness="1 hour", verdict="verdict",
            catalog=str(db.folder / "catalog"), shards=2, **options,
        )  # fmt: skip
        notes = str(self.notes)

        def noted(batches: Any) -> Any:
            from uuid import uuid4

            Path(notes, uuid4().hex).touch()
            yield from batches

        self.change = lambda rows: rows.mapInArrow(noted, rows.schema).transform(operator)

    def into(self, table: str, **options: str) -> SinkFunction:
        """Return the function that writes to a table."""
        return self.db.function(table, options={"name": table} | options)

    def hours(self, **hours: float | None) -> None:
        """Add a file of rows: ``n7=3`` is number 7, three hours after the beginning."""
        at = [None if h is None else int(h * HOUR_S) for h in hours.values()]
        numbers = [None if name.startswith("none") else int(name[1:]) for name in hours]
        self.add(pa.table({
            "n": pa.array(numbers, pa.int64()),
            "at": pa.array(at, pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp("us")),
        }))  # fmt: skip

    def go(self, **sinks: Any) -> None:
        """Run the query to its end."""
        writer = split(self.rows(), **sinks).trigger(availableNow=True)
        if not isinstance(sinks["unique"], SinkFunction):
            writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer.start().awaitTermination(120)

    def uniques(self) -> Counter[int | None]:
        return Counter(row[0] for row in self.db.run("SELECT n FROM uniques"))

    def others(self) -> Counter[tuple[int | None, str]]:
        return Counter(self.db.run("SELECT n, verdict FROM others"))


def fill(query: SplitQuery) -> None:
    """Uniques 1 to 4, number 1 again, then 5 that is late, and a row without an ID."""
    query.hours(n1=0, n2=0)
    query.hours(n3=10, n4=10)
    query.hours(n1=10, n5=1, none=10)


ONCE = Counter({1: 1, 2: 1, 3: 1, 4: 1})
BOTH = pytest.mark.parametrize("server", ["postgres", long("mysql")], indirect=True)


@BOTH
@pytest.mark.parametrize(
    "fails", [*map(long, ["nowhere", "before the first", "between them"]), "at the end"]
)
def test_each_verdict_goes_to_its_table_once(spark: SparkSession, db: Database, fails: str) -> None:
    query = SplitQuery(spark, db)
    fill(query)

    def sinks(fails: str = "") -> dict[str, Any]:
        """New ones, as a new start has them."""
        forget_slots()
        unique, aside = query.into("uniques"), query.into("others")

        def one(rows: DataFrame, batch_id: int) -> None:
            if batch_id == 1 and fails == "between them":
                raise RuntimeError("made to fail")
            unique(rows, batch_id)
            if batch_id == 1 and fails == "at the end":
                raise RuntimeError("made to fail")

        def other(rows: DataFrame, batch_id: int) -> None:
            if batch_id == 1 and fails == "before the first":
                raise RuntimeError("made to fail")
            aside(rows, batch_id)

        if not fails:
            return {"unique": unique, "duplicate": aside, "late": aside}
        return {"unique": one, "duplicate": other, "late": other}

    if fails != "nowhere":
        with pytest.raises(StreamingQueryException, match="made to fail"):
            query.go(**sinks(fails))
        assert query.uniques() == Counter({1: 1, 2: 1} | ({3: 1, 4: 1} if "end" in fails else {}))
    query.go(**sinks())
    tasks = len(list(query.notes.iterdir()))
    assert tasks == (3 if fails == "nowhere" else 4), "the operator ran once for a micro-batch"
    for _ in range(2):
        assert query.uniques() == ONCE + Counter({None: 1})
        assert query.others() == Counter({(1, "duplicate"): 1, (5, "late"): 1})
        query.forget_commit()
        query.go(**sinks())


@BOTH
def test_verdicts_without_a_sink_follow_the_options_of_the_operator(
    spark: SparkSession, db: Database
) -> None:
    query = SplitQuery(spark, db, late="drop", null_ids="drop")
    fill(query)
    query.hours(n6=11, n7=0)
    query.go(unique=query.into("uniques"), null_id=query.into("others"))
    assert query.uniques() == ONCE + Counter([6])
    assert query.others() == Counter({(None, "null_id"): 1})


def test_split_works_with_functions_that_read_nothing_and_changed_columns(
    spark: SparkSession, postgres: Postgres
) -> None:
    query = SplitQuery(spark, postgres)
    read = query.change
    query.change = lambda rows: (
        read(rows)
        .withColumnRenamed("verdict", "why.`not")
        .withColumn("m", F.col("n") + 1)
        .drop("at")
    )
    seen: list[tuple[int, list[str]]] = []

    def look(rows: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, rows.columns))

    fill(query)
    query.go(unique=look, duplicate=look)
    assert seen == [(n, ["n", "m"]) for n in range(3)]


def test_sinks_and_streams_that_cannot_be_split_are_rejected(
    spark: SparkSession, postgres: Postgres
) -> None:
    query = SplitQuery(spark, postgres)
    fill(query)
    rows, take = query.rows(), query.into("uniques")
    elsewhere = postgres.function("others", "/elsewhere")
    refused: list[tuple[DataFrame, dict[str, Any], str]] = [
        (rows, {"unique": take, "late": query.into("others", name="uniques")},
         "Two sinks of the query have the name 'uniques'"),
        (rows, {"unique": take, "late": elsewhere},
         "The sinks of one query have one checkpoint; these have .*/elsewhere"),
        (rows.drop("verdict"), {"unique": take}, "no columns that an operator made for verdicts"),
    ]  # fmt: skip
    for stream, sinks, why in refused:
        with pytest.raises(ConfigError, match=why):
            split(stream, **sinks)
    # One checkpoint may be written in two ways.
    same = postgres.function("others", f"file://{query.checkpoint}/", options={"name": "others"})
    split(rows, unique=take, duplicate=same)
