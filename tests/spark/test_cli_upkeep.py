"""`dedup catalog vacuum` and `adopt`: cleaning up, and going on without the old checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup import tools
from dedup.catalog.backup import read_adopted
from dedup.catalog.gc.runs import list_runs
from dedup.catalog.layout import segment_name, shard_path
from dedup.cli.failures import DAMAGE, OK, USAGE
from dedup.errors import ConfigError
from dedup.spark.driver import build
from dedup.storage.root import Root
from dedup.tools.repair.opening import read_checkpoint
from tests.support.cli_job import catalog_command as command
from tests.support.small_state import HORIZON_S, query, tables
from tests.support.spark_query import Query, Run


def query_id(made: Query) -> str:
    found: str = json.loads((made.checkpoint / "metadata").read_text())["id"]
    return found


def vacuum(made: Query, **options: Any) -> dict[str, Any]:
    given = {"older_than": "0 seconds", **options}
    return tools.vacuum(str(made.catalog), str(made.checkpoint), **given).to_json()


#: Eight micro-batches are run once for all the tests that continue from them.
GIVEN = tables(11)


@pytest.fixture(scope="module")
def ran(shared_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Query, Run]:
    made = query(shared_spark.newSession(), tmp_path_factory.mktemp("ran"), GIVEN[:8])
    return made, made.run()


@pytest.fixture
def old(ran: tuple[Query, Run], tmp_path: Path) -> Query:
    """The query at rest, for tests that harm it."""
    return ran[0].copy(tmp_path / "old")


def successor(old: Query, folder: Path, given: list[pa.Table]) -> Query:
    """A query on the catalog of an old one, with its own input."""
    made = query(old.spark, folder, given, catalog=str(old.catalog))
    made.catalog = old.catalog
    return made


# --- adopt


def test_an_adopted_catalog_continues_without_its_lost_checkpoint(
    ran: tuple[Query, Run], old: Query, tmp_path: Path
) -> None:
    """Nothing is lost. Only IDs that the lost checkpoint alone held are emitted again."""
    before = ran[1]
    last = before.metrics[-1]
    name = query_id(old)
    held = read_checkpoint(Root(old.catalog), str(old.checkpoint), old.spark)
    shutil.rmtree(old.checkpoint)
    new = tmp_path / "new"
    code, body = command("adopt", str(old.catalog), "--checkpoint", str(new / "checkpoint"))
    assert (code, body["query_id"], body["shards"], body["unknown_shards"]) == (OK, name, 2, 0)
    assert last.live_ids // 2 < body["ids"] <= last.live_ids
    # Two micro-batches come again, then new ones.
    again = successor(old, new, GIVEN[6:])
    run = again.run()
    assert query_id(again) == name
    assert run.metrics[0].live_ids > body["ids"]
    assert (run.metrics[0].branches, run.metrics[-1].branches) == (0, 0)
    watermark = run.metrics[0].late_watermark_ms
    assert watermark is not None
    # The copy is as of the micro-batch before the last.
    assert watermark >= (before.metrics[-2].late_watermark_ms or 0)
    emitted = [row for row in before.all_rows() if row["verdict"] != "duplicate"]
    known = {row["id"] for row in emitted}
    unknown = newest_ids(before, tails=sum(len(state.tail) for state in held.states.values()))
    for number in (0, 1):
        rows = run.rows[number]
        assert len(rows) == 800
        for row in rows:
            if row["verdict"] == "unique" and row["id"] in known:
                assert row["id"] in unknown
    repeated = [row for n in (0, 1) for row in run.rows[n] if row["verdict"] == "duplicate"]
    own = 1600 - len({row["id"] for n in (0, 1) for row in run.rows[n]})
    assert len(repeated) > own + 100, "many are known from before"
    nothing_lost(emitted, run)


def newest_ids(old: Run, tails: int) -> set[str]:
    """IDs that may be in no segment of a committed copy: taken in the last micro-batches."""
    newest: set[str] = set()
    for batch in sorted(old.rows, reverse=True):
        newest |= {row["id"] for row in old.rows[batch] if row["verdict"] != "duplicate"}
        # The copy is as of the micro-batch before, and knows nothing of its tail.
        if len(newest) > 2 * tails + 1600:
            break
    return newest


def nothing_lost(emitted: list[dict[str, Any]], run: Run) -> None:
    """For each dropped record, another with its ID passed within the horizon."""
    times: dict[str, list[int]] = {}
    for row in emitted:
        times.setdefault(row["id"], []).append(row["at"])
    for batch in sorted(run.rows):
        for row in run.rows[batch]:
            if row["verdict"] != "duplicate":
                times.setdefault(row["id"], []).append(row["at"])
    for row in run.all_rows():
        if row["verdict"] == "duplicate":
            # Late records count at the watermark, at most that far from their own time.
            near = min(abs(row["at"] - at) for at in times[row["id"]])
            assert near <= HORIZON_S + 200, row


@pytest.mark.slow
def test_a_micro_batch_that_was_never_committed_is_not_adopted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segments are at the root. If adopt counted them, the query would lose records."""
    given = tables(5, rows=1600)
    made = query(spark, tmp_path / "old", given[:4])
    old = made.run()
    made.add_table(given[4])

    def broken(plan: Any, key: Any, frames: Any, state: Any) -> Any:
        from dedup.spark.executor import group

        yield from group.dedup_stream(plan, key, frames, state)
        raise RuntimeError("made to fail for good")

    monkeypatch.setattr(build, "dedup_stream", broken)
    with pytest.raises(StreamingQueryException, match="made to fail for good"):
        made.run()
    monkeypatch.undo()
    assert [*made.catalog.rglob("000000000004-*.sst")], "the attempt wrote segments"
    assert command("adopt", str(made.catalog), "--checkpoint", str(tmp_path / "c"))[0] == OK
    again = successor(made, tmp_path / "new", given[4:])
    shutil.move(tmp_path / "c", again.checkpoint)
    run = again.run()
    known = {row["id"] for row in old.all_rows()}
    new = {row["id"] for row in run.rows[0]} - known
    emitted = [row["id"] for row in run.rows[0] if row["verdict"] != "duplicate"]
    assert len(new) > 100
    assert new <= set(emitted)
    nothing_lost([row for row in old.all_rows() if row["verdict"] != "duplicate"], run)


def test_adopt_rejects_used_checkpoints_unknown_queries_and_damage(
    old: Query, tmp_path: Path
) -> None:
    root, name = str(old.catalog), query_id(old)
    code, body = command("adopt", root, "--checkpoint", str(old.checkpoint))
    assert code == USAGE
    assert "is not empty" in body["message"]
    code, body = command("adopt", root, "--checkpoint", str(tmp_path / "a"), "--query", "other")
    assert code == USAGE
    assert "no catalog of query other" in body["message"]
    segments = sorted(old.catalog.rglob("*.sst"))
    for path in segments:
        path.rename(path.with_suffix(".away"))
    code, body = command("adopt", root, "--checkpoint", str(tmp_path / "a"))
    assert code == DAMAGE
    assert "are missing" in body["message"]
    for path in segments:
        path.with_suffix(".away").rename(path)
    assert not (tmp_path / "a").exists()
    for path in old.catalog.rglob("backup.json"):
        path.write_bytes(b"damage")
    code, body = command("adopt", root, "--checkpoint", str(tmp_path / "a"))
    assert code == DAMAGE
    assert "manifest backup of shard 0 is missing or damaged" in body["message"]
    for path in (*old.catalog.rglob("backup.json"), *segments):
        path.unlink()
    code, body = command("adopt", root, "--checkpoint", str(tmp_path / "a"))
    assert code == USAGE
    assert "no shard of query" in body["message"]
    assert read_adopted(Root(root), name, 0) is None


def test_damage_to_an_adopted_manifest_stops_the_query(old: Query, tmp_path: Path) -> None:
    new = tmp_path / "new"
    command("adopt", str(old.catalog), "--checkpoint", str(new / "checkpoint"))
    path = next(old.catalog.rglob("adopted.json"))
    path.write_bytes(path.read_bytes().replace(b'"epoch":-1', b'"epoch":-2'))
    with pytest.raises(Exception, match="Run dedup catalog adopt or rebuild again"):
        successor(old, new, GIVEN[8:9]).run()


# --- vacuum


def test_vacuum_deletes_only_old_orphans(old: Query) -> None:
    root, name = Root(old.catalog), query_id(old)
    failed = segment_name(8, "failed-start", 3, 0)
    orphans = [shard_path(name, shard, failed + ".sst") for shard in (0, 1)]
    half = shard_path(name, 0, f".{failed}.sst.1-ab.tmp")
    foreign = shard_path(name, 1, "notes.txt")
    for path in (*orphans, half, foreign):
        root.put_bytes(path, b"bytes")
    before = {found.name for found in root.list()}
    young = vacuum(old, older_than="24 hours")
    assert (young["files"], young["young"]) == ([], 3)
    shown = vacuum(old, dry_run=True)
    assert sorted(shown["files"]) == sorted([*orphans, half])
    assert (shown["bytes"], shown["foreign"], shown["young"]) == (15, [foreign], 0)
    assert {found.name for found in root.list()} == before
    assert vacuum(old)["files"] == shown["files"]
    assert {found.name for found in root.list()} == before - {*orphans, half}
    assert vacuum(old)["files"] == []


@pytest.mark.slow
def test_vacuum_of_a_branched_history_needs_sole(spark: SparkSession, tmp_path: Path) -> None:
    """After a checkpoint is restored, the user must confirm which one is in use."""
    given = tables(7)
    made = query(spark, tmp_path, given[:2])
    made.run()
    shutil.copytree(made.checkpoint, tmp_path / "backup")
    for table in given[2:4]:
        made.add_table(table)
    made.run()
    shutil.rmtree(made.checkpoint)
    shutil.copytree(tmp_path / "backup", made.checkpoint)
    for table in given[4:6]:
        made.add_table(table)
    put_back = made.run()
    assert {m.branches for m in put_back.metrics} == {1}
    with pytest.raises(ConfigError, match="promise it with --sole"):
        vacuum(made)
    runs = list_runs(Root(made.catalog), query_id(made))
    done = vacuum(made, sole=True)
    assert done["files"]
    assert len(done["runs"]) == 1
    assert len(list_runs(Root(made.catalog), query_id(made))) == len(runs) - 1 == 2
    for table in given[6:]:
        made.add_table(table)
    on = made.run()
    assert {m.branches for m in on.metrics} == {0}
    assert max(m.orphan_files for m in on.metrics) == 0


def test_an_adopted_query_may_begin_with_an_empty_micro_batch(
    ran: tuple[Query, Run], old: Query, tmp_path: Path
) -> None:
    """For an empty file, or Kafka read from its end, Spark runs no task and writes no state."""
    assert command("adopt", str(old.catalog), "--checkpoint", str(tmp_path / "c"))[0] == OK
    again = successor(old, tmp_path / "new", [])
    shutil.move(tmp_path / "c", again.checkpoint)
    (again.input / "00000.parquet").touch()
    again._stamp(again.input / "00000.parquet")
    again.add_table(GIVEN[8])
    run = again.run()
    assert [len(run.rows[batch]) for batch in (0, 1)] == [0, GIVEN[8].num_rows]
    known = {row["id"] for row in ran[1].all_rows()}
    verdicts = {row["verdict"] for row in run.rows[1] if row["id"] in known}
    assert "duplicate" in verdicts, "the adopted memory is there"
    # State that is lost later is missed as before.
    shutil.rmtree(again.checkpoint / "state")
    again.add_table(GIVEN[8])
    with pytest.raises(StreamingQueryException):
        again.run()
