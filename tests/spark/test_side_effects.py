"""`stable` and `once_per_batch`: what a user's function gets, and how often it is called."""

from __future__ import annotations

import json
import logging
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import split
from dedup.errors import ConfigError, DedupError, SinkError, cause
from dedup.sinks import files_sink, once_per_batch, side_effects, stable
from dedup.storage.root import Root
from dedup.testing import faults
from tests.spark.test_operator_types import typed  # noqa: F401
from tests.support.needs import of_spark_4
from tests.support.object_store import ObjectStore
from tests.support.pages import snippets
from tests.support.processes import python, run_python
from tests.support.sink_campaign import steps
from tests.support.spark_query import Query, forget_commits, roll_back, shown

Function = Callable[[DataFrame, int], None]


class Effects(Query):
    """A query over files, one per micro-batch, whose rows get other values in each run."""

    plan: Callable[[DataFrame], DataFrame] = staticmethod(
        lambda rows: rows.repartition(3).withColumn("luck", F.expr("uuid()"))
    )

    @property
    def at(self) -> str:
        return str(self.folder / "effects")

    def start(self, function: Function) -> None:
        """Take every file, or raise the error that ended the query."""
        writer = self.plan(self.source()).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer.foreachBatch(function).start().awaitTermination()

    def fails(self, function: Function) -> DedupError:
        with pytest.raises(StreamingQueryException) as caught:
            self.start(function)
        error = cause(caught.value)
        assert error is not None
        return error

    def files(self) -> list[str]:
        """Return what is at the path, without the query's ID and random names."""
        found = (path for path in Path(self.at).rglob("*") if path.is_file())
        return sorted(re.sub("-[0-9a-f]{32}", "", "/".join(path.parts[-2:])) for path in found)


class Log:
    """A function that notes the rows of each call, in order and with their partitions."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[Row]]] = []

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        found = rows.withColumn("part", F.spark_partition_id()).collect()
        self.calls.append((batch_id, found))


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Effects:
    return Effects(spark, tmp_path, {}).add(*(f"{name}@1" for name in "abcdefgh")).add("i@2")


def test_a_replay_passes_the_staged_rows_in_their_order(query: Effects) -> None:
    log, plain = Log(), Log()
    query.start(stable(log, at=query.at))
    files = query.files()
    forget_commits(query.checkpoint, 1)
    query.start(stable(log, at=query.at))
    assert query.files() == files, "nothing is staged again"
    forget_commits(query.checkpoint, 1)
    query.start(plain)
    (_, first), (number, second), (replayed, again) = log.calls
    assert sorted(row.id for row in first) == list("abcdefgh")
    assert len({row.part for row in first}) > 1
    assert (number, replayed) == (1, 1)
    assert again == second
    assert plain.calls[0][1] != second, "the query itself gives other values"


def test_a_replay_commits_the_state_of_operators(query: Effects) -> None:
    query.plan = lambda rows: rows.dropDuplicates(["id"]).withColumn("luck", F.expr("uuid()"))
    log = Log()
    query.start(stable(log, at=query.at))
    forget_commits(query.checkpoint, 1)
    query.add("i@3", "a@3", "j@3")
    query.start(stable(lambda rows, n: log(rows.limit(5), n), at=query.at))
    assert [[row.id for row in rows] for _, rows in log.calls[1:]] == [["i"], ["i"], ["j"]]
    assert log.calls[1][1][0].luck == log.calls[2][1][0].luck


def test_files_are_deleted_when_the_next_micro_batch_is_staged(query: Effects) -> None:
    """So are unfinished files of a killed process, which do not count."""
    query.plan = lambda rows: rows.coalesce(1)
    unfinished = {
        "attempts/.0.json.7-ab.tmp", "staged/.0-0-ab.arrow.7-ab.tmp", "manifests/.0.json.7-ab.tmp",
        "manifests/.1.json.7-ab.tmp",
    }  # fmt: skip

    def leave(rows: DataFrame, batch_id: int) -> None:
        (folder,) = Path(query.at).iterdir()
        for name in unfinished if batch_id == 0 else ():
            (folder / name).touch()

    query.start(stable(once_per_batch(leave, at=query.at), at=query.at))
    assert query.files() == [
        "attempts/1.json", "done/1.json", "manifests/.1.json.7-ab.tmp", "manifests/1.json",
        "staged/1-0.arrow",
    ]  # fmt: skip


def test_every_type_arrives_equal(
    spark: SparkSession,
    tmp_path: Path,
    typed: DataFrame,  # noqa: F811
) -> None:
    odd = typed.withColumnsRenamed({"bool": "a.b", "i8": "*", "i16": "ü `x`"})
    query = Effects(spark, tmp_path, {}, schema=odd.schema).add_frame(odd)
    query.plan = lambda rows: rows.withMetadata("id", {"note": 7})
    found: list[Any] = []

    def compare(rows: DataFrame, batch_id: int) -> None:
        found.append((rows.schema, shown(rows.toDF(*typed.columns))))
        raise OSError("run it again")

    for _ in range(2):
        with suppress(StreamingQueryException):
            query.start(stable(compare, at=query.at))
    schema = query.plan(query.source()).schema
    assert schema["id"].metadata == {"note": 7}
    assert found == [(schema, shown(typed))] * 2


@pytest.mark.parametrize("sql", ["null", of_spark_4("make_interval(1, 2)"), "interval 1 year"])
def test_types_that_spark_cannot_pass_to_python_are_refused(query: Effects, sql: str) -> None:
    query.plan = lambda rows: rows.selectExpr("id", f"{sql} AS c")
    log = Log()
    error = query.fails(stable(log, at=query.at))
    assert "Column 'c' is" in str(error)
    assert (type(error), log.calls, query.files()) == (ConfigError, [], [])


@pytest.mark.parametrize("step", steps("stable."))
def test_a_fault_at_any_step_of_staging_changes_no_row(
    query: Effects, fault_folder: Path, armed: Path, step: str
) -> None:
    """Spark retries a killed task. If the driver's part fails, the query ends and restarts."""
    folder, kind = (fault_folder, "kill") if step == "stable.staged" else (armed, "raise")
    faults.arm(folder, step, kind)
    log = Log()
    with suppress(StreamingQueryException):
        query.start(stable(log, at=query.at))
    query.start(stable(log, at=query.at))
    assert len(faults.fired(folder)) == 1
    by_batch = dict(log.calls)
    assert [len(by_batch[n]) for n in sorted(by_batch)] == [8, 1]
    assert all(rows == by_batch[number] for number, rows in log.calls)
    assert len(log.calls) == (3 if step == "stable.called" else 2)


@pytest.mark.parametrize(
    ("step", "calls", "repeated"),
    [("once.begun", 2, 1), ("once.called", 3, 1), ("once.done", 2, 0)],
)
def test_a_call_repeated_after_a_fault_is_counted_and_logged(
    query: Effects, armed: Path, caplog: pytest.LogCaptureFixture, step: str, calls: int,
    repeated: int,
) -> None:  # fmt: skip
    query.plan = lambda rows: rows.dropDuplicates(["id"])
    log = Log()
    faults.arm(armed, step, "raise")
    with pytest.raises(StreamingQueryException):
        query.start(once_per_batch(log, at=query.at))
    function = once_per_batch(log, at=query.at)
    with caplog.at_level(logging.WARNING, "dedup"):
        query.start(function)
    assert len(faults.fired(armed)) == 1
    assert [number for number, _ in log.calls] == [0] * (calls - 1) + [1]
    assert function.calls_repeated == repeated
    told = [each.getMessage() for each in caplog.records if each.name == "dedup"]
    assert len(told) == repeated
    assert all("calls its function again for micro-batch 0" in text for text in told)


def test_a_checkpoint_that_is_older_than_the_files_is_refused(query: Effects) -> None:
    query.add("j@3")
    log = Log()
    query.start(stable(once_per_batch(log, at=query.at), at=query.at))
    roll_back(query.checkpoint, 1)
    for make in (stable, once_per_batch):
        error = query.fails(make(log, at=query.at))
        assert (type(error), error.remedy) == (SinkError, "sink-older-checkpoint")
        assert "is at micro-batch 1, and the newest files of " in str(error)
    assert len(log.calls) == 3


def test_a_process_that_wakes_after_its_successor_calls_nothing(
    query: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It freezes before it writes, and its successor begins the next micro-batch."""
    log, met = Log(), []

    def successor(write: Callable[[Root], None]) -> None:
        if not met:
            met.append(write)
            query_id = json.loads((query.checkpoint / "metadata").read_text())["id"]
            write(Root(f"{query.at}/{query_id}"))

    def point(name: str, path: object = None) -> None:
        if name == "stable.manifest.before":
            successor(lambda root: root.put_bytes("manifests/1.json", b"of the successor"))

    monkeypatch.setattr("dedup.errors.faults.point", point)
    error = query.fails(stable(log, at=query.at))
    assert (error.remedy, log.calls, len(met)) == ("sink-older-checkpoint", [], 1)
    query.folder, met[:] = query.folder / "again", []
    record = side_effects._record

    def late(batch_id: int) -> bytes:
        successor(lambda root: root.put_bytes("attempts/1.json", b"of the successor"))
        return record(batch_id)

    monkeypatch.setattr(side_effects, "_record", late)
    error = query.fails(once_per_batch(log, at=query.at))
    assert (error.remedy, log.calls, len(met)) == ("sink-older-checkpoint", [], 1)


def test_two_functions_of_a_query_cannot_share_their_files(query: Effects) -> None:
    log = Log()

    def twice(rows: DataFrame, batch_id: int) -> None:
        stable(log, at=query.at)(rows, batch_id)
        stable(log, at=f"{query.at}/")(rows.limit(1), batch_id)

    assert "was called twice for micro-batch 0" in str(query.fails(twice))
    assert len(log.calls) == 1


def test_two_queries_can_share_a_folder(
    spark: SparkSession, query: Effects, tmp_path: Path
) -> None:
    other = Effects(spark, tmp_path / "other", {}).add("x@1")
    log = Log()
    query.start(stable(log, at=query.at))
    other.start(stable(log, at=query.at))
    assert [row.id for row in log.calls[-1][1]] == ["x"]


def test_a_call_outside_of_a_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for make in (stable, once_per_batch):
        with pytest.raises(ConfigError, match="does not know its query") as caught:
            make(Log(), at=str(tmp_path))(spark.range(1), 0)
        assert caught.value.remedy == "foreach-batch-threads"
        with pytest.raises(ConfigError, match="ftp"):
            make(Log(), at="ftp://server/x")


def test_an_unfinished_micro_batch_keeps_its_columns(query: Effects) -> None:
    query.plan = lambda rows: rows.select("id", "src")

    def fail(rows: DataFrame, batch_id: int) -> None:
        raise OSError("run it again")

    with pytest.raises(StreamingQueryException):
        query.start(stable(fail, at=query.at))
    query.plan = lambda rows: rows.select("src", "id")
    error = query.fails(stable(Log(), at=query.at))
    assert type(error) is ConfigError
    assert "with the columns ['id', 'src'], and the query now has ['src', 'id']" in str(error)


def test_a_damaged_file_stops_the_query_and_can_be_staged_again(query: Effects) -> None:
    log = Log()
    query.start(stable(log, at=query.at))
    forget_commits(query.checkpoint, 1)
    (file,) = Path(query.at).rglob("1-*.arrow")
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        schema = stream.schema
    with pa.ipc.new_stream(str(file), schema):
        pass  # only the content hash shows that rows are missing
    error = query.fails(stable(log, at=query.at))
    (manifest,) = Path(query.at).rglob("manifests/1.json")
    assert f"Delete the manifest of the micro-batch, if {manifest} exists" in str(error)
    assert (type(error), len(log.calls)) == (SinkError, 2)
    manifest.unlink()
    accept_loss(query.fails(stable(log, at=query.at)))
    query.start(stable(log, at=query.at))
    assert [row.id for row in log.calls[2][1]] == ["i"]


# --- a folder that loses files


def accept_loss(error: DedupError) -> None:
    """Delete what the error tells the user to delete."""
    assert (type(error), error.remedy) == (SinkError, "sink-markers")
    found = re.search(r"delete the folder file:(\S+), and start the query again", str(error))
    assert found, error
    shutil.rmtree(found[1])


def everything(at: Path) -> None:
    shutil.rmtree(at)


def all_files(at: Path) -> None:
    for path in at.rglob("*.*"):
        path.unlink()


def files_of_the_newest(at: Path) -> None:
    """Only an earlier micro-batch stays, as an expiry rule may leave it."""
    for path in [*at.rglob("1.json"), *at.rglob("1-*.arrow")]:
        path.rename(path.with_name(path.name.replace("1", "0", 1)))


@pytest.mark.parametrize(
    ("lose", "is_replay"), [(everything, True), (all_files, False), (files_of_the_newest, True)]
)
@pytest.mark.parametrize("make", [stable, once_per_batch])
def test_a_folder_that_has_lost_files_stops_the_query(
    query: Effects, make: Any, lose: Callable[[Path], None], is_replay: bool
) -> None:
    log = Log()
    query.start(make(log, at=query.at))
    if is_replay:
        forget_commits(query.checkpoint, 1)
    else:
        query.add("j@3")
    lose(Path(query.at))
    error = query.fails(make(log, at=query.at))
    assert f"{make.__name__}(..., at='{query.at}') has begun micro-batch 1, and" in str(error)
    newest = "micro-batch 0 is the newest" if lose is files_of_the_newest else "no micro-batch"
    assert f"what it knew of it is gone: {newest} is there" in str(error)
    assert len(log.calls) == 2
    accept_loss(error)
    query.start(make(log, at=query.at))
    assert [number for number, _ in log.calls] == [0, 1, 1 if is_replay else 2]


@pytest.mark.parametrize(
    ("make", "step"), [(stable, "stable.called"), (once_per_batch, "once.called")]
)
def test_lost_files_stop_the_query_once_the_function_may_have_run(
    query: Effects, armed: Path, make: Any, step: str
) -> None:
    log = Log()
    faults.arm(armed, step, "raise")
    with pytest.raises(StreamingQueryException):
        query.start(make(log, at=query.at))
    assert len(faults.fired(armed)) == 1
    everything(Path(query.at))
    accept_loss(query.fails(make(log, at=query.at)))
    assert len(log.calls) == 1


def test_the_record_of_a_finished_call_prevents_another(query: Effects) -> None:
    log = Log()
    query.start(once_per_batch(log, at=query.at))
    forget_commits(query.checkpoint, 1)
    everything(next(Path(query.at).glob("*/attempts")))
    query.start(once_per_batch(log, at=query.at))
    assert [number for number, _ in log.calls] == [0, 1]


@pytest.mark.parametrize("make", [stable, once_per_batch])
def test_a_function_added_to_a_query_later_is_called(query: Effects, make: Any) -> None:
    """It may stand beside another function, or join in a micro-batch that has begun."""
    first, second = Log(), Log()
    query.start(make(first, at=query.at))
    query.add("j@3")

    def both(rows: DataFrame, batch_id: int) -> None:
        make(first, at=query.at)(rows, batch_id)
        make(second, at=f"{query.at}-2")(rows, batch_id)

    query.start(both)
    forget_commits(query.checkpoint, 2)
    query.start(make(second, at=f"{query.at}-2"))
    assert [number for number, _ in first.calls] == [0, 1, 2]
    assert {number for number, _ in second.calls} == {2}


def test_a_folder_moved_with_its_files_still_prevents_repeated_calls(query: Effects) -> None:
    log = Log()
    query.start(stable(once_per_batch(log, at=query.at), at=query.at))
    Path(query.at).rename(f"{query.at}-2")
    forget_commits(query.checkpoint, 1)
    query.start(once_per_batch(log, at=f"{query.at}-2"))
    assert [number for number, _ in log.calls] == [0, 1]


@pytest.mark.parametrize("make", [stable, once_per_batch])
def test_a_function_whose_folder_moved_without_its_files_logs_a_warning(
    query: Effects, caplog: pytest.LogCaptureFixture, make: Any
) -> None:
    """A relative path has the same effect in another working directory."""
    log = Log()
    with caplog.at_level(logging.WARNING, "dedup"):
        query.start(make(log, at=query.at))
        assert caplog.messages == []
        forget_commits(query.checkpoint, 1)
        query.start(make(log, at=f"{query.at}-2"))
    [said] = caplog.messages
    assert f"at='{query.at}-2') is new, and a function with another path has begun" in said
    assert [number for number, _ in log.calls] == [0, 1, 1]


@pytest.mark.slow
def test_each_verdict_can_have_stable_rows(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, {"horizon": "1 day", "verdict": "verdict"})
    query.add("a@1", "a@2", "b@1")
    marked = query.result().withColumn("luck", F.expr("uuid()"))
    log, failed = Log(), [OSError("run it again")]
    published = files_sink(str(tmp_path / "out"), checkpoint=str(query.checkpoint))

    def copies(rows: DataFrame, batch_id: int) -> None:
        log(rows, batch_id)

    def unique(rows: DataFrame, batch_id: int) -> None:
        log(rows, batch_id)
        published(rows, batch_id)
        if failed:
            raise failed.pop()

    for run in range(2):
        writer = split(
            marked,
            unique=stable(unique, at=str(tmp_path / "one")),
            duplicate=stable(copies, at=str(tmp_path / "two")),
        ).option("checkpointLocation", str(query.checkpoint))
        running = writer.trigger(availableNow=True).start()
        with suppress(StreamingQueryException):
            running.awaitTermination()
            assert run == 1
    assert [sorted(row.id for row in rows) for _, rows in log.calls] == [["a"], ["a", "b"]] * 2
    assert log.calls[:2] == log.calls[2:]
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row.luck for row in found} == {row.luck for row in log.calls[1][1]}


# --- the page, and processes that are killed


class Service:
    """A mail server, and a payment service that knows keys."""

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.charges: dict[str, tuple[str, float]] = {}

    def send(self, to: str, text: str) -> None:
        self.mails.append(text)

    def charge(self, order_id: str, amount: float, *, idempotency_key: str) -> None:
        self.charges.setdefault(idempotency_key, (order_id, amount))


def program(page: list[str], part: str, folder: Path) -> str:
    (found,) = (text for text in page if part in text)
    assert "/data/" in found
    return found.replace("/data/", f"{folder}/")


@pytest.mark.slow
def test_the_programs_of_the_page_survive_a_crash(
    spark: SparkSession, tmp_path: Path, armed: Path
) -> None:
    made = [(f"o{n}", n * 1.5, str(tmp_path / f"{n}.txt")) for n in range(4)]
    for order_id, _, path in made:
        Path(path).write_text(f"letter of {order_id}")
    columns = "order_id string, amount double, path string"
    spark.createDataFrame(made, columns).coalesce(2).write.parquet(str(tmp_path / "landing"))
    orders = spark.readStream.schema(columns).parquet(str(tmp_path / "landing"))
    service, counts, page = Service(), Log(), snippets("sinks/SIDE-EFFECTS.md")
    names: dict[str, Any] = {
        "F": F, "stable": stable, "spark": spark, "orders": orders, "payments": service,
        "mail": service, "publish_counts": counts,
    }  # fmt: skip

    def run(text: str) -> None:
        exec(text, names)
        for running in spark.streams.active * 2:  # one may read what another writes
            running.processAllAvailable()
        for running in spark.streams.active:
            running.stop()

    def survives(part: str, step: str) -> None:
        faults.arm(armed, step, "raise", len(faults.fired(armed)))
        with pytest.raises(StreamingQueryException):
            run(program(page, part, tmp_path))
        run(program(page, part, tmp_path))

    survives("publish_and_delete", "stable.called")
    found = spark.read.parquet(str(tmp_path / "letters")).collect()
    assert {row.order_id: row.content for row in found} == {
        order_id: f"letter of {order_id}" for order_id, *_ in made
    }
    assert not list(tmp_path.glob("*.txt"))
    survives("idempotency_key", "stable.called")
    assert sorted(service.charges.values()) == [made_row[:2] for made_row in made]
    survives("once_per_batch", "once.called")
    assert service.mails == ["4 orders in micro-batch 0"] * 2
    assert names["notify_once"].calls_repeated == 1
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    run(program(page, "publish_counts", tmp_path))
    newest = {row.prize: row["count"] for _, rows in counts.calls for row in rows}
    assert sum(newest.values()) == 4
    assert len(faults.fired(armed)) == 3


#: Notes each call, and its rows, in a file.
_PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
from dedup.sinks import once_per_batch, stable
folder, kind = Path(sys.argv[1]), sys.argv[2]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
def note(rows, batch_id):
    with (folder / "calls").open("a") as log:
        print(json.dumps([batch_id, [row.luck for row in rows.collect()]]), file=log)
function = note if kind == "stable" else once_per_batch(note, at=str(folder / "at"))
one_by_one = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
query = (
    one_by_one.parquet(str(folder / "in")).withColumn("luck", F.expr("uuid()"))
    .writeStream.foreachBatch(stable(function, at=str(folder / "at")))
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(json.dumps(getattr(function, "calls_repeated", 0)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "calls", "repeated"),
    [("stable.manifest.before", 2, 0), ("stable.manifest.after", 2, 0), ("stable.called", 3, 0),
     ("once.begun", 2, 1), ("once.called", 3, 1), ("once.done", 2, 0)],
)  # fmt: skip
def test_a_process_killed_at_any_step_repeats_calls_with_the_same_rows(
    tmp_path: Path, step: str, calls: int, repeated: int
) -> None:
    (tmp_path / "in").mkdir()
    for n in range(2):
        pq.write_table(pa.table({"id": range(5 * n, 5 * n + 5)}), tmp_path / f"in/{n}.parquet")
    armed = tmp_path / "faults"
    armed.mkdir()
    faults.arm(armed, step, "kill")
    arguments = ("-c", _PROGRAM, tmp_path, step.partition(".")[0])
    killed = python(*arguments, env={faults.VARIABLE: str(armed)})
    assert (killed.returncode, len(faults.fired(armed))) == (-signal.SIGKILL, 1), killed.stderr
    assert run_python(*arguments[1:]) == repeated
    found = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [number for number, _ in found] == [0] * (calls - 1) + [1]
    by_batch = dict(found)
    assert all(len(luck) == 5 and luck == by_batch[number] for number, luck in found)


@pytest.mark.slow
def test_files_of_stable_can_be_in_an_object_store(
    query: Effects, store: ObjectStore, tmp_path: Path
) -> None:
    at, log = store.uri(f"effects-{tmp_path.name}"), Log()
    function = stable(once_per_batch(log, at=at), at=at)
    assert "any:any" not in str(function)
    query.start(function)
    forget_commits(query.checkpoint, 1)
    query.start(stable(log, at=at))
    assert log.calls[1] == log.calls[2]
    (folder,) = {each.name.partition("/")[0] for each in Root(at).list()}
    kept = {each.name.removeprefix(f"{folder}/").partition("/")[0] for each in Root(at).list()}
    assert kept == {"attempts", "done", "manifests", "staged"}
    Root(at).delete([each.name for each in Root(at).list()])
    forget_commits(query.checkpoint, 1)
    accept_loss(query.fails(stable(log, at=at)))
    accept_loss(query.fails(once_per_batch(log, at=at)))
    assert len(log.calls) == 3
