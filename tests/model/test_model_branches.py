"""Histories that branch, because a checkpoint is copied or an attempt dies, step by step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dedup.catalog.gc import housekeeping
from dedup.core import upkeep
from dedup.core.policy import Policy
from dedup.errors import CatalogError
from dedup.storage.root import Root
from dedup.tools.repair.vacuum import plan_vacuum
from tests.model.history import BIRTH, Checkpoint, Commit, Item
from tests.model.walk import FAST_FOLDER
from tests.model.world import BEGIN_MS, World
from tests.support.catalog import QUERY

RETAIN_EPOCHS = 10
POLICY = Policy(
    horizon_ms=1_000_000, bucket_ms=500_000, event_time=True, lateness_ms=500_000,
    state_budget_bytes=0, keep_expired_ms=0, retain_epochs=RETAIN_EPOCHS,
)  # fmt: skip


@pytest.fixture
def world() -> Iterator[World]:
    folder = tempfile.TemporaryDirectory(dir=FAST_FOLDER)
    made = World(Path(folder.name), Random(1))
    made.shards, made.event_time, made.stable = 1, True, False
    made.where = made.folder / "root"
    made.query_folder = made.where / made.query_folder.name
    made.set_constant(housekeeping, "LOOK_STRIDE", RETAIN_EPOCHS)
    birth = Commit((b"",), frozenset(), ())
    made.checkpoints = [Checkpoint(POLICY, ("original",), BEGIN_MS, commits={BIRTH: birth})]
    yield made
    made.close()
    folder.cleanup()


def go_on(world: World, line: Checkpoint, batches: int) -> None:
    """So many micro-batches of one new ID each, all sealed; within one look's time."""
    for _ in range(batches):
        item = Item(b"%s-%d" % (line.run_ids[-1].encode(), line.batch), BEGIN_MS, "p", 1)
        commit, _ = world.attempt(line, [item], Random(1))
        line.commit(commit)
    world.check_files(line)


def copied(world: World, line: Checkpoint) -> Checkpoint:
    copy = line.copied()
    copy.begin_run("copy")
    world.checkpoints.append(copy)
    return copy


def test_a_copy_of_a_running_query_deletes_no_file_of_the_original(world: World) -> None:
    """The original commits three micro-batches after the copy, and then pauses."""
    (original,) = world.checkpoints
    go_on(world, original, RETAIN_EPOCHS + 4)
    copy = copied(world, original)
    go_on(world, original, 3)
    go_on(world, copy, 4 * RETAIN_EPOCHS)
    go_on(world, original, 1)


def test_a_copy_that_rests_after_its_first_micro_batch_is_not_detected(world: World) -> None:
    """A run notes its first micro-batch when the second begins: a decision, see DESIGN.md."""
    (original,) = world.checkpoints
    go_on(world, original, RETAIN_EPOCHS + 4)
    copy = copied(world, original)
    go_on(world, original, 2)
    go_on(world, copy, 1)
    with pytest.raises(AssertionError, match=r"'original', 'copy'\) names it"):
        go_on(world, original, 4 * RETAIN_EPOCHS)
    assert world.state(original.base, 0).branches == 0
    segments = world.state(copy.base, 0).manifest.segments()
    assert any(not (world.shard_folder(0) / f"{s.name}.sst").exists() for s in segments)


def test_runs_of_one_micro_batch_show_that_history_branched(world: World) -> None:
    """Original and copy run with availableNow, one micro-batch at a time."""
    (original,) = world.checkpoints
    go_on(world, original, 3)
    copy = copied(world, original)
    for line, batches in ((original, 2), (copy, 2), (original, 3 * RETAIN_EPOCHS)):
        for _ in range(batches):
            line.begin_run(world.new_run_id())
            go_on(world, line, 1)
    assert world.state(original.base, 0).branches > 0
    go_on(world, copy, 1)


def test_vacuum_waits_after_an_attempt_that_deleted_a_pending_list_and_died(world: World) -> None:
    """It cannot distinguish an expired list from a lost one: a decision, see DESIGN.md."""
    world.set_constant(upkeep, "MAX_EXPIRED_NAMES", 2)
    (line,) = world.checkpoints
    line.policy = replace(POLICY, horizon_ms=20, bucket_ms=10, lateness_ms=0, retain_epochs=2)
    for n in range(100):
        item = Item(b"%d" % n, BEGIN_MS + 10 * n, "p", 1)
        world.now_ms = BEGIN_MS + 10 * n
        pending_lists = world.state(line.base, 0).manifest.pending_lists
        commit, _ = world.attempt(line, [item], Random(1))
        if any(
            (0, f"{pending_list.name}.pending-list") not in world.files
            for pending_list in pending_lists
        ):
            break  # the attempt dies before its commit
        line.commit(commit)
    else:
        pytest.fail("no pending list was deleted")
    root = Root(world.where)
    with pytest.raises(CatalogError, match="let it run one more micro-batch"):
        plan_vacuum(
            root, QUERY, {0: world.state(line.base, 0)},
            now_ms=world.now_ms, older_than_ms=0, sole=True,
        )  # fmt: skip
    commit, _ = world.attempt(line, [item], Random(1))
    line.commit(commit)
    states = {0: world.state(line.base, 0)}
    plan_vacuum(root, QUERY, states, now_ms=world.now_ms, older_than_ms=0, sole=True)


def test_original_and_copy_stop_deleting_once_both_continued(world: World) -> None:
    (original,) = world.checkpoints
    go_on(world, original, RETAIN_EPOCHS + 4)
    copy = copied(world, original)
    original.begin_run("again")
    go_on(world, original, 2)
    go_on(world, copy, 4 * RETAIN_EPOCHS)
    go_on(world, original, 2 * RETAIN_EPOCHS)
    assert all(world.state(line.base, 0).branches for line in (original, copy))
