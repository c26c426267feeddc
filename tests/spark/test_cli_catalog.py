"""`dedup catalog` and `dedup explain`: what is there, is it whole, and where an ID is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dedup import tools
from dedup.cli.app import app
from dedup.cli.catalog import snapshot
from dedup.cli.failures import CANNOT_TELL, DAMAGE, OK, USAGE
from dedup.errors import ConfigError
from dedup.storage.root import Root
from dedup.tools import explain
from dedup.tools.repair.opening import Snapshot, open_root, read_checkpoint
from tests.support.cli_job import FileDrop, Job
from tests.support.cli_job import catalog_command as command
from tests.support.small_state import query, tables
from tests.support.spark_query import BASE


class Filled:
    """The output of a run that left segments, and the commands over its catalog."""

    def __init__(self, job: Job, known: Snapshot) -> None:
        self.job, self.known = job, known
        self.root = open_root(str(job.output / "_catalog"))
        self.live = [s for s in tools.inspect(self.root, known).segments if s.standing == "live"]

    def path(self, suffix: str, which: int = 0) -> Path:
        name = f"shard={self.live[which].shard:05d}/{self.live[which].name}{suffix}"
        return self.job.output / "_catalog" / self.known.query_id / name


@pytest.fixture(scope="module")
def ran(shared_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("ran")
    job = Job(shared_spark.newSession(), FileDrop(folder / "input"), folder)
    job.options |= {"state_budget_bytes": 16 << 10, "shards": 1}
    for number in range(3):
        ids = [f"{number}-{i:05d}" for i in range(3000)]
        job.files.text(f"{number}.csv", "\n".join(["id", *ids]))
    job()
    root = open_root(str(job.output / "_catalog"))
    return Filled(job, tools.read_checkpoint(root, job.output / "_checkpoint", job.spark))


@pytest.fixture
def filled(ran: Filled, tmp_path: Path) -> Iterator[Filled]:
    """The result of the run, restored after each test."""
    shutil.copytree(ran.job.output, tmp_path / "kept")
    yield ran
    shutil.rmtree(ran.job.output)
    shutil.move(tmp_path / "kept", ran.job.output)


def test_inspect_shows_segments_and_state(filled: Filled) -> None:
    body = tools.inspect(filled.root, filled.known).to_json()
    (query,) = body["queries"]
    assert query["query_id"] == filled.known.query_id
    assert query["id"] == ["id string"]
    assert query["as_of"] == "batch 2"
    assert query["files"]["segment"]["files"] == sum(query["segments"].values())
    assert query["segments"]["live"] == len(filled.live) > 0
    state = query["state"][0]
    assert state["segment_ids"] + state["tail_ids"] == 9000
    live_ids = sum(s["ids"] for s in body["segments"] if s["standing"] == "live")
    assert live_ids == state["segment_ids"]


def test_inspect_counts_orphans_and_missing_files_separately(filled: Filled) -> None:
    stray = filled.path(".sst").with_name("000000000009-elsewhere-3-0000.sst")
    stray.write_bytes(filled.path(".sst").read_bytes())
    filled.path(".sst").unlink()
    body = tools.inspect(filled.root, filled.known).to_json()
    assert body["queries"][0]["segments"]["orphan"] == 1
    assert body["queries"][0]["missing"] == 1


def test_without_a_checkpoint_no_segment_is_shown_as_live(filled: Filled) -> None:
    code, body = command("inspect", str(filled.job.output / "_catalog"))
    assert code == OK
    (query,) = body["queries"]
    assert set(query["segments"]) <= {"listed", "unknown"}
    assert "tail unknown: give --checkpoint" in query["as_of"]
    assert query["state"][0]["tail_ids"] is None
    listed = {s["segment"]: s["ids"] for s in body["segments"] if s["standing"] == "listed"}
    # All but what the last micro-batch wrote: no one has seen that it was committed.
    epochs = {s.name: int(s.name[:12]) for s in filled.live}
    assert set(listed) >= {name for name, epoch in epochs.items() if epoch < 2} != set()
    for advice in (filled.job.output / "_catalog").rglob("backup.json"):
        advice.write_bytes(b"{}")
    (query,) = command("inspect", str(filled.job.output / "_catalog"))[1]["queries"]
    assert set(query["segments"]) == {"unknown"}
    assert query["as_of"] == "unknown: give --checkpoint"


def test_a_lost_segment_stops_the_run_until_its_loss_is_accepted(filled: Filled) -> None:
    root = str(filled.job.output / "_catalog")
    # The newest: no lookup has made a local copy of it yet.
    filled.path(".sst", -1).unlink()
    lost = filled.live[-1]
    ids = [f"{number}-{i:05d}" for number in range(3) for i in range(3000)]
    filled.job.files.text("again.csv", "\n".join(["id", *ids]))
    failure = filled.job.fails()
    assert failure.exit_code == DAMAGE
    assert lost.name in failure.message
    assert f"--segment {lost.name}" in failure.message

    code, body = command("accept-loss", root, "--segment", lost.name)
    assert (code, body["shard"]) == (OK, lost.shard)
    assert command("verify", root)[0] == OK
    after = filled.job().figures.counts
    assert lost.ref is not None
    assert after["unique"] == lost.ref.count
    assert after["duplicate"] == 9000 - lost.ref.count


def test_accept_loss_needs_a_query_and_shard_for_an_unknown_segment(filled: Filled) -> None:
    root = str(filled.job.output / "_catalog")
    name = "000000000009-elsewhere-3-0000"
    code, body = command("accept-loss", root, "--segment", name)
    assert code == USAGE
    assert "Choose one with --query and --shard" in body["message"]
    query = ("--query", filled.known.query_id, "--shard", "0")
    assert command("accept-loss", root, "--segment", name, *query)[0] == OK


def test_a_folder_that_is_no_catalog_or_checkpoint_is_rejected(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "absent"):
        code, body = command("inspect", str(where))
        assert (code, body["error"]) == (USAGE, "ConfigError")
    with pytest.raises(ConfigError, match="is not a checkpoint"):
        snapshot(Root(str(tmp_path)), str(tmp_path))


def test_explain_finds_ids_in_segments_and_in_state(spark: SparkSession, tmp_path: Path) -> None:
    """IDs of the last micro-batches, some in segments and some in state, and no others."""
    made = query(spark, tmp_path, tables(5))
    run = made.run()
    root = Root(made.catalog)
    known = read_checkpoint(root, str(made.checkpoint), spark)
    places = set()
    last = run.metrics[-1].late_watermark_ms
    assert last is not None
    rows = [row for batch in (3, 4) for row in run.rows[batch] if row["verdict"] == "unique"]
    for row in rows[:: len(rows) // 40]:
        told = explain(root, [row["id"]], known)
        body = told.to_json()
        at = BASE.timestamp() + row["at"]
        found = [s for s in body["seen"] if _seconds(s["at"]) == at]
        assert len(found) == 1, (row, body)
        assert _seconds(found[0]["bucket_start"]) <= at < _seconds(found[0]["bucket_end"])
        assert told.status == "remembered"
        places.add(found[0]["where"] == "Spark state")
    assert places == {True, False}
    never = explain(root, ["never seen"], known)
    assert (never.seen, never.status) == ((), "not remembered")
    # The copy at the root knows what is in segments.
    some = next(s for state in known.states.values() for s in state.manifest.segments())
    assert some.count
    the_command(str(made.catalog))


def the_command(root: str) -> None:
    """Without the checkpoint: what the catalog alone can tell."""
    done = CliRunner().invoke(app, ["explain", root, "never seen"])
    assert done.exit_code == CANNOT_TELL
    assert "id=never seen: cannot tell\n" in done.stdout
    assert "which --checkpoint DIR reads" in done.stdout
    done = CliRunner().invoke(app, ["explain", root, "a", "b", "--json"])
    assert (done.exit_code, json.loads(done.stdout)["error"]) == (USAGE, "ConfigError")
    done = CliRunner().invoke(app, ["explain", root, "a", "--query", "other"])
    assert done.exit_code == USAGE


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()
