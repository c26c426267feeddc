"""Replays start from the same state, and the same rows pass."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from dedup.spark.versions import to_arrow
from tests.support.needs import long
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, query, tables, total
from tests.support.spark_query import Query, Run, finish, forget_commits, roll_back, row_set
from tests.support.state_stores import STORES, configure

BATCHES = 14


@pytest.fixture(scope="module")
def done(shared_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Query, Run]:
    """Micro-batches at their end; tests continue from copies."""
    given = tables(BATCHES)
    made = query(shared_spark.newSession(), tmp_path_factory.mktemp("done"), given)
    run = made.run()
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    return made, run


def test_the_run_under_test_exercises_every_part_of_the_catalog(done: tuple[Query, Run]) -> None:
    """It writes, merges, reads and expires segments, and some records are late."""
    _, run = done
    assert len(run.metrics) == BATCHES
    assert all(m.records_in == m.unique + m.duplicate + m.late == 800 for m in run.metrics)
    for name in (
        "segments_written", "segments_merged", "segments_expired", "segments_pending",
        "filter_true_positive", "filter_negative", "catalog_reads", "views_built", "late",
    ):  # fmt: skip
        assert total(run, name) > 10, name
    assert max(m.state_bytes for m in run.metrics) <= 2 * (16 << 10)
    assert max(m.segments for m in run.metrics) > 10


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(k, marks=() if k in (9, BATCHES - 1) else pytest.mark.slow)
        for k in range(BATCHES)
    ],
)
def test_a_rollback_to_any_micro_batch_replays_the_same_rows(
    done: tuple[Query, Run], tmp_path: Path, first: int
) -> None:
    """The checkpoint's logs end at a micro-batch, but later states still exist."""
    finished, run = done
    again = finished.copy(tmp_path)
    roll_back(again.checkpoint, first)
    replayed = again.run()
    assert sorted(replayed.rows) == list(range(first, BATCHES))
    for batch, rows in replayed.rows.items():
        assert row_set(rows) == row_set(run.rows[batch]), f"micro-batch {batch}"
    assert [m.live_ids for m in replayed.metrics] == [m.live_ids for m in run.metrics[first:]]
    # The first run's files of those micro-batches are orphans now.
    if first < BATCHES - 1:
        assert max(m.orphan_files for m in replayed.metrics) > 0


def test_a_lost_commit_log_replays_the_same_rows(done: tuple[Query, Run], tmp_path: Path) -> None:
    finished, run = done
    again = finished.copy(tmp_path)
    forget_commits(again.checkpoint, 5)
    replayed = again.run()
    assert sorted(replayed.rows) == [BATCHES - 1]
    assert row_set(replayed.rows[BATCHES - 1]) == row_set(run.rows[BATCHES - 1])


@pytest.mark.parametrize("store", [*map(long, list(STORES)[:-1]), list(STORES)[-1]])
def test_a_rollback_replays_the_same_rows_on_other_state_stores(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    """A run, a rollback by two micro-batches, and a restart. Other tests use HDFS-backed state."""
    configure(spark, STORES[store])
    given = tables(5)
    made = query(spark, tmp_path, given[:4])
    run = made.run()
    state = made.checkpoint / "state" / "0" / "0"
    files = [path.name for path in state.iterdir()]
    unique = any(re.fullmatch(r"\d+_[0-9a-f-]{36}\.(zip|changelog)", name) for name in files)
    assert unique == ("v2" in store), files
    assert any(".changelog" in name for name in files) == ("changelog" in store), files
    roll_back(made.checkpoint, 2)
    replayed = made.run()
    assert sorted(replayed.rows) == [2, 3]
    for batch, rows in replayed.rows.items():
        assert row_set(rows) == row_set(run.rows[batch])
    # From the state that the replay wrote.
    made.add_table(given[4])
    run.rows |= made.run().rows
    Oracle(HORIZON_S, LATENESS_S).check(given, run)


def test_stops_at_any_step_lose_and_repeat_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """`stop` interrupts tasks at any step."""
    given = tables(6)
    made = query(spark, tmp_path, given)
    emitted = Run()

    def sink(df: DataFrame, batch: int) -> None:
        rows = to_arrow(df).to_pylist()
        assert row_set(emitted.rows.setdefault(batch, rows)) == row_set(rows)

    for _ in range(3):
        running = made.writer().foreachBatch(sink).start()
        running.awaitTermination(1)
        running.stop()
    finish(made.writer().foreachBatch(sink).start())
    # Stopped between its own log and the query's, Spark's file source gives two files at once.
    files = iter(given)
    batches = [
        pa.concat_tables(islice(files, len(emitted.rows[batch]) // 800))
        for batch in sorted(emitted.rows)
    ]
    assert sum(table.num_rows for table in batches) == 6 * 800
    Oracle(HORIZON_S, LATENESS_S).check(batches, emitted)
