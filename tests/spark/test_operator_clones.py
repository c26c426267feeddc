"""Copies of a checkpoint on one catalog, and what failed attempts leave there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dedup.spark.driver.build
from dedup.catalog.layout import SEGMENT_SUFFIX, SIDECAR_SUFFIX, shard_path
from dedup.catalog.root import Root
from dedup.tools.repair.opening import read_checkpoint
from tests.spark.faults import POINTS, failing
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, query, tables, total
from tests.support.spark_query import Query, Run


def clone(made: Query, folder: Path) -> Query:
    """The query on a copy of its checkpoint, with the same catalog and the same input."""
    other = Query(made.spark, folder, made.options | {"catalog": str(made.catalog)})
    other.input, other.added = made.input, made.added
    other.catalog = made.catalog
    shutil.copytree(made.checkpoint, other.checkpoint)
    return other


def missing(made: Query, *, live: bool = False) -> list[str]:
    """Files that the query's manifests name, live only or expired too, and that are not there."""
    root = Root(made.catalog)
    snapshot = read_checkpoint(root, str(made.checkpoint), made.spark)
    there = {found.name for found in root.list()}
    return [
        name
        for shard, state in snapshot.states.items()
        for segment in (
            {s.name for s in state.manifest.segments()} if live else state.manifest.names()
        )
        for suffix in (SEGMENT_SUFFIX, SIDECAR_SUFFIX)
        if (name := shard_path(snapshot.query_id, shard, segment + suffix)) not in there
    ]


@pytest.mark.slow
def test_two_clones_of_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Each answers right, neither deletes what the other needs, and both report it."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    given = tables(11, rows=600)
    made = query(
        spark, tmp_path / "original", given[:5], horizon="100 seconds",
        bucket_length="50 seconds", lateness="20 seconds",
    )  # fmt: skip
    run = made.run()
    copied = clone(made, tmp_path / "copy")
    for table in given[5:7]:
        made.add_table(table)
    on = made.run()
    assert {m.branches for m in on.metrics} == {0}
    run.rows |= on.rows
    copied.added = made.added
    for table in given[7:]:
        copied.add_table(table)
    theirs = Run(rows={batch: run.rows[batch] for batch in range(5)})
    other = copied.run()
    theirs.rows |= other.rows
    Oracle(100, 20).check(given, theirs)
    assert {m.branches for m in other.metrics} == {1}
    # Six micro-batches expired segments that the original may still need.
    assert total(other, "segments_expired") > 10
    assert total(other, "segments_deleted") == total(other, "orphans_deleted") == 0
    # The original continued first, and deleted what had expired before the copy was made.
    assert missing(made) == missing(copied, live=True) == []
    again = made.run()
    run.rows |= again.rows
    Oracle(100, 20).check(given, run)
    assert {m.branches for m in again.metrics} == {1}
    assert total(again, "segments_deleted") == total(again, "orphans_deleted") == 0
    assert missing(made) == missing(copied, live=True) == []


# Without Spark: tests/unit/test_catalog_sweep.py and the model.
@pytest.mark.slow
def test_orphans_are_deleted_once_nothing_can_name_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    given = tables(len(POINTS) + 6, rows=1600)
    marks = tmp_path / "marks"
    marks.mkdir()
    points = dict(enumerate(POINTS))
    monkeypatch.setattr(dedup.spark.driver.build, "dedup_stream", failing(points, marks))
    made = query(spark, tmp_path / "query", given[: len(POINTS) + 4])
    run = made.run()
    assert {path.name for path in marks.iterdir()} == set(POINTS)
    monkeypatch.undo()
    foreign = next(made.catalog.rglob("shard=00000")) / "notes.txt"
    foreign.write_text("mine")
    for table in given[len(POINTS) + 4 :]:
        made.add_table(table)
    last = made.run()
    assert last.metrics[0].orphans_deleted >= 3
    assert (last.metrics[0].orphan_files, last.metrics[0].foreign_files) == (0, 1)
    assert foreign.read_text() == "mine"
    run.rows |= last.rows
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    assert missing(made) == []
