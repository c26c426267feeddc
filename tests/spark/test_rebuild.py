"""`rebuild`: a query continues in a new catalog and checkpoint as if nothing had happened."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup import check_query, dedup_by_id
from dedup.catalog.certificate import certificate_of
from dedup.errors import CatalogError, ConfigError, cause, faults
from dedup.storage.root import Root
from dedup.testing import faults as armed
from dedup.tools import rebuild, reopen, verify
from dedup.tools.repair import opening
from dedup.tools.repair.id_text import id_key
from tests.support.cut import cut_at
from tests.support.object_store import ObjectStore
from tests.support.oracle import Oracle
from tests.support.processes import dedup
from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, query, tables
from tests.support.spark_query import Query, Run, forget_commits
from tests.support.state_stores import ROCKSDB, configured

PARTITIONS = "spark.sql.shuffle.partitions"


def successor(old: Query, folder: str, **options: Any) -> Query:
    """Return a query in another folder, that is not rebuilt there yet."""
    return Query(old.spark, old.folder.parent / folder, old.options | options)


def moved(old: Query, folder: str, **options: Any) -> Query:
    new = successor(old, folder, **options)
    rebuild(old.catalog, old.checkpoint, new.catalog, new.checkpoint, **options)
    return new


def whole(*runs: Run) -> Run:
    return Run(dict(enumerate(rows for run in runs for _, rows in sorted(run.rows.items()))))


def fed(made: Query, given: list[pa.Table]) -> Run:
    for table in given:
        made.add_table(table)
    return made.run()


def test_queries_judge_as_one_query_that_was_never_rebuilt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Other shards, other state partitions and another state store, each time."""
    given = tables(5, rows=1500)
    old = query(spark, tmp_path / "a", given[:2], shards=2)
    runs = [old.run()]
    with configured(spark, ROCKSDB | {PARTITIONS: "1"}):
        new = moved(old, "b", shards=3)
        assert certificate_of(Root(new.catalog), query_id(new)).shards == 3
        assert verify(new.catalog, query=query_id(new)).ok
        runs.append(fed(new, given[2:4]))
    newest = moved(new, "c", shards=2)
    runs.append(fed(newest, given[4:]))
    assert all(run.metrics[-1].segments for run in runs)
    assert query_id(old) == query_id(newest)
    Oracle(HORIZON_S, LATENESS_S).check(given, whole(*runs))


def checked(made: Query) -> str:
    """Return what `check_query` says of a checkpoint."""
    operator = dedup_by_id("id", catalog=str(made.catalog), **made.options)
    findings = check_query(made.source(), operator, checkpoint=str(made.checkpoint))
    return next(finding.evidence for finding in findings if finding.rule == "checkpoint")


def query_id(made: Query) -> str:
    name: str = json.loads((made.checkpoint / "metadata").read_text())["id"]
    return name


def key_of(name: str) -> bytes:
    return id_key([("id", "string")], [name])[0]


STEPS = [
    "rebuild.begun", "segment.put.after", "rebuild.written", "rebuild.closed", "rebuild.checked",
    "rebuild.opened",
]  # fmt: skip


def continued(old: Query, new: Query, given: list[pa.Table], step: str) -> list[Run]:
    """Start both queries after a call was cut off at a step, complete it, and feed the new one."""
    runs = []
    for made in (old, new):
        made.add_table(given[0])
        try:
            runs.append(made.run())
        except StreamingQueryException as failed:
            error = cause(failed)
            assert isinstance(error, ConfigError)
            assert error.remedy == "rebuilt-elsewhere"
    assert len(runs) == (0 if step in ("rebuild.closed", "rebuild.checked") else 1)
    if step == "rebuild.opened":
        with pytest.raises(ConfigError, match="It continues with checkpoint"):
            moved(old, new.folder.name, shards=3)
        return [*runs, fed(new, given[1:])]
    if step == "rebuild.closed":
        with pytest.raises(ConfigError, match=r"micro-batch \d+ of .* was planned.*--reopen"):
            moved(old, new.folder.name, shards=3)
        reopen(old.catalog)
        runs.append(old.run())
    (new.input / "00000.parquet").unlink()
    new.added = 0
    moved(old, new.folder.name, shards=3)
    return [*runs, fed(new, given[len(runs) :])]


def cut_off(
    monkeypatch: pytest.MonkeyPatch, step: str, old: Query, folder: str, **options: Any
) -> None:
    """Rebuild a query, and end the call at a step."""
    with cut_at(monkeypatch, step):
        moved(old, folder, **options)


def test_damage_that_a_repeated_call_finds_opens_no_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = query(spark, tmp_path / "old", tables(2, rows=1500), shards=2)
    old.run()
    cut_off(monkeypatch, "rebuild.checked", old, "new")
    segment = next(old.catalog.rglob("*.sst"))
    content = segment.read_bytes()
    segment.write_bytes(content[:100] + bytes(100) + content[200:])
    with pytest.raises(CatalogError, match="damaged"):
        moved(old, "new")
    for made in (old, successor(old, "new")):
        with pytest.raises(StreamingQueryException, match="rebuilt-elsewhere"):
            made.add("new@1").run()
    segment.write_bytes(content)
    assert moved(old, "new").run().metrics


@pytest.mark.parametrize("step", STEPS)
def test_wherever_it_is_cut_off_one_query_starts_at_most_and_it_can_be_repeated(
    spark: SparkSession, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tables(5, rows=200)
    old = query(spark, tmp_path / "old", given[:3], shards=2)
    runs = [old.run()]
    cut_off(monkeypatch, step, old, "new", shards=3)
    runs += continued(old, successor(old, "new", shards=3), given[3:], step)
    Oracle(HORIZON_S, LATENESS_S).check(given, whole(*runs))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_of_the_command_lose_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path, fault_folder: Path
) -> None:
    """The command is killed 30 times, and each new query is rebuilt once more."""
    steps = [*STEPS, "segment.chunk", "sidecar.put.after"]
    given = tables(92, rows=60)
    made = query(spark, tmp_path / "0", given[:2], shards=3)
    runs = [made.run()]
    for number in range(30):
        step = steps[number % len(steps)]
        new = successor(made, str(number + 1))
        armed.arm(fault_folder, step, "kill", number)
        places = made.catalog, "--checkpoint", made.checkpoint, "--to", new.catalog
        more = "--new-checkpoint", new.checkpoint, "--shards", "3"
        done = dedup("catalog", "rebuild", *places, *more, DEDUP_FAULTS=str(fault_folder))
        assert done.returncode == -signal.SIGKILL, done.stdout
        assert len(armed.fired(fault_folder)) == number + 1
        first = 3 * number + 2
        runs += continued(made, new, given[first : first + 3], step)
        made = new
    Oracle(HORIZON_S, LATENESS_S).check(given, whole(*runs))


def test_a_query_that_runs_fails_at_its_next_micro_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = query(spark, tmp_path / "old", tables(2, rows=50))
    writer = old.result().writeStream.option("checkpointLocation", str(old.checkpoint))
    running = writer.foreachBatch(lambda rows, _: rows.foreach(lambda row: None)).start()
    running.processAllAvailable()
    moved(old, "new")
    old.add("late@1")
    with pytest.raises(StreamingQueryException) as failed:
        running.processAllAvailable()
    assert "was rebuilt. It continues with" in str(cause(failed.value))


def test_reopened_the_old_query_continues_and_the_new_one_stops(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = query(spark, tmp_path / "old", tables(2, rows=50))
    old.run()
    new = moved(old, "new")
    with pytest.raises(ConfigError, match="continues with checkpoint"):
        moved(old, "third")
    with pytest.raises(ConfigError, match="continues with checkpoint"):
        checked(old)
    assert f"Query {query_id(old)} begins." in checked(successor(old, "new"))
    assert reopen(old.catalog).checkpoint == str(new.checkpoint)
    with pytest.raises(StreamingQueryException, match="cut off or given up"):
        fed(new, tables(1, rows=50))
    assert fed(old, tables(1, rows=50)).metrics
    with pytest.raises(ConfigError, match="was not rebuilt elsewhere"):
        reopen(old.catalog)
    moved(old, "new")


def test_a_query_moves_to_an_object_store_and_back(
    spark: SparkSession, tmp_path: Path, store: ObjectStore
) -> None:
    given = tables(5, rows=700)
    old = query(spark, tmp_path / "old", given[:2], shards=2)
    runs = [old.run()]
    place = store.uri(tmp_path.name)
    new = successor(old, "new", catalog=place)
    rebuild(old.catalog, old.checkpoint, place, new.checkpoint)
    runs.append(fed(new, given[2:4]))
    back = successor(old, "back")
    rebuild(place, new.checkpoint, back.catalog, back.checkpoint, shards=3)
    with pytest.raises(ConfigError, match="does not hold the rebuilt query"):
        reopen(place, new_root=tmp_path)
    runs.append(fed(successor(old, "back", shards=3), given[4:]))
    Oracle(HORIZON_S, LATENESS_S).check(given, whole(*runs))
    with pytest.raises(StreamingQueryException, match=r"was rebuilt\. It continues with"):
        fed(new, given[:1])
    with pytest.raises(ConfigError, match=r"was rebuilt once more, from .* Reopen that"):
        reopen(old.catalog, new_root=place)
    reopen(place)
    reopen(old.catalog, new_root=place)
    with pytest.raises(StreamingQueryException, match="cut off or given up"):
        new.run()


def test_nothing_is_left_of_the_ids_to_leave_out(spark: SparkSession, tmp_path: Path) -> None:
    given = tables(4, rows=300)
    old = query(spark, tmp_path / "old", given)
    old.run()
    again = given[3].slice(0, 20)
    chosen = set(again["id"].to_pylist()[:10])
    (tmp_path / "ids").write_text("".join(f"{name}\n" for name in [*sorted(chosen), "unknown"]))
    new = successor(old, "new")
    done = rebuild(
        old.catalog, old.checkpoint, new.catalog, new.checkpoint, without=tmp_path / "ids"
    )
    assert (done.left_out, done.unknown) == (len(chosen), 1)
    content = b"".join(
        path.read_bytes()
        for place in (new.catalog, new.checkpoint)
        for path in place.rglob("*")
        if path.is_file()
    )
    assert not [name for name in chosen if name.encode() in content]
    found = {name for name in set(again["id"].to_pylist()) if key_of(name) in content}
    assert found == set(again["id"].to_pylist()) - chosen
    rows = fed(new, [again]).all_rows()
    passed = {row["id"] for row in rows if row["verdict"] != "duplicate"}
    assert passed == chosen


def test_ids_of_several_columns_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    old = Query(spark, tmp_path / "old", {"horizon": "1 day", "timestamp": "ts"}, id=["id", "at"])
    old.add("a@1", "a@2").add("-@3").run()
    (tmp_path / "ids").write_text('["a", "2"]\n["x", "NULL"]\n')
    new = Query(spark, tmp_path / "new", old.options, id=old.id)
    places = old.catalog, old.checkpoint, new.catalog, new.checkpoint
    done = rebuild(*places, without=tmp_path / "ids")
    assert (done.ids, done.left_out, done.unknown) == (2, 1, 1)
    assert new.add("a@1", "a@2").run().told() == [["a@2"]]


def test_what_cannot_be_rebuilt_is_rejected_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = query(spark, tmp_path / "old", tables(2, rows=1500), shards=2)
    old.run()
    new = successor(old, "new")

    def rejected(reason: str, error: type[Exception] = ConfigError, **options: Any) -> None:
        places = {"new_root": new.catalog, "new_checkpoint": new.checkpoint} | options
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(error, match=reason):
            rebuild(old.catalog, old.checkpoint, **places)
        assert sorted(tmp_path.rglob("*")) == before

    rejected("shards", shards=0)
    rejected("is inside", new_checkpoint=old.checkpoint / "new")
    rejected("Cannot read", without=tmp_path / "missing")
    rejected("already holds query", new_root=old.catalog)
    rejected("is not empty", new_checkpoint=old.input)
    forget_commits(old.checkpoint, 1)
    rejected("Micro-batch 1 of .* is unfinished")
    old.run()
    segment = next(old.catalog.rglob("*.sst"))
    content = segment.read_bytes()
    segment.unlink()
    rejected("missing or truncated", CatalogError)
    segment.write_bytes(content[:100] + bytes(100) + content[200:])
    with pytest.raises(CatalogError, match="damaged"):
        rebuild(old.catalog, old.checkpoint, new.catalog, new.checkpoint)
    assert not list(new.checkpoint.rglob("*.*")), "what was written is deleted again"
    segment.write_bytes(content)
    rebuild(old.catalog, old.checkpoint, new.catalog, new.checkpoint)


def test_the_command_prints_what_to_do_next(spark: SparkSession, tmp_path: Path) -> None:
    old = Query(spark, tmp_path / "old", {"horizon": "1 day"}).add("a@1").add("b@2")
    old.run()
    (tmp_path / "ids").write_text("a\n")
    new = successor(old, "new")
    done = dedup(
        "catalog", "rebuild", old.catalog, "--checkpoint", old.checkpoint, "--to", new.catalog,
        "--new-checkpoint", new.checkpoint, "--shards", "1", "--without", tmp_path / "ids",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, *steps = done.stdout.splitlines()
    assert first == "Rebuilt: 1 IDs in 1 segments of 1 shards, as of micro-batch 1."
    assert second == "Left out: 1 IDs. Not remembered anyway: 0."
    text = " ".join(" ".join(steps).split())
    assert f"FromCheckpoint('{old.checkpoint}')" in text
    assert '{"logOffset":1}' in text
    assert f"3. Start the query with checkpoint {new.checkpoint} and catalog {new.catalog}" in text
    assert text.endswith(f"{old.catalog / query_id(old)}, {old.checkpoint}")
    assert new.add("a@1", "b@2").run().told() == [["a@1"]]
    done = dedup("catalog", "rebuild", old.catalog, "--reopen")
    assert done.stdout == (
        f"Open again. Delete {new.checkpoint} and {new.catalog / query_id(old)}.\n"
    )


def test_a_query_with_another_state_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    old = Query(spark, tmp_path / "old", OPTIONS | {"verdict": None})
    old.then = lambda rows: rows.withWatermark("ts", "1 hour").dropDuplicates(["n"])
    old.add("a@1").run()
    with pytest.raises(ConfigError, match="has 2 operators with a state"):
        moved(old, "new")


def test_a_query_that_commits_while_it_is_read_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = query(spark, tmp_path / "old", tables(2, rows=50))
    old.run()
    read = opening.rows_of_state

    def and_run(*given: Any) -> Any:
        rows = read(*given)
        old.add("new@1").run()
        return rows

    monkeypatch.setattr(opening, "rows_of_state", and_run)
    with pytest.raises(ConfigError, match="ran while it was read"):
        moved(old, "new")
    monkeypatch.undo()
    assert old.add("new@1").run().metrics[-1].duplicate == 1
    assert moved(old, "new").add("new@1").run().metrics[-1].duplicate == 1


def test_one_micro_batch_is_too_few(spark: SparkSession, tmp_path: Path) -> None:
    old = Query(spark, tmp_path / "old", {"horizon": "1 day"}).add("a@1")
    old.run()
    with pytest.raises(ConfigError, match="has committed 1 micro-batches"):
        moved(old, "new")


def test_the_old_checkpoint_finds_no_state_in_the_new_catalog(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = query(spark, tmp_path / "old", tables(2, rows=50), shards=2)
    old.run()
    new = moved(old, "new", shards=3)
    new.add("a@200").run()
    old.options = new.options | {"catalog": str(new.catalog)}
    with pytest.raises(StreamingQueryException, match="was rebuilt for another checkpoint"):
        old.add("a@200").run()
    with pytest.raises(ConfigError, match="does not belong to the catalog"):
        verify(new.catalog, old.checkpoint)


def test_of_two_calls_at_once_one_wins(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = query(spark, tmp_path / "old", tables(2, rows=50))
    old.run()

    def other(name: str, path: object = None) -> None:
        if name == "rebuild.written":
            monkeypatch.undo()
            moved(old, "other")

    monkeypatch.setattr(faults, "point", other)
    with pytest.raises(ConfigError, match=f"continues with checkpoint {tmp_path}/other"):
        moved(old, "new")
    with pytest.raises(StreamingQueryException, match="cut off or given up"):
        successor(old, "new").add("a@1").run()
    assert successor(old, "other").add("a@1").run().metrics
