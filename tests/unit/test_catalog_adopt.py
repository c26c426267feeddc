"""Adopting a catalog whose checkpoint was lost: what is remembered is what was emitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.backup import read_adopted, read_backup
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.tools.repair.adopt import adopt
from tests.support.query_driver import POLICY, QUERY, ROOMY, QueryDriver, give_up, records, run


def backup_of(query: QueryDriver) -> ShardState:
    state = read_backup(query.root, QUERY, 0)
    assert state is not None
    return state


def test_a_copy_of_an_undone_history_is_not_adopted(tmp_path: Path) -> None:
    """An older checkpoint is restored, seals nothing, and is lost as well."""
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(12))
    assert backup_of(query).epoch > 6, "the copy has micro-batches that will be undone"
    query.go_on("run-2", from_epoch=6)
    query.policy = ROOMY
    run(query, range(6, 8))
    assert backup_of(query).epoch == 6
    done = adopt(query.root, tmp_path / "new", QUERY, sole=True)
    assert done.epoch == 6
    query.begin_adopted("run-3")
    assert set(run(query, range(8, 12))) == {"UNIQUE"}


@pytest.mark.parametrize("committed", [0, 1])
def test_an_abandoned_rollback_leaves_the_newest_manifest_backup_in_place(
    tmp_path: Path, committed: int
) -> None:
    """The backups still name the later micro-batches, and adopting them needs consent."""
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(15))
    query.go_on("run-2")
    run(query, range(15, 30))
    told = backup_of(query)
    query.go_on("tried", from_epoch=5)
    run(query, range(5, 5 + max(committed, 1)))
    assert backup_of(query).epoch == told.epoch
    with pytest.raises(ConfigError, match=f"up to micro-batch {told.epoch}, promise it"):
        adopt(query.root, tmp_path / "new", QUERY)
    done = adopt(query.root, tmp_path / "new", QUERY, sole=True)
    assert (done.epoch, done.ids) == (told.epoch, told.manifest.ids)


def one_by_one(query: QueryDriver, numbers: range, name: str) -> None:
    """A run per micro-batch, as a scheduled availableNow job has them."""
    for number in numbers:
        query.go_on(f"{name}-{number}")
        run(query, range(number, number + 1))


@pytest.mark.parametrize("committed", [1, 2, 5])
def test_adopting_after_a_rollback_with_one_micro_batch_per_run_needs_consent(
    tmp_path: Path, committed: int
) -> None:
    """The manifest backups follow the new history from its second micro-batch on."""
    query = QueryDriver(tmp_path, POLICY)
    one_by_one(query, range(30), "run")
    query.go_on("unused", from_epoch=10)
    one_by_one(query, range(10, 10 + committed), "again")
    told = backup_of(query)
    with pytest.raises(ConfigError, match="was continued from more than one state"):
        adopt(query.root, tmp_path / "new", QUERY)
    assert (told.epoch < 10 + committed) == (committed > 1)
    if committed > 1:
        adopt(query.root, tmp_path / "new", QUERY, sole=True)
        query.begin_adopted("next")
        assert set(run(query, range(15, 28))) == {"UNIQUE"}, "they were undone"


def test_a_shard_without_a_backup_starts_empty(tmp_path: Path) -> None:
    query = QueryDriver(tmp_path, POLICY, shards=2)
    run(query, range(15))
    (tmp_path / "root" / QUERY / "shard=00001").rename(tmp_path / "lost")
    done = adopt(query.root, tmp_path / "new", QUERY)
    assert (done.shards, done.unknown_shards) == (2, 1)
    query.begin_adopted("next")
    assert set(run(query, range(15, 28))) == {"UNIQUE"}


def test_an_old_abandoned_start_does_not_count_as_a_branch(tmp_path: Path) -> None:
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(15))
    give_up(query, "tried", 5, from_epoch=5)
    for start in range(3):
        query.go_on(f"run-{start + 2}")
        run(query, range(15 + 8 * start, 23 + 8 * start))
    assert adopt(query.root, tmp_path / "new", QUERY).epoch > 25


def test_a_lineage_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(12))
    (path,) = (tmp_path / "root").rglob("*run-1.json")
    path.write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"the parents of run run-1 .* cannot be read"):
        adopt(query.root, tmp_path / "new", QUERY)
    assert adopt(query.root, tmp_path / "new", QUERY, sole=True).ids


def test_a_branched_history_is_adopted_only_with_consent(tmp_path: Path) -> None:
    """A copy of the checkpoint continued as well; the backups may hold IDs that only it saw."""
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(13))
    query.go_on("copy")
    run(query, range(13, 30))
    query.go_on("original", from_epoch=13)
    run(query, range(13, 15))
    with pytest.raises(ConfigError, match="was continued from more than one state") as refused:
        adopt(query.root, tmp_path / "new", QUERY)
    assert refused.value.remedy == "branched-history"
    assert not (tmp_path / "new" / "metadata").exists()
    assert adopt(query.root, tmp_path / "new", QUERY, sole=True).ids > 0


@pytest.mark.parametrize("starts", [1, 2, 5])
def test_a_linear_history_is_adopted_without_consent(tmp_path: Path, starts: int) -> None:
    query = QueryDriver(tmp_path, replace(POLICY, state_budget_bytes=8_000), shards=2)
    for start in range(starts):
        query.go_on(f"run-{start}")
        run(query, range(8 * start, 8 * start + 8))
    # The last start sealed nothing, and one more failed before its first commit.
    query.go_on("short")
    query.policy = ROOMY
    run(query, range(8 * starts, 8 * starts + 2))
    give_up(query, "failed", 8 * starts + 2)
    done = adopt(query.root, tmp_path / "new", QUERY)
    assert done.epoch >= 8 * starts - 1
    query.begin_adopted("next")
    assert set(run(query, range(2))) == {"DUPLICATE"}
    adopt(query.root, tmp_path / "newer", QUERY)


def test_a_second_adoption_begins_with_the_newest_clocks(tmp_path: Path) -> None:
    """A quiet shard's backup dates from the first adoption; the other shard's is newer."""
    query = QueryDriver(tmp_path, POLICY, shards=2)
    run(query, range(30))
    adopt(query.root, tmp_path / "one", QUERY)
    query.begin_adopted("life-2")
    for number in range(40, 75):
        query.now_ms += 60_000
        query.batch(records(number), {1: ROOMY})
    told = [read_backup(query.root, QUERY, shard) for shard in range(2)]
    clocks = [state.clocks.gc_watermark_ms for state in told if state is not None]
    assert clocks[0] > clocks[1]
    adopt(query.root, tmp_path / "two", QUERY)
    for shard in range(2):
        adopted = read_adopted(query.root, QUERY, shard)
        assert adopted is not None
        assert adopted.clocks.gc_watermark_ms == clocks[0]
        assert adopted.clocks.window_watermarks_ms == (0, 0), "Spark's begins again"


def test_a_pending_list_that_no_longer_exists_is_not_named_after_adoption(tmp_path: Path) -> None:
    short = replace(
        POLICY, horizon_ms=600_000, bucket_ms=60_000, lateness_ms=0, keep_expired_ms=600_000,
        retain_epochs=2, state_budget_bytes=8_000,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dedup.core.upkeep.MAX_EXPIRED_NAMES", 4)
        patch.setattr("dedup.core.upkeep.MAX_DELETES", 4)
        query = QueryDriver(tmp_path, short)
        for number in range(60):
            told = read_backup(query.root, QUERY, 0)
            lists = {listed.name for listed in (told.manifest.pending_lists if told else ())}
            gone = lists - {path.stem for path in (tmp_path / "root").rglob("*.pending-list")}
            if gone:
                break
            query.now_ms += 60_000
            query.batch([(b"%d-%d" % (number, n), query.now_ms) for n in range(400)])
        else:
            pytest.fail("no pending list was emptied behind the copy's back")
    adopt(query.root, tmp_path / "new", QUERY)
    query.begin_adopted("next")
    query.now_ms += 60_000
    query.batch([])
    assert not gone & {listed.name for listed in query.state().manifest.pending_lists}
