"""`rescale` gives a state other partitions, and the query continues as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dedup import dedup_by_sequence, split
from dedup.catalog.certificate import certificate_of
from dedup.core.sharding import spark_hash_int
from dedup.errors import ConfigError, cause
from dedup.sinks import custom_sink, once_per_batch, stable
from dedup.storage.root import Root
from dedup.testing import faults
from dedup.tools import read_checkpoint, rescale
from tests.faults.query import run_by_id
from tests.faults.subject import Subject
from tests.faults.truth import Outcome, judge
from tests.kit.sqlite_sink import ParallelSqlite, create, read
from tests.spark.test_operator_windows import DELAY, ENDS, windowed
from tests.spark.test_operator_windows import partitions as source_partitions
from tests.support.needs import long, needs_rescale
from tests.support.oracle import Oracle
from tests.support.processes import Daemon, dedup
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, query, tables
from tests.support.spark_query import ARROW, BASE, Query, Run, collected, forget_commits
from tests.support.state_stores import ROCKSDB, ROCKSDB_V2, STORES, configure
from tests.support.waiting import wait_until

pytestmark = needs_rescale
PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture
def stopped(spark: SparkSession, tmp_path: Path) -> Query:
    """A stopped query with two shards on two partitions, in RocksDB."""
    configure(spark, ROCKSDB)
    made = Query(spark, tmp_path, {"horizon": "1 hour"}).add("a@1", "b@2")
    made.run()
    return made


@pytest.mark.parametrize("store", ["rocksdb v1", *map(long, list(STORES)[1:])])
def test_a_query_judges_as_if_its_partitions_had_never_changed(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    """Two changes, by sessions with another store or format than the checkpoint."""
    configure(spark, STORES[store] | {PARTITIONS: "4"})
    other = {} if "v2" in store else ROCKSDB_V2
    given = tables(7)
    made = query(spark, tmp_path, given[:3])
    parts = [made.run()]
    for partitions, more in ((2, given[3:5]), (8, given[5:])):
        before = state_of(made)
        configure(session := spark.newSession(), other)
        done = rescale(made.checkpoint, partitions, session)
        assert (done.partitions, done.shards) == (partitions, len(before))
        assert {name: session.conf.get(name) for name in other} == other
        assert state_of(made) == before
        for table in more:
            made.add_table(table)
        parts.append(made.run())
        state = made.checkpoint / "state" / "0"
        assert sum(path.name.isdigit() for path in state.iterdir()) >= partitions
    numbers = [n for part in parts for n in part.rows]
    assert numbers == [0, 1, 2, 4, 5, 7, 8], "Spark uses up micro-batches 3 and 6"
    whole = Run(dict(enumerate(rows for part in parts for rows in part.rows.values())))
    Oracle(HORIZON_S, LATENESS_S).check(given, whole)


@pytest.mark.slow
def test_windows_behind_the_operator_count_what_they_would_have_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    configure(spark, ROCKSDB)

    def counted(name: str, *changes: int) -> Counter[str]:
        found = windowed(spark, tmp_path / name, DELAY)
        for number, texts in enumerate((*source_partitions(0), *ENDS)):
            if 0 < number <= len(changes):
                rescale(found.checkpoint, changes[number - 1], spark)
            found.add(*texts).read()
        assert found.dropped == 0
        assert found.total("late") > 10
        return found.read()

    assert counted("changed", 3, 1, 4) == counted("unchanged")


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [stable, once_per_batch])
def test_functions_get_each_micro_batch_once(
    spark: SparkSession, tmp_path: Path, wrapped: Any
) -> None:
    configure(spark, ROCKSDB)
    made = Query(spark, tmp_path, {"horizon": "1 day", "verdict": "verdict"})
    calls: list[tuple[int, str, list[str]]] = []

    def log(verdict: str) -> Any:
        def call(rows: DataFrame, batch_id: int) -> None:
            calls.append((batch_id, verdict, sorted(row.id for row in rows.collect())))

        return wrapped(call, at=str(tmp_path / verdict))

    for partitions in (3, 1, 0):
        made.add("a@1", f"b{partitions}@2")
        writer = split(made.result(), unique=log("unique"), duplicate=log("duplicate"))
        writer = writer.option("checkpointLocation", str(made.checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        if partitions:
            rescale(made.checkpoint, partitions, spark)
    assert [call for call in sorted(calls) if call[2]] == [
        (0, "unique", ["a", "b3"]),
        (2, "duplicate", ["a"]), (2, "unique", ["b1"]),
        (4, "duplicate", ["a"]), (4, "unique", ["b0"]),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_sink_of_the_kit_publishes_each_micro_batch_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    configure(spark, ROCKSDB)
    made = Query(spark, tmp_path, {"horizon": "1 day"})
    made.then = lambda rows: rows.selectExpr("n", "id AS text")
    sink = ParallelSqlite(str(tmp_path / "orders.db"))
    create(sink.path)
    for partitions in (3, 1, 0):
        made.add("a@1", f"b{partitions}@2")
        for again in (False, True):
            if again:
                forget_commits(made.checkpoint, last(made))
            publish = custom_sink(sink, checkpoint=str(made.checkpoint))
            running = made.writer().foreachBatch(publish).start()
            assert running.awaitTermination(120)
        if partitions:
            rescale(made.checkpoint, partitions, spark)
    assert sorted(read(sink)) == [0, 1, 3, 5]


def state_of(query: Query) -> dict[int, bytes]:
    """The state of each shard, as a session reads it that knows nothing of the query."""
    session = query.spark.newSession()
    states = read_checkpoint(str(query.catalog), str(query.checkpoint), session).states
    return {shard: state.to_bytes() for shard, state in states.items()}


def test_shards_spread_evenly_over_more_and_fewer_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """32 shards were born on 4 partitions."""
    spark.conf.set(PARTITIONS, "4")
    Query(spark, tmp_path, {"horizon": "1 hour", "shards": 32}).add("a@1").run()
    (query_id,) = (path.name for path in (tmp_path / "catalog").iterdir() if path.is_dir())
    keys = certificate_of(Root(tmp_path / "catalog"), query_id).slot_keys
    signed = [h - 2**32 if (h := spark_hash_int(key)) >= 2**31 else h for key in keys]
    for partitions in (1, 2, 4, 8, 16):
        assert set(Counter(h % partitions for h in signed).values()) == {32 // partitions}


def test_the_command_says_what_has_changed(stopped: Query) -> None:
    done = dedup("catalog", "rescale", stopped.checkpoint, "--partitions", "3")
    assert (done.returncode, done.stdout.splitlines()) == (0, [
        "2 -> 3 state partitions, as micro-batch 1.",
        "Start the query as before.",
        "The operator has 2 shards: more partitions than shards give it no more",
        "parallelism.",
    ])  # fmt: skip
    metrics = stopped.add("a@3", "c@4").run().metrics[-1]
    assert (metrics.shards, metrics.unique, metrics.duplicate) == (2, 1, 1)


def test_a_call_that_was_cut_off_is_repeated_with_the_same_number(
    spark: SparkSession, stopped: Query
) -> None:
    rescale(stopped.checkpoint, 3, spark)
    forget_commits(stopped.checkpoint, 1)
    stopped.add("a@3", "c@4")
    with pytest.raises(StreamingQueryException, match="UNFINISHED_REPARTITION"):
        stopped.run()
    with pytest.raises(ConfigError, match=r"for 3 partitions was cut off .* Repeat it with 3"):
        rescale(stopped.checkpoint, 4, spark)
    assert rescale(stopped.checkpoint, 3, spark).partitions == 3
    metrics = stopped.run().metrics[-1]
    assert (metrics.unique, metrics.duplicate) == (1, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_of_the_command_and_of_the_next_start_change_no_verdict(
    spark: SparkSession, tmp_path: Path, fault_folder: Path
) -> None:
    """Kills come at random moments after Spark has planned its micro-batch, 30 times."""
    configure(spark, ROCKSDB)
    given, random, cut_off = tables(31, rows=60), Random(0), 0
    made = query(spark, tmp_path, given[:1], shards=6)
    parts, partitions = [made.run()], 2
    for number, table in enumerate(given[1:]):
        partitions = partitions % 6 + 1
        planned = made.checkpoint / "offsets" / str(last(made) + 1)
        command = [sys.executable, "-m", "dedup.cli.main", "catalog", "rescale", made.checkpoint]
        command += ["--partitions", partitions]
        running = Daemon.start(command, tmp_path / "log", dict(os.environ))
        assert wait_until(lambda path=planned: path.exists(), 120), running.log.read_text()
        time.sleep(random.uniform(0, 1.5))
        assert running.kill() or running.process.returncode == 0
        if not (made.checkpoint / "commits" / planned.name).exists():
            cut_off += 1
            assert rescale(made.checkpoint, partitions, spark).batch_id == int(planned.name)
        faults.arm(fault_folder, random.choice(("group.update.before", "group.end")), "kill")
        parts.append(made.add_table(table).run())
        assert len(faults.fired(fault_folder)) == number + 1
    assert cut_off >= 10
    whole = Run(dict(enumerate(rows for part in parts for rows in part.rows.values())))
    Oracle(HORIZON_S, LATENESS_S).check(given, whole)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_of_the_driver_at_the_next_start_lose_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All processes of the query die at random moments of its first micro-batches, 30 times."""
    configure(spark, ROCKSDB)
    given, random, cut_off = tables(61, rows=60), Random(0), 0
    made = query(spark, tmp_path, given[:1])
    options = OPTIONS | {"shards": 6, "cache_dir": str(tmp_path / "cache")}
    config = {"options": options, "settings": ROCKSDB, "numbered": "", "turn": 0}
    subject, partitions = Subject(tmp_path, config), 2
    run_by_id(spark, config, tmp_path, dict(options))
    for number in range(1, len(given), 2):
        partitions = partitions % 6 + 1
        rescale(made.checkpoint, partitions, spark)
        made.add_table(given[number]).add_table(given[number + 1])
        batch = str(last(made) + 1)
        subject.start()
        planned = made.checkpoint / "offsets" / batch
        assert wait_until(planned.exists, 120), subject.last_words()
        time.sleep(random.uniform(0, 2.5))
        subject.kill_all()
        assert subject.process.wait(60) == -signal.SIGKILL, "it had ended before"
        cut_off += not (made.checkpoint / "commits" / batch).exists()
        run_by_id(spark, config | {"turn": number}, tmp_path, dict(options))
    assert subject.starts == 30
    assert cut_off >= 10
    found = judge(tmp_path / "output", given, Oracle(HORIZON_S, LATENESS_S))
    assert found == Outcome(61 * 60, lost=0, duplicated=0)


def last(query: Query) -> int:
    return max(int(p.name) for p in (query.checkpoint / "commits").iterdir() if p.name.isdigit())


def test_an_unfinished_micro_batch_is_named(spark: SparkSession, stopped: Query) -> None:
    stopped.add("c@3").run()
    forget_commits(stopped.checkpoint, 1)
    unchanged(spark, stopped.checkpoint, 3, "Micro-batch 1 of .* is unfinished. Start the query")


def test_a_query_that_has_committed_nothing_is_named(spark: SparkSession, stopped: Query) -> None:
    forget_commits(stopped.checkpoint, 0)
    unchanged(spark, stopped.checkpoint, 3, "has committed no micro-batch. Start it once")
    with pytest.raises(ConfigError, match="No committed batch found"):
        state_of(stopped)


def test_a_number_that_cannot_be_is_rejected(spark: SparkSession, stopped: Query) -> None:
    unchanged(spark, stopped.checkpoint, 0, "partitions=0 must be a whole number from 1 to 10000")
    unchanged(spark, stopped.checkpoint, 10_001, "partitions=10001 must be")
    unchanged(spark, stopped.checkpoint, 2, "has 2 partitions already")


def test_a_state_of_spark_3_5_is_left_alone(spark: SparkSession, stopped: Query) -> None:
    """It has no metadata, without which Spark plans the change and cannot make it."""
    shutil.rmtree(stopped.checkpoint / "state" / "0" / "_metadata")
    unchanged(spark, stopped.checkpoint, 3, "is from Spark 3.5. Start the query with this PySpark")
    stopped.add("a@3").run()
    assert rescale(stopped.checkpoint, 3, spark).partitions == 3


def test_an_entry_that_a_power_loss_has_emptied_is_reported(
    spark: SparkSession, stopped: Query
) -> None:
    stopped.add("c@3").run()
    forget_commits(stopped.checkpoint, 1)
    (stopped.checkpoint / "offsets" / "1").write_text("")
    (stopped.checkpoint / "offsets" / ".1.crc").unlink()
    unchanged(spark, stopped.checkpoint, 3, "Incomplete log file. Nothing has changed")


def test_a_state_in_the_default_store_stays_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own call would leave a checkpoint from which the query never starts again."""
    made = Query(spark, tmp_path, {"horizon": "1 hour"}).add("a@1")
    made.run()
    unchanged(spark, made.checkpoint, 3, "is in HDFSBackedStateStoreProvider, .* only .* RocksDB")
    assert made.add("a@2").run().metrics[-1].duplicate == 1


def test_numbers_are_judged_as_before_with_the_number_of_shards_as_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    configure(spark, ROCKSDB)
    made = Query(spark, tmp_path, {})

    def judged(first: int, **options: int) -> Counter[str]:
        """Let 40 producers send their records from this number to number 3."""
        for number in range(first, 4):
            made.add_table(numbered(number))
        operator = dedup_by_sequence("id", "n", expire_after="1 hour", verdict="v", **options)
        rows = collected(made.source().transform(operator), made.checkpoint)
        return Counter(row.v for row in rows)

    assert judged(2) == {"unknown": 40, "accept": 40}
    done = rescale(made.checkpoint, 5, spark)
    assert (done.operator, done.shards) == ("dedup_by_sequence", 2)
    with pytest.raises(StreamingQueryException) as stopped:
        judged(3)
    assert "has 2 shards, and is started with 5. Give shards=2" in str(cause(stopped.value))
    assert judged(2, shards=2) == {"duplicate": 120}


def numbered(number: int) -> pa.Table:
    rows = [{"id": f"p{i}", "at": 0, "ts": BASE, "src": None, "n": number} for i in range(40)]
    return pa.Table.from_pylist(rows, ARROW)


@pytest.mark.parametrize(("folder", "shown"), [("a b", "' '"), ("100% [1]#?", r"' #%\?\[\]'")])
def test_a_path_under_which_spark_reads_no_state_is_named(
    spark: SparkSession, stopped: Query, folder: str, shown: str
) -> None:
    moved = stopped.folder / folder / "checkpoint"
    shutil.copytree(stopped.checkpoint, moved)
    unchanged(
        spark, moved, 3, rf"path that contains {shown}\. Stop the query, move .* that path\.$"
    )


def test_a_call_that_fails_after_spark_has_planned_it_says_what_to_do(
    spark: SparkSession, stopped: Query
) -> None:
    (stopped.checkpoint / "state" / "0" / "2").write_text("where the third partition belongs")
    with pytest.raises(ConfigError, match="The query does not start before you have repeated"):
        rescale(stopped.checkpoint, 3, spark)
    (stopped.checkpoint / "state" / "0" / "2").unlink()
    assert rescale(stopped.checkpoint, 3, spark).partitions == 3


def test_a_checkpoint_of_something_else_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    configure(spark, ROCKSDB)
    made = Query(spark, tmp_path, {}).add("a@1")
    collected(made.source().dropDuplicates(["id"]), tmp_path / "builtin")
    unchanged(spark, tmp_path / "builtin", 3, "cannot read the state of a query with dedup_by_id")


def unchanged(spark: SparkSession, checkpoint: Path, partitions: int, why: str) -> None:
    before = shutil.copytree(checkpoint, checkpoint.parent / f"{checkpoint.name}-{partitions}")
    with pytest.raises(ConfigError, match=why):
        rescale(checkpoint, partitions, spark)
    names = [{p.relative_to(at) for p in at.rglob("*")} for at in (before, checkpoint)]
    assert names[0] == names[1]
