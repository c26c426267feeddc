"""What the operator's tests share: streams as files, queries run to their end, the oracle.

A record is written ``id@seconds`` or ``id@seconds/source``, as in ``"x@75"``; ``-`` is null.
Seconds count from `BASE`, long before any clock that runs the tests.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dedup import BatchMetrics, dedup_by_id
from dedup.spark.observations import from_progress
from dedup.spark.versions import to_arrow

BASE = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = "id string, at long, ts timestamp, src string, n long"
ARROW = pa.schema(
    [
        ("id", pa.string()),
        ("at", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("src", pa.string()),
        ("n", pa.int64()),
    ]
)
#: The operator with a horizon, for tests of other options.
daily = partial(dedup_by_id, horizon="1 day")
_RECORD = re.compile(r"(?P<id>[^@]+)@(?P<at>-|-?\d+)(?:/(?P<src>\w+))?")


def records(texts: Iterable[str], first: int = 0) -> pa.Table:
    """A table of records; column `n` numbers them."""
    rows = []
    for n, text in enumerate(texts, first):
        found = _RECORD.fullmatch(text)
        assert found, text
        at = None if found["at"] == "-" else int(found["at"])
        rows.append(
            {
                "id": None if found["id"] == "-" else found["id"],
                "at": at,
                "ts": None if at is None else BASE + timedelta(seconds=at),
                "src": found["src"],
                "n": n,
            }
        )
    return pa.Table.from_pylist(rows, ARROW)


def seeded(
    *, batches: int, rows: int, ids: int, step_s: int, seed: int = 0, spread_s: int | None = None
) -> list[pa.Table]:
    """Micro-batches of random UUIDs whose timestamps move on by `step_s` and overlap."""
    rng = np.random.default_rng(seed)
    names = np.array(
        [
            f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
            for h in (rng.bytes(16).hex() for _ in range(ids))
        ]
    )
    made = []
    for number in range(batches):
        # An ID comes again while its horizon runs, and long after.
        window = np.arange(number * ids // (2 * batches), number * ids // (2 * batches) + ids // 2)
        at = number * step_s + rng.integers(0, spread_s or 2 * step_s, rows)
        made.append(
            pa.table(
                {
                    "id": names[rng.choice(window, rows)],
                    "at": at,
                    "ts": pa.array(at * 1_000_000 + int(BASE.timestamp()) * 1_000_000).cast(
                        pa.timestamp("us", "UTC")
                    ),
                    "src": pa.nulls(rows, pa.string()),
                    "n": np.arange(number * rows, (number + 1) * rows),
                },
                ARROW,
            )
        )
    return made


@dataclass
class Run:
    """What one start of a query did: rows that passed and metrics, by micro-batch."""

    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    metrics: list[BatchMetrics] = field(default_factory=list)

    def all_rows(self) -> list[dict[str, Any]]:
        return [row for batch in sorted(self.rows) for row in self.rows[batch]]

    def told(self, verdict: str = "verdict") -> list[list[str]]:
        """Per micro-batch ``"id@seconds verdict"``, sorted; without verdicts ``"id@seconds"``."""
        return [
            sorted(
                f"{row['id'] or '-'}@{'-' if row['at'] is None else row['at']}"
                + (f" {row[verdict]}" if verdict in row else "")
                for row in self.rows[batch]
            )
            for batch in sorted(self.rows)
        ]


@dataclass
class Query:
    """A streaming query over files, one file per micro-batch, in its own folder.

    `options` go to `dedup_by_id`; `then` is what the user's pipeline does afterwards.
    """

    spark: SparkSession
    folder: Path
    options: dict[str, Any]
    id: Any = "id"
    schema: Any = SCHEMA
    files_per_batch: int = 1
    before: Callable[[DataFrame], DataFrame] = lambda df: df
    then: Callable[[DataFrame], DataFrame] = lambda df: df

    def __post_init__(self) -> None:
        self.input = self.folder / "input"
        self.checkpoint = self.folder / "checkpoint"
        self.catalog = self.folder / "catalog"
        self.input.mkdir(parents=True, exist_ok=True)
        self.added = 0
        self.numbered = 0

    def add(self, *texts: str) -> Query:
        """One more file of records."""
        table = records(texts, self.numbered)
        self.numbered += len(texts)
        return self.add_table(table)

    def add_table(self, table: pa.Table) -> Query:
        path = self.input / f"{self.added:05d}.parquet"
        pq.write_table(table, path)
        return self._stamp(path)

    def add_frame(self, frame: DataFrame) -> Query:
        """One more file, written by Spark: some of its types are beyond pyarrow."""
        scratch = self.folder / "scratch"
        frame.coalesce(1).write.mode("overwrite").parquet(str(scratch))
        (part,) = scratch.glob("part-*.parquet")
        path = self.input / f"{self.added:05d}.parquet"
        part.rename(path)
        return self._stamp(path)

    def _stamp(self, path: Path) -> Query:
        # Spark's file source goes by modification time, and by whole milliseconds.
        seconds = 1_700_000_000 + self.added
        os.utime(path, (seconds, seconds))
        self.added += 1
        return self

    def source(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema)
        return reader.option("maxFilesPerTrigger", self.files_per_batch).parquet(str(self.input))

    def result(self) -> DataFrame:
        options = {"catalog": str(self.catalog), **self.options}
        return self.then(self.before(self.source()).transform(dedup_by_id(self.id, **options)))

    def run(self, read: Callable[[DataFrame], list[Any]] | None = None) -> Run:
        """Run until the input is exhausted; `read` is what each micro-batch is kept as."""
        run = Run()

        def sink(df: DataFrame, batch: int) -> None:
            run.rows[batch] = read(df) if read else to_arrow(df).to_pylist()

        query = self.writer().foreachBatch(sink).start()
        run.metrics = finish(query, self.options.get("metrics", "dedup"))
        return run

    def writer(self) -> DataStreamWriter:
        """What takes everything that is there, into a sink yet to be named."""
        writer = self.result().writeStream.trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.checkpoint))

    def copy(self, folder: Path) -> Self:
        """The query with everything it has on disk, elsewhere (input stays where it is)."""
        other = replace(self, folder=folder, options=dict(self.options))
        other.input, other.added, other.numbered = self.input, self.added, self.numbered
        for name in ("checkpoint", "catalog"):
            if (self.folder / name).exists():
                shutil.copytree(self.folder / name, folder / name)
        return other


def finish(query: StreamingQuery, metrics: str = "dedup") -> list[BatchMetrics]:
    """Wait for the end of a query; the metrics of its micro-batches."""
    try:
        assert query.awaitTermination(240), "the query does not end"
    finally:
        query.stop()
    found = [from_progress(progress, metrics) for progress in query.recentProgress]
    return [one for one in found if one is not None]


def collected(rows: DataFrame, checkpoint: Path) -> list[Row]:
    """Run a stream until its input is exhausted; the rows of all its micro-batches."""
    found: list[Row] = []
    writer = rows.writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    finish(writer.foreachBatch(lambda batch, _: found.extend(batch.collect())).start())
    return found


def trace(
    spark: SparkSession, folder: Path, batches: Sequence[Sequence[str]], **options: Any
) -> Run:
    """Run micro-batches of records through the operator with a verdict column."""
    given = {"timestamp": "ts", "verdict": "verdict", **options}
    query = Query(spark, folder, given, id=given.pop("id", "id"))
    for texts in batches:
        query.add(*texts)
    return query.run()


@contextmanager
def listening(spark: SparkSession, *listeners: StreamingQueryListener) -> Iterator[None]:
    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        yield
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)


# --- the checkpoint's logs


def forget_commits(checkpoint: Path, first: int) -> None:
    """As if the driver had died before it could log that micro-batch `first` was done."""
    assert _delete_from(checkpoint / "commits", first), "there is nothing to forget"


def roll_back(checkpoint: Path, first: int) -> None:
    """As if the query had died in micro-batch `first`: later ones were never planned.

    The state of all micro-batches stays where it is.
    """
    forget_commits(checkpoint, first)
    _delete_from(checkpoint / "offsets", first + 1)
    _delete_from(checkpoint / "sources" / "0", first + 1)


def _delete_from(log: Path, first: int) -> int:
    deleted = 0
    for path in log.iterdir():
        number = re.fullmatch(r"\.?(\d+)(?:\.compact)?(?:\.crc)?", path.name)
        if number and int(number[1]) >= first:
            path.unlink()
            deleted += 1
    return deleted


# --- comparing rows


def shown(df: DataFrame) -> list[str]:
    """Rows as text that tells NaN, -0.0 and every other value apart, sorted.

    Through a worker, because `toArrow` of Spark 4.3 fails on null structs with non-null fields.
    """

    def show(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            texts = [repr(row) for row in batch.to_pylist()]
            yield pyarrow.RecordBatch.from_pydict({"text": texts})

    return sorted(row.text for row in df.mapInArrow(show, "text string").collect())


def row_set(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """Rows as a multiset in which NaN equals NaN and -0.0 differs from 0.0."""
    return Counter(repr(sorted(row.items())) for row in rows)
