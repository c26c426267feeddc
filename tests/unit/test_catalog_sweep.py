"""Runs at the root, and orphans: what housekeeping deletes, and what it leaves."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.gc import housekeeping
from dedup.catalog.gc.housekeeping import LOOK_STRIDE, housekeep
from dedup.catalog.gc.lineage import Lineage, Run
from dedup.catalog.gc.pending_lists import write_pending_list
from dedup.catalog.gc.runs import drop_runs, list_runs, mark_through, read_lineage, write_lineage
from dedup.catalog.gc.sweep import find_stray
from dedup.catalog.layout import catalog_files, run_path, segment_name, shard_path
from dedup.core.clocks import Clocks
from dedup.core.manifest import Expired, Manifest, PendingList
from dedup.core.policy import Policy
from dedup.core.records import Epoch
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.storage.root import Root
from dedup.tools.repair.contents import QueryMemory, segments_of
from dedup.tools.repair.vacuum import carry_out, plan_vacuum
from tests.support.catalog import QUERY
from tests.support.query_driver import DAY_MS, ROOMY, QueryDriver, give_up, run
from tests.support.query_driver import POLICY as SEALING

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
POLICY = Policy(horizon_ms=HOUR_MS, bucket_ms=HOUR_MS, keep_expired_ms=HOUR_MS, retain_epochs=10)
OLD, NEW = "old-run", "new-run"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def put(root: Root, name: str, age_ms: int = 2 * HOUR_MS) -> str:
    root.put_bytes(name, b"bytes")
    path = root.local_path(name)
    assert path is not None
    seconds = (NOW_MS - age_ms) / 1000
    os.utime(path, (seconds, seconds))
    return name


def orphan(root: Root, epoch: int, run_id: str = OLD, suffix: str = ".sst", **more: int) -> str:
    file = segment_name(epoch, run_id, 7, 0) + suffix
    return put(root, shard_path(QUERY, 0, file), **more)


def state(run_id: str, epoch: int, began: int, manifest: Manifest | None = None) -> ShardState:
    clocks = Clocks(run_id=run_id, now_ms=NOW_MS - 1)
    return ShardState(epoch=epoch, clocks=clocks, run_began=began, manifest=manifest or Manifest())


def visit(run_id: str, epoch: int, shard: int = 0) -> Epoch:
    return Epoch(
        number=epoch, run_id=run_id, now_ms=NOW_MS, worker_now_ms=NOW_MS, shard=shard, hash_key=b""
    )


def names(root: Root) -> set[str]:
    return {found.name for found in catalog_files(root)}


# --- runs


def test_runs_are_listed_with_their_last_known_micro_batch(root: Root) -> None:
    first, second = Run("a-1.x", 0), Run("b", 12)
    write_lineage(root, QUERY, Lineage((first,)))
    write_lineage(root, QUERY, Lineage((first, second)))
    mark_through(root, QUERY, first, 0)
    mark_through(root, QUERY, first, 11)
    mark_through(root, QUERY, first, 11)
    assert list_runs(root, QUERY) == [Run("a-1.x", 0, 11), Run("b", 12)]
    assert len(catalog_files(root, f"{QUERY}/runs")) == 3
    assert read_lineage(root, QUERY, second) == Lineage((first, second))
    drop_runs(root, QUERY, [first], Lineage((first, second)))
    assert list_runs(root, QUERY) == [first, second]
    drop_runs(root, QUERY, [first], Lineage((second,)))
    assert list_runs(root, QUERY) == [second]


def test_every_attempt_writes_the_same_bytes(root: Root) -> None:
    lineage = Lineage((Run("a", 0), Run("b", 3)))
    name = run_path(QUERY, "b", 3)
    write_lineage(root, QUERY, lineage)
    first = root.read_bytes(name)
    root.delete([name])
    write_lineage(root, QUERY, lineage)
    assert root.read_bytes(name) == first


# --- looking round


def test_a_run_writes_its_lineage_and_marks_its_progress(root: Root) -> None:
    first = housekeep(root, QUERY, visit("a", 0), ShardState(), POLICY)[0]
    assert (first.run_began, first.branches) == (0, 0)
    second = housekeep(
        root, QUERY, visit("a", 1), replace(first, epoch=0, clocks=Clocks("a")), POLICY
    )
    assert list_runs(root, QUERY) == [Run("a", 0, 0)]
    later = replace(second[0], epoch=LOOK_STRIDE - 1, clocks=Clocks("a"))
    housekeep(root, QUERY, visit("a", LOOK_STRIDE), later, POLICY)
    assert list_runs(root, QUERY) == [Run("a", 0, LOOK_STRIDE - 1)]
    after = replace(later, epoch=LOOK_STRIDE)
    housekeep(root, QUERY, visit("b", LOOK_STRIDE + 1), after, POLICY)
    own = Run("b", LOOK_STRIDE + 1)
    assert read_lineage(root, QUERY, own) == Lineage((Run("a", 0), own))


def test_orphans_of_the_lineage_are_deleted_once_no_state_can_name_them(root: Root) -> None:
    gone = [
        orphan(root, 4), orphan(root, 5, suffix=".filter"), orphan(root, 6, suffix=".pending-list"),
        orphan(root, 39, NEW),
    ]  # fmt: skip
    kept = [
        orphan(root, 40, NEW),  # Spark can still roll back to it
        orphan(root, 7, age_ms=HOUR_MS - 1000),  # not old enough
        orphan(root, 8, "another-run"),
        put(root, shard_path(QUERY, 0, "notes.txt")),
        put(root, shard_path(QUERY, 0, ".x.sst.1-ab.tmp")),
        put(root, shard_path(QUERY, 1, segment_name(4, OLD, 7, 0) + ".sst")),
    ]
    base, deleted = housekeep(root, QUERY, visit(NEW, 50), state(OLD, 49, 0), POLICY)
    assert deleted == len(gone)
    assert names(root).isdisjoint(gone)
    assert names(root) >= set(kept)
    assert base.stray_files == (3, 1)


def test_a_listing_that_was_cut_short_deletes_nothing(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lack a branch, to which the orphans belong."""
    left = orphan(root, 4)
    monkeypatch.setattr(housekeeping, "list_runs", lambda *_: [])
    base, deleted = housekeep(
        root, QUERY, visit(NEW, 50), replace(state(OLD, 49, 0), branches=2), POLICY
    )
    assert (base.branches, base.stray_files, deleted) == (2, (1, 0), 0)
    assert left in names(root)


EXPIRED, SPILLED, LOST, LEFT = (segment_name(n, OLD, 7, n) for n in (1, 2, 3, 4))
PENDING_LIST = shard_path(QUERY, 0, segment_name(3, OLD, 8, 0) + ".pending-list")


def named(root: Root) -> Manifest:
    """A manifest that names what is expired and spilled; of what is lost there is a note."""
    listed = segment_name(3, OLD, 8, 0)
    put(root, shard_path(QUERY, 0, LOST + ".accepted-loss"))
    write_pending_list(root, QUERY, 0, listed, [SPILLED])
    return Manifest(
        expired=(Expired(EXPIRED, 4, 0),), pending_lists=(PendingList(listed, 1, 4, 0),)
    )


def test_files_that_the_manifest_names_are_kept(root: Root) -> None:
    kept = {
        put(root, shard_path(QUERY, 0, name + suffix))
        for name in (EXPIRED, SPILLED, LOST)
        for suffix in (".sst", ".filter")
    }
    base = state(OLD, 49, 0, named(root))
    assert housekeep(root, QUERY, visit(NEW, 50), base, POLICY)[1] == 0
    assert names(root) >= kept
    # A pending list that cannot be read hides names: then nothing is known to be an orphan.
    root.put_bytes(PENDING_LIST, b"damage")
    extra = orphan(root, 5)
    assert housekeep(root, QUERY, visit(NEW, 50), base, POLICY)[1] == 0
    root.delete([PENDING_LIST])
    assert housekeep(root, QUERY, visit(NEW, 50), base, POLICY)[1] == 0
    assert names(root) >= kept | {extra}


def standings(root: Root, manifest: Manifest) -> dict[str, str]:
    """What `dedup catalog inspect` calls each segment."""
    shard = ShardState(epoch=49, manifest=manifest)
    known = QueryMemory(certain=True, shards={0: shard})
    return {s.name: s.standing for s in segments_of(root, QUERY, known, catalog_files(root, QUERY))}


def test_inspect_and_the_operator_agree_on_orphans(root: Root) -> None:
    for name in (EXPIRED, SPILLED, LOST, LEFT):
        put(root, shard_path(QUERY, 0, name + ".sst"))
    manifest = named(root)
    told = {EXPIRED: "expired", SPILLED: "expired", LOST: "loss accepted", LEFT: "orphan"}
    assert standings(root, manifest) == told
    stray = find_stray(root, QUERY, 0, manifest)
    assert [file.parsed.segment for file in stray.orphans] == [LEFT]
    # A pending list that cannot be read hides names: what is not named may be expired.
    root.put_bytes(PENDING_LIST, b"damage")
    hidden = dict.fromkeys((SPILLED, LEFT), "unknown")
    assert standings(root, manifest) == told | hidden
    assert not find_stray(root, QUERY, 0, manifest).complete


def test_other_shards_see_branches_before_the_first_has_written_anything(root: Root) -> None:
    housekeep(root, QUERY, visit(OLD, 0), ShardState(), POLICY)
    housekeep(root, QUERY, visit(OLD, 1), state(OLD, 0, 0), POLICY)
    mark_through(root, QUERY, Run(OLD, 0), 60)
    rolled_back, _ = housekeep(root, QUERY, visit(NEW, 50, shard=1), state(OLD, 49, 0), POLICY)
    assert rolled_back.branches == 1
    goes_on, _ = housekeep(root, QUERY, visit(NEW, 61, shard=1), state(OLD, 60, 0), POLICY)
    assert goes_on.branches == 0


def test_without_its_parents_lineage_a_run_deletes_no_orphans_of_older_runs(root: Root) -> None:
    grandparent = orphan(root, 4, "grandparent")
    parent = orphan(root, 14, OLD)
    _, deleted = housekeep(root, QUERY, visit(NEW, 50), state(OLD, 49, 10), POLICY)
    assert deleted == 1
    assert grandparent in names(root)
    assert parent not in names(root)


def test_a_shard_lists_runs_every_hundred_micro_batches_or_after_a_pause(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def looked(*given: object) -> list[Run]:
        looks.append(given)
        return list_runs(root, QUERY)

    monkeypatch.setattr(housekeeping, "list_runs", looked)
    for shard, epochs in ((1, [99, 199]), (3, [97, 197])):
        looks.clear()
        due = []
        for epoch in range(1, 200):
            housekeep(root, QUERY, visit("a", epoch, shard), state("a", epoch - 1, 0), POLICY)
            if looks:
                due.append(epoch)
                looks.clear()
        assert due == epochs
    slow = replace(state("a", 4, 0), clocks=Clocks("a", now_ms=NOW_MS - HOUR_MS // 4))
    housekeep(root, QUERY, visit("a", 5), slow, POLICY)
    assert len(looks) == 1


def test_files_of_later_micro_batches_show_that_an_ancestor_continued(root: Root) -> None:
    """It left no mark, but files of micro-batches that its successor also ran."""
    theirs = [orphan(root, epoch, OLD) for epoch in (50, 51, 53)]
    base, deleted = housekeep(root, QUERY, visit(NEW, 50), state(OLD, 49, 0), POLICY)
    assert (base.branches, deleted) == (1, 0)
    assert list_runs(root, QUERY) == [Run(OLD, 0, 52), Run(NEW, 50)]
    goes_on = state(NEW, 199, 50)
    assert housekeep(root, QUERY, visit(NEW, 200, shard=0), goes_on, POLICY)[0].branches == 1
    assert names(root) >= set(theirs)
    # Once the user says that no one needs them, they go however young they are.
    states = {0: state(NEW, 199, 50)}
    with pytest.raises(ConfigError, match="--sole"):
        plan_vacuum(root, QUERY, states, now_ms=0, older_than_ms=1, sole=False)
    plan = plan_vacuum(root, QUERY, states, now_ms=0, older_than_ms=1, sole=True)
    assert [file.name for file in plan.files] == theirs[1:]
    carry_out(root, plan)
    assert housekeep(root, QUERY, visit(NEW, 200, shard=0), goes_on, POLICY)[0].branches == 0


def test_vacuum_with_a_copied_checkpoint_needs_consent_to_delete_newer_files(
    tmp_path: Path,
) -> None:
    """The original is paused, and its progress mark is older than its last micro-batch."""
    query = QueryDriver(tmp_path, SEALING)
    run(query, range(13))
    copied = query.states()
    run(query, range(13, 53))
    now_ms = query.now_ms + 10 * DAY_MS + 10**12
    with pytest.raises(ConfigError, match="ran past the state of this checkpoint") as refused:
        plan_vacuum(query.root, QUERY, copied, now_ms=now_ms, older_than_ms=DAY_MS, sole=False)
    assert refused.value.remedy == "branched-history"
    told = plan_vacuum(query.root, QUERY, copied, now_ms=now_ms, older_than_ms=0, sole=True)
    live = {segment.name for segment in query.state().manifest.segments()}
    assert live & {file.parsed.segment for file in told.files}, "the word is taken"
    # With its own checkpoint the same files are not orphans, and no consent is needed.
    own = plan_vacuum(query.root, QUERY, query.states(), now_ms=now_ms, older_than_ms=0, sole=False)
    assert not live & {file.parsed.segment for file in own.files}


def test_the_lineage_bounds_the_number_of_listed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedup.catalog.gc.lineage.MAX_RUNS", 4)
    query = QueryDriver(tmp_path, ROOMY)
    for start in range(12):
        query.go_on(f"run-{start}")
        run(query, range(2 * start, 2 * start + 2))
    # The lineage's own, and the one before it, which the next start will forget.
    assert [known.run_id for known in list_runs(query.root, QUERY)][-4:] == [
        f"run-{n}" for n in range(8, 12)
    ]
    assert len(list_runs(query.root, QUERY)) <= 5
    # Starts that committed nothing go as well.
    for start in range(20):
        give_up(query, f"failed-{start}", 90)
    for start in range(12, 18):
        query.go_on(f"run-{start}")
        run(query, range(2 * start, 2 * start + 2))
    assert len(list_runs(query.root, QUERY)) <= 5
    assert query.state().branches == 0
