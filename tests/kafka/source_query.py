"""Queries over `kafka_records`: run to their end, with the rows that passed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from dedup.errors import DedupError, cause
from tests.support.spark_query import forget_commits

TIMEOUT_S = 120


def start(rows: DataFrame, folder: Path, *, once: bool = True) -> StreamingQuery:
    """Start a query that writes to ``folder/out``; `once`: it ends with what is there now."""
    writer = rows.writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime="100 milliseconds")
    )
    return writer.start(str(folder / "out"))


def run(rows: DataFrame, folder: Path) -> list[Row]:
    """Run a query over what is there now; return all rows that it and runs before let continue."""
    query = start(rows, folder)
    try:
        assert query.awaitTermination(TIMEOUT_S)
    except Exception as error:
        raise cause(error) or error from None
    finally:
        query.stop()
    return written(rows, folder)


def written(rows: DataFrame, folder: Path) -> list[Row]:
    """Return what the query has written so far."""
    if not (folder / "out" / "_spark_metadata").exists():
        return []
    return rows.sparkSession.read.schema(rows.schema).parquet(str(folder / "out")).collect()


def failure(rows: DataFrame, folder: Path) -> DedupError:
    """Run a query that fails; return this package's error."""
    try:
        run(rows, folder)
    except DedupError as error:
        return error
    raise AssertionError("the query did not fail")


def roll_back(folder: Path) -> None:
    """Let Spark run the last micro-batch again: its commit is not there."""
    checkpoint = folder / "checkpoint"
    forget_commits(
        checkpoint, max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    )


def replay(make: Callable[[], DataFrame], folder: Path) -> list[Row]:
    """Run the last micro-batch again; return the rows of all runs."""
    roll_back(folder)
    return run(make(), folder)


def offsets(folder: Path) -> Any:
    """Return the newest offsets of a checkpoint."""
    log = folder / "checkpoint" / "offsets"
    last = max(int(path.name) for path in log.iterdir() if path.name.isdigit())
    return json.loads((log / str(last)).read_text().splitlines()[2])
