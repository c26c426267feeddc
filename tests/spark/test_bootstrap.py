"""`bootstrap`: a new query judges as if it had received the history in order of time."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import dedup_by_id, dedup_by_sequence, record_id, time_from_id
from dedup.errors import CatalogError, ConfigError, DataError, cause, faults
from dedup.spark.executor.history import STEP_ROWS
from dedup.testing import faults as armed
from dedup.tools import bootstrap, builtin_state, read_checkpoint, rebuild, verify
from dedup.tools.repair import bootstrap as repair
from dedup.tools.repair.bootstrap import Bootstrap
from tests.support.cut import cut_at
from tests.support.needs import needs_spark_4
from tests.support.object_store import ObjectStore
from tests.support.oracle import Oracle
from tests.support.pages import ORDERS, PACKAGE, snippets
from tests.support.processes import python, run_python
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, tables
from tests.support.spark_query import ARROW, BASE, Query, Run, collected, forget_commits, records
from tests.support.state_stores import STORES, configured


def operator_of(query: Query, **options: Any) -> Any:
    return dedup_by_id(query.id, **{"catalog": str(query.catalog), **query.options, **options})


def frame_of(query: Query, *given: pa.Table) -> DataFrame:
    """History in several files. The newest rows come first, and files are in no order."""
    folder = query.folder / "history"
    folder.mkdir(exist_ok=True)
    for number, table in enumerate(reversed(given)):
        pq.write_table(table.sort_by([("at", "descending")]), folder / f"{number:05d}.parquet")
    return query.spark.read.schema(query.schema).parquet(str(folder))


def learned(query: Query, *given: pa.Table) -> Bootstrap:
    return bootstrap(operator_of(query), frame_of(query, *given), query.checkpoint)


def fed(query: Query, *given: pa.Table) -> Run:
    for table in given:
        query.add_table(table)
    return query.run()


class FreshClocks(Oracle):
    """Knows what passed in history, and begins with the first record of the stream."""

    def __init__(self, *given: pa.Table) -> None:
        super().__init__(HORIZON_S, LATENESS_S)
        self.verdicts(pa.concat_tables(given))
        self._truth._late_watermark_ms = -(1 << 62)


def test_the_query_judges_as_if_it_had_received_history_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    """History is longer than horizon and lateness, and the stream repeats its end."""
    given = tables(12, rows=900)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 3})
    done = learned(new, *given[:8])
    assert (done.rows, done.shards) == (7200, 3)
    assert done.too_old
    assert verify(new.catalog, query=done.query_id).ok
    live = [given[7].filter(pa.compute.greater(given[7]["at"], 500)), *given[8:]]
    FreshClocks(*given[:8]).check(live, fed(new, *live))


def test_a_shard_learns_many_rows_bucket_by_bucket(spark: SparkSession, tmp_path: Path) -> None:
    given = tables(6, rows=40_000)
    options = {name: OPTIONS[name] for name in ("timestamp", "horizon", "lateness", "verdict")}
    new = Query(spark, tmp_path, options | {"shards": 1, "bucket_length": "60 seconds"})
    assert learned(new, *given[:5]).rows > 2 * STEP_ROWS
    FreshClocks(*given[:5]).check(given[5:], fed(new, given[5]))


#: ID and options, as functions, because a column needs a session.
VARIANTS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "composite": lambda: (["id", F.col("at") % 2], {}),
    "derived": lambda: (record_id.from_columns("id", "src"), {}),
    "payload": lambda: ("id", {"check_payload": "n", "conflicts": "emit"}),
    "payload in order": lambda: ("id", {"check_payload": True, "order_by": F.col("n") * -1}),
    "stable": lambda: (
        F.concat("id", F.lit("@"), "at"),
        {"stable_timestamps": True, "late": "drop"},
    ),
    "two clocks": lambda: ("id", {"source_partition": "src"}),
    "heartbeats": lambda: ("id", {"heartbeat": F.col("id") == "h"}),
    "ahead": lambda: ("id", {"max_future": "1 hour"}),
    "arrival": lambda: ("id", {"timestamp": None, "lateness": None}),
}


def in_order(rows: pa.Table, *, timed: bool) -> list[pa.Table]:
    """Return micro-batches in order of time. Those without timestamps are one."""
    if not timed:
        return [rows]
    minutes = pa.compute.floor(pa.compute.divide(rows["at"], 60.0))
    return [
        rows.filter(pa.compute.equal(minutes, minute))
        for minute in sorted(pa.compute.unique(minutes).to_pylist())
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_with_every_option_it_judges_as_a_query_that_received_everything(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    chosen, more = VARIANTS[name]()
    options = {key: value for key, value in (OPTIONS | more).items() if value is not None}
    given = tables(5, rows=300)
    beat = pa.Table.from_pylist([{"id": "h", "at": 10**6, "n": 0}], ARROW)
    history = [*given[:3], *([beat] if name == "heartbeats" else [])]
    rows = pa.concat_tables(given[:3]).sort_by("at")
    ahead = {"id": "ahead", "at": 10**9, "ts": None, "src": None, "n": 0}
    if name == "ahead":
        late = pa.Table.from_pylist([ahead | {"ts": 4 * 10**15}], ARROW)
        history.append(late)
        rows = pa.concat_tables([rows, late])
    other = Query(spark, tmp_path / "other", options, id=chosen)
    new = Query(spark, tmp_path / "new", options, id=chosen)
    for table in in_order(rows, timed="timestamp" in options):
        other.add_table(table)
    other.run()
    done = learned(new, *history)
    assert done.rows == len(rows)
    assert done.future == (name == "ahead")
    live = [table.filter(pa.compute.greater(table["at"], 240)) for table in given[3:]]
    before, after = fed(other, *live), fed(new, *live)
    assert told(before) == told(after)


def told(run: Run) -> list[Counter[tuple[str, str]]]:
    """Return IDs and verdicts by micro-batch. Which of several equal copies passes is open."""
    return [
        Counter((row["id"], row["verdict"]) for row in rows) for _, rows in sorted(run.rows.items())
    ]


STEPS = ["bootstrap.begun", "bootstrap.learned", "bootstrap.written"]


def assert_closed(query: Query) -> None:
    with pytest.raises(StreamingQueryException) as failed:
        query.run()
    error = cause(failed.value)
    assert isinstance(error, CatalogError)
    assert "begins with the IDs of history" in str(error)
    assert error.remedy == "missing-catalog"


@pytest.mark.parametrize("step", STEPS)
def test_nothing_starts_before_all_is_done_and_the_call_can_be_repeated(
    spark: SparkSession, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tables(4, rows=200)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 2})
    with cut_at(monkeypatch, step):
        learned(new, *given[:3])
    if step == "bootstrap.written":
        with pytest.raises(ConfigError, match="is not empty"):
            learned(new, *given[:3])
    else:
        assert_closed(new.add_table(given[3]))
        new.added = 0
        learned(new, *given[:3])
    FreshClocks(*given[:3]).check(given[3:], fed(new, given[3]))


def test_a_query_that_runs_is_not_touched(spark: SparkSession, tmp_path: Path) -> None:
    given = tables(3, rows=100)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 2})
    learned(new, *given[:2])
    fed(new, given[2])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"is not empty.*start the query"):
        learned(new, *given[:2])
    assert sorted(tmp_path.rglob("*")) == before


def test_of_two_first_calls_at_once_one_fails(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found the folder empty, and the later one has no rows that it may learn."""
    given = tables(3, rows=100)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 2})
    name_query = repair.name_query

    def other(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        learned(new, *given[:2])
        name_query(*arguments, **options)

    lacking = frame_of(Query(spark, tmp_path / "x", {}), records(["a@1", "-@2"]))
    monkeypatch.setattr(repair, "name_query", other)
    with pytest.raises(ConfigError, match=r"A later call for .* has begun"):
        bootstrap(operator_of(new), lacking, new.checkpoint)
    FreshClocks(*given[:2]).check(given[2:], fed(new, given[2]))


def test_a_call_that_ends_while_another_begins_keeps_its_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has found no certificate, and names its query only now."""
    given = tables(3, rows=100)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 2})
    with cut_at(monkeypatch, "bootstrap.written"):
        learned(new, *given[:2])
    (certificate,) = new.catalog.glob("*/certificate.json")
    written = certificate.rename(tmp_path / "written a moment later")
    name_query = repair.name_query

    def other(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        written.rename(certificate)
        name_query(*arguments, **options)

    monkeypatch.setattr(repair, "name_query", other)
    with pytest.raises(ConfigError, match=r"is not empty.*start the query"):
        learned(new, *given[:2])
    FreshClocks(*given[:2]).check(given[2:], fed(new, given[2]))


def test_a_micro_batch_in_progress_counts_as_use(spark: SparkSession, tmp_path: Path) -> None:
    """A call with another catalog does not find the certificate there."""
    given = tables(3, rows=100)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 2})
    learned(new, *given[:2])
    new.add_table(given[2])

    def fails(rows: DataFrame, batch_id: int) -> None:
        rows.collect()
        raise ValueError("the sink fails")

    with pytest.raises(StreamingQueryException, match="the sink fails"):
        new.writer().foreachBatch(fails).start().awaitTermination()
    other = operator_of(new, catalog=str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="is not empty"):
        bootstrap(other, frame_of(new, *given[:2]), new.checkpoint)
    FreshClocks(*given[:2]).check(given[2:], new.run())


def test_the_path_must_be_that_of_the_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark knows neither ~ nor the working directory of Python, and takes [1] for a pattern."""
    new = Query(spark, tmp_path / "new", OPTIONS)
    history = frame_of(new, records(["a@1"]))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"does not see.*an absolute path"):
        bootstrap(operator_of(new), history, "checkpoint")
    assert not list((tmp_path / "checkpoint").iterdir())
    for path in ("~/checkpoint", f"file://{tmp_path}/a%20b", f"file://{tmp_path}/a?b"):
        with pytest.raises(ConfigError, match=r"for another folder. Give its absolute path"):
            bootstrap(operator_of(new), history, path)
        with pytest.raises(ConfigError, match=r"for another folder. Give its absolute path"):
            rebuild(new.catalog, new.checkpoint, tmp_path / "other", path)
    new.checkpoint = tmp_path / "run[1]"
    assert bootstrap(operator_of(new), history, new.checkpoint).ids == 1
    assert fed(new, records(["a@1", "b@2"])).told() == [["a@1 duplicate", "b@2 unique"]]


def test_a_shard_learns_wide_rows_in_steps(spark: SparkSession, tmp_path: Path) -> None:
    """All rows exceed max_shard_batch_bytes, and the rows of a slice of time do not."""
    given = tables(6, rows=400)
    wide = {"check_payload": "wide", "max_shard_batch_bytes": "64 MiB"}
    new = Query(
        spark, tmp_path, OPTIONS | wide | {"shards": 1},
        before=lambda rows: rows.withColumn("wide", F.repeat("id", 2_000)),
    )  # fmt: skip
    history = new.before(frame_of(new, *given[:5]))
    assert bootstrap(operator_of(new), history, new.checkpoint).rows == 2_000
    FreshClocks(*given[:5]).check(given[5:], fed(new, given[5]))


def test_a_call_that_was_cut_off_stays_closed_however_it_is_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another spelling, with rows that are rejected, and with another catalog."""
    given = tables(3, rows=100)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 2})
    with cut_at(monkeypatch, "bootstrap.learned"):
        learned(new, *given[:2])
    lacking = frame_of(Query(spark, tmp_path / "x", {}), records(["a@1", "-@2"]))
    with pytest.raises(DataError, match="without an ID or a time"):
        bootstrap(operator_of(new), lacking, new.checkpoint)
    assert_closed(new.add_table(given[2]))
    other = operator_of(new, catalog=str(tmp_path / "other"))
    bootstrap(other, frame_of(new, *given[:2]), f"file://{new.checkpoint}/")
    assert_closed(new)
    new.options["catalog"] = str(tmp_path / "other")
    FreshClocks(*given[:2]).check(given[2:], new.run())


@pytest.mark.parametrize("step", ["bootstrap.begun", "bootstrap.learned"])
def test_of_two_calls_at_once_the_earlier_one_fails(
    spark: SparkSession, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query of the later call has run in the meantime, and continues."""
    given = tables(4, rows=100)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 2})
    runs = []

    def other(name: str, path: object = None) -> None:
        if name == step and not runs:
            runs.append(Run())
            learned(new, *given[:2])
            runs[0] = fed(new, given[2])

    with monkeypatch.context() as patch:
        patch.setattr(faults, "point", other)
        with pytest.raises(ConfigError, match=r"A later call for .* has begun"):
            learned(new, *given[:2])
    runs.append(fed(new, given[3]))
    assert len(list(new.catalog.iterdir())) == 1, "nothing is left of the earlier call"
    rows = dict(enumerate(rows for run in runs for rows in run.rows.values()))
    FreshClocks(*given[:2]).check(given[2:], Run(rows))


def test_history_needs_no_columns_but_those_of_id_and_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = OPTIONS | {
        "source_partition": "src", "heartbeat": F.col("n") < 0, "order_by": "n", "shards": 2,
    }  # fmt: skip
    given = tables(3, rows=100)
    new = Query(spark, tmp_path, options)
    history = frame_of(new, *given[:2]).selectExpr("id", "ts", "'unique' AS verdict")
    assert bootstrap(operator_of(new), history, new.checkpoint).rows == 200
    FreshClocks(*given[:2]).check(given[2:], fed(new, given[2]))


def test_a_task_that_dies_and_runs_again_learns_the_same(
    spark: SparkSession, tmp_path: Path, fault_folder: Path
) -> None:
    given = tables(4, rows=400)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 3})
    armed.arm(fault_folder, "history.shard.after", "kill", 0)
    done = learned(new, *given[:3])
    assert len(armed.fired(fault_folder)) == 1
    left = list(new.catalog.rglob("*.sst"))
    assert len(left) == done.segments, "nothing is left of the task that died"
    FreshClocks(*given[:3]).check(given[3:], fed(new, given[3]))


def test_the_catalog_may_be_an_object_store(
    spark: SparkSession, tmp_path: Path, store: ObjectStore
) -> None:
    given = tables(4, rows=400)
    new = Query(spark, tmp_path, OPTIONS | {"shards": 2, "catalog": store.uri(tmp_path.name)})
    learned(new, *given[:3])
    FreshClocks(*given[:3]).check(given[3:], fed(new, given[3]))


def test_times_come_from_ids(spark: SparkSession, tmp_path: Path) -> None:
    def version_7(at: int) -> str:
        return str(uuid.UUID(int=(1_700_000_000_000 + 1000 * at) << 80 | 7 << 76 | 2 << 62 | at))

    options = {"horizon": "5 minutes", "timestamp": time_from_id("uuid7")}
    new = Query(spark, tmp_path, options)
    names = [version_7(at) for at in range(1000)]
    rows = [{"id": name, "at": at, "n": at} for at, name in enumerate(names)]
    done = learned(new, pa.Table.from_pylist(rows, ARROW))
    assert done.too_old > 300
    fresh = [{"id": version_7(at), "at": at, "n": at} for at in range(990, 1010)]
    run = fed(new, pa.Table.from_pylist(fresh, ARROW))
    assert sorted(row["at"] for row in run.all_rows()) == list(range(1000, 1010))
    other = Query(spark, tmp_path / "other", options)
    with pytest.raises(DataError, match=r"History has 1 row without an ID or a time.*id='x'"):
        learned(other, records(["x@1"]))


def test_what_cannot_be_learned_is_rejected_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    new = Query(spark, tmp_path / "new", {"horizon": "1 day", "timestamp": "ts"})
    history = frame_of(new, records(["a@1", "b@2"]))

    def rejected(
        reason: str, operator: Any = None, rows: DataFrame = history, checkpoint: Any = None,
        error: type[Exception] = ConfigError,
    ) -> None:  # fmt: skip
        with pytest.raises(error, match=reason):
            bootstrap(operator or operator_of(new), rows, checkpoint or new.checkpoint)
        assert not new.checkpoint.exists() or not list(new.checkpoint.rglob("*"))
        assert not list(new.catalog.rglob("*.*"))

    lacking = frame_of(Query(spark, tmp_path / "x", {}), records(["a@1", "-@2", "b@-", "c@-"]))
    rejected("History has 3 rows without an ID or a time. .*ts=", rows=lacking, error=DataError)
    rejected("remembers no ID", operator_of(new, guarantee="at-least-once"))
    rejected("needs catalog=", operator_of(new, catalog=None))
    rejected("is a stream", rows=new.source())
    rejected("is not empty", checkpoint=tmp_path / "x" / "history")
    rejected("no such column", rows=history.drop("ts"))
    random_id = dedup_by_id(F.expr("uuid()"), horizon="1 day", catalog=str(new.catalog))
    rejected("is not the same when", random_id)
    sequence = dedup_by_sequence("id", "n", expire_after="1 day")
    rejected("the operator that dedup_by_id returns", sequence)
    rejected("the operator that dedup_by_id returns, and a DataFrame", "id")
    inside = operator_of(new, catalog=str(new.checkpoint / "catalog"))
    rejected("is inside the checkpoint", inside)


def test_the_stream_must_have_the_same_id(spark: SparkSession, tmp_path: Path) -> None:
    new = Query(spark, tmp_path, {"horizon": "1 day", "timestamp": "ts"})
    learned(new, records(["a@1"]))
    new.id = "src"
    with pytest.raises(StreamingQueryException) as failed:
        fed(new, records(["a@1/x"]))
    assert "id" in str(cause(failed.value))


def test_history_without_rows_makes_a_query_that_knows_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    new = Query(spark, tmp_path, {"horizon": "1 day", "timestamp": "ts"})
    history = spark.createDataFrame([], new.schema)
    assert bootstrap(operator_of(new), history, new.checkpoint).rows == 0
    assert fed(new, records(["a@1", "a@2"])).told() == [["a@1"]]


@needs_spark_4
def test_a_query_that_has_never_run_has_no_state_to_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    new = Query(spark, tmp_path, {"horizon": "1 day", "timestamp": "ts"})
    learned(new, records(["a@1"]))
    with pytest.raises(ConfigError, match="has never run, start it first"):
        read_checkpoint(new.catalog, new.checkpoint, spark)


def of_spark(spark: SparkSession, folder: Path, *given: pa.Table, **how: Any) -> list[Row]:
    """Run a query with Spark's own operator, and return its rows."""
    source = Query(spark, folder, {})
    for table in given:
        source.add_table(table)
    rows = source.source()
    if "within" in how:
        unique = rows.withWatermark("ts", how["within"]).dropDuplicatesWithinWatermark(["id"])
    else:
        unique = rows.dropDuplicates(how["columns"])
    return collected(unique, source.checkpoint)


@needs_spark_4
@pytest.mark.parametrize("store", [{}, *STORES.values()], ids=["default", *STORES])
def test_no_id_passes_again_after_spark_s_operator_with_a_watermark(
    spark: SparkSession, tmp_path: Path, store: dict[str, str]
) -> None:
    given = tables(5, rows=300)
    with configured(spark, store):
        before = of_spark(spark, tmp_path / "spark", *given[:3], within="5 minutes")
    old = builtin_state(spark, tmp_path / "spark" / "checkpoint", delay="5 minutes", timestamp="ts")
    assert old.count() > 200
    new = Query(spark, tmp_path / "new", {"horizon": "5 minutes", "timestamp": "ts"})
    done = bootstrap(operator_of(new), old, new.checkpoint)
    assert done.ids == old.count()
    after = fed(new, *given[3:]).all_rows()
    times = {row["id"]: row["at"] for row in before}
    again = [row["at"] - times[row["id"]] for row in after if row["id"] in times]
    assert min(again) > 300
    # They are new to both, or Spark would have let them pass as well.
    known = Counter(row["id"] for row in after)
    assert {name for table in given[3:] for name in table["id"].to_pylist()} <= set(known) | set(
        times
    )


@needs_spark_4
def test_what_drop_duplicates_remembers_gets_a_time(spark: SparkSession, tmp_path: Path) -> None:
    given = records(["a@1", "b@2", "a@3"])
    of_spark(spark, tmp_path / "ids", given, columns=["id"])
    of_spark(spark, tmp_path / "times", given, columns=["id", "ts"])
    at = BASE + timedelta(seconds=10)
    checkpoint = tmp_path / "ids" / "checkpoint"
    state = builtin_state(spark, checkpoint, at=at, timestamp="ts")
    assert sorted(row.id for row in state.collect()) == ["a", "b"]
    new = Query(spark, tmp_path / "new", {"horizon": "1 minute", "timestamp": "ts"})
    bootstrap(operator_of(new), state, new.checkpoint)
    assert fed(new, records(["a@70", "b@71", "c@72"])).told() == [["b@71", "c@72"]]
    other = (
        Query(spark, tmp_path / "ntz", {})
        .add("a@1")
        .source()
        .selectExpr("id", "ts::timestamp_ntz AS ts")
    )
    collected(other.dropDuplicates(["id", "ts"]), tmp_path / "ntz" / "checkpoint")
    assert builtin_state(spark, tmp_path / "ntz" / "checkpoint").columns == ["id", "ts"]
    timed = builtin_state(spark, tmp_path / "times" / "checkpoint")
    assert sorted(map(tuple, timed.select("id", "ts").collect())) == sorted(
        zip(
            given["id"].to_pylist(),
            (one.replace(tzinfo=None) for one in given["ts"].to_pylist()),
            strict=True,
        )
    )

    def rejected(reason: str, folder: str = "ids", **options: Any) -> None:
        with pytest.raises(ConfigError, match=reason):
            builtin_state(spark, tmp_path / folder / "checkpoint", **options)

    rejected("Give at=")
    rejected("no delay=", delay="1 hour", at=at)
    rejected("is a column of the ID", at=at, timestamp="ID")
    rejected("not a checkpoint", "missing")
    with pytest.raises(ConfigError, match="with dropDuplicates there"):
        builtin_state(spark, f"file://{tmp_path}/missing", at=at)
    rejected("holds 0 states of dropDuplicates", "new", at=at)
    of_spark(spark, tmp_path / "within", given, within="1 hour")
    rejected("Give delay=", "within", at=at)
    rejected("is not a duration", "within", delay="long")
    forget_commits(tmp_path / "within" / "checkpoint", 0)
    rejected("Micro-batch . of .* is unfinished", "within", delay="1 hour")


OLD = """
spark.read.parquet("landing").write.parquet("orders")
old = orders.withWatermark("placed_at", "7 days").dropDuplicatesWithinWatermark(["order_id"])
writer = old.writeStream.format("noop").option("checkpointLocation", "old-checkpoint")
writer.trigger(availableNow=True).start().awaitTermination()
"""
CONTINUED = """
rows = orders.transform(operator)
for checkpoint in ("checkpoint", "new-checkpoint"):
    writer = rows.writeStream.format("console").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
"""


@needs_spark_4
def test_the_page_s_examples_run(tmp_path: Path) -> None:
    page = snippets("spark/README.md")
    parts = [text for text in page if "bootstrap" in text or "builtin_state" in text]
    program = "\n".join([ORDERS, OLD, *parts, CONTINUED])
    done = python("-c", program, cwd=tmp_path, env={"PYSPARK_PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("rows=7, ids=6, ") == 1
    assert done.stdout.count("rows=6, ids=6, ") == 1
    assert done.stdout.count("Batch: 0") == 2
    assert "|o0" not in done.stdout, "the queries know every order"
    text = (PACKAGE / "spark" / "README.md").read_text()
    (listing,) = re.findall(r"```sh\n(cat .*?)\n```", text)
    read = subprocess.run(
        listing, shell=True, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    (file,) = (tmp_path / "landing").glob("*.parquet")
    assert read.stdout.strip() == f'"path":"file://{file}"'


#: A program that makes the call, in a folder with history.
CALL = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from dedup.tools import bootstrap
from tests.spark.test_bootstrap import OPTIONS, operator_of
from tests.support.quick_spark import QUICK_SESSION
from tests.support.spark_query import Query

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2,2]").config(map=QUICK_SESSION).getOrCreate()
    new = Query(spark, Path(sys.argv[1]), OPTIONS | {"shards": 3})
    history = spark.read.schema(new.schema).parquet(str(new.folder / "history"))
    print(json.dumps(bootstrap(operator_of(new), history, new.checkpoint).ids))
"""


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_kills_of_the_call_lose_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path, fault_folder: Path
) -> None:
    """Each of thirty calls is killed at four steps, one after the other, and then completes."""
    given = tables(5, rows=300)
    steps = ["segment.put.after", "history.shard.after", *STEPS[:2]]
    for number in range(30):
        new = Query(spark, tmp_path / str(number), OPTIONS | {"shards": 3})
        frame_of(new, *given[:4])
        new.add_table(given[4])
        armed_steps = {"DEDUP_FAULTS": str(fault_folder)}
        for step in steps:
            # Two tasks are tried twice each, so three deaths of workers fail the call.
            deaths = 1 if step in STEPS else 3
            for death in range(deaths):
                armed.arm(fault_folder, step, "kill", death)
            with pytest.raises(AssertionError):
                run_python(CALL, new.folder, **armed_steps)
            struck = [name for name, _, _ in armed.fired(fault_folder)].count(step)
            assert struck >= (number + 1) * min(deaths, 2)
            for left in fault_folder.glob(f"{step}~*"):
                left.unlink()
            assert_closed(new)
        assert run_python(CALL, new.folder)
        FreshClocks(*given[:4]).check(given[4:], new.run())
    assert len(armed.fired(fault_folder)) >= 30 * len(steps)
