"""Going on after the checkpoint was lost, put back or copied: what is remembered is what was
emitted, and nothing goes that somebody still needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.gc.runs import list_runs
from dedup.catalog.gc.vacuum import plan_vacuum
from dedup.catalog.repair.adopt import adopt
from dedup.catalog.repair.backup import read_adopted, read_backup
from dedup.catalog.root import Root
from dedup.core.lineage import MAX_RUNS, Lineage, Run
from dedup.core.policy import Policy
from dedup.errors import ConfigError
from tests.support.query_driver import QUERY, QueryDriver, Rec

DAY_MS = 86_400_000
POLICY = Policy(
    horizon_ms=7 * DAY_MS, bucket_ms=DAY_MS, event_time=True, lateness_ms=3_600_000,
    state_budget_bytes=40_000,
)  # fmt: skip
#: Nothing is sealed under it.
ROOMY = replace(POLICY, state_budget_bytes=1 << 30)
PER_BATCH = 100


def records(number: int) -> list[Rec]:
    first_ms = 1_800_000_000_000 - DAY_MS
    numbers = range(number * PER_BATCH, (number + 1) * PER_BATCH)
    return [(b"id-%06d" % n, first_ms + 1000 * n) for n in numbers]


def run(query: QueryDriver, numbers: range) -> list[str]:
    told = []
    for number in numbers:
        query.now_ms += 60_000
        told += query.batch(records(number))
    return told


def test_a_copy_of_an_undone_history_is_not_adopted(tmp_path: Path) -> None:
    """An older checkpoint is put back, seals nothing, and is lost as well."""
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(12))
    told = read_backup(query.root, QUERY, 0)
    assert told is not None
    assert told.epoch > 6, "the copy tells of micro-batches that are about to be undone"
    query.go_on("run-2", from_epoch=6)
    query.policy = ROOMY
    run(query, range(6, 8))
    told = read_backup(query.root, QUERY, 0)
    assert told is not None
    assert told.epoch == 6
    done = adopt(query.root, QUERY, Root(tmp_path / "new"), sole=True)
    assert done.epoch == 6
    query.begin_adopted("run-3")
    assert set(run(query, range(8, 12))) == {"UNIQUE"}


@pytest.mark.parametrize("committed", [0, 1])
def test_a_backup_that_was_tried_and_given_up_takes_nothing_away(
    tmp_path: Path, committed: int
) -> None:
    """The copies still tell of the later micro-batches, and adopting them takes a word."""
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(15))
    query.go_on("run-2")
    run(query, range(15, 30))
    told = read_backup(query.root, QUERY, 0)
    assert told is not None
    query.go_on("tried", from_epoch=5)
    run(query, range(5, 5 + max(committed, 1)))
    again = read_backup(query.root, QUERY, 0)
    assert again is not None
    assert again.epoch == told.epoch
    with pytest.raises(ConfigError, match=f"up to micro-batch {told.epoch}, say so with --sole"):
        adopt(query.root, QUERY, Root(tmp_path / "new"))
    done = adopt(query.root, QUERY, Root(tmp_path / "new"), sole=True)
    assert (done.epoch, done.ids) == (told.epoch, told.manifest.ids)


def one_by_one(query: QueryDriver, numbers: range, name: str) -> None:
    """A run per micro-batch, as a scheduled availableNow job has them."""
    for number in numbers:
        query.go_on(f"{name}-{number}")
        run(query, range(number, number + 1))


@pytest.mark.parametrize("committed", [1, 2, 5])
def test_a_job_of_one_micro_batch_a_run_that_was_put_back(tmp_path: Path, committed: int) -> None:
    """Its copies follow; where they cannot yet, adopting them takes a word."""
    query = QueryDriver(tmp_path, POLICY)
    one_by_one(query, range(30), "run")
    query.go_on("unused", from_epoch=10)
    one_by_one(query, range(10, 10 + committed), "again")
    told = read_backup(query.root, QUERY, 0)
    assert told is not None
    with pytest.raises(ConfigError, match="went on from more than one state"):
        adopt(query.root, QUERY, Root(tmp_path / "new"))
    assert (told.epoch < 10 + committed) == (committed > 1)
    if committed > 1:
        adopt(query.root, QUERY, Root(tmp_path / "new"), sole=True)
        query.begin_adopted("next")
        assert set(run(query, range(15, 28))) == {"UNIQUE"}, "they were undone"


def test_a_start_that_was_given_up_long_ago_is_no_branch(tmp_path: Path) -> None:
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(15))
    rows, epoch = list(query.rows), query.epoch
    query.go_on("tried", from_epoch=5)
    run(query, range(5, 6))
    query.rows, query.epoch = rows, epoch
    for start in range(3):
        query.go_on(f"run-{start + 2}")
        run(query, range(15 + 8 * start, 23 + 8 * start))
    assert adopt(query.root, QUERY, Root(tmp_path / "new")).epoch > 25


def test_a_lineage_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(12))
    (path,) = (tmp_path / "root").rglob("*run-1.json")
    path.write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"what run run-1 .* descends from cannot be read"):
        adopt(query.root, QUERY, Root(tmp_path / "new"))
    assert adopt(query.root, QUERY, Root(tmp_path / "new"), sole=True).ids


def test_a_branched_history_is_adopted_with_a_word_only(tmp_path: Path) -> None:
    """A copy of the checkpoint went on as well; what the copies tell may be what it saw."""
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(13))
    query.go_on("copy")
    run(query, range(13, 30))
    query.go_on("original", from_epoch=13)
    run(query, range(13, 15))
    with pytest.raises(ConfigError, match="went on from more than one state") as refused:
        adopt(query.root, QUERY, Root(tmp_path / "new"))
    assert refused.value.remedy == "branched-history"
    assert not (tmp_path / "new" / "metadata").exists()
    assert adopt(query.root, QUERY, Root(tmp_path / "new"), sole=True).ids > 0


@pytest.mark.parametrize("starts", [1, 2, 5])
def test_a_history_of_one_line_needs_no_word(tmp_path: Path, starts: int) -> None:
    query = QueryDriver(tmp_path, replace(POLICY, state_budget_bytes=8_000), shards=2)
    for start in range(starts):
        query.go_on(f"run-{start}")
        run(query, range(8 * start, 8 * start + 8))
    # The last start sealed nothing, and one more failed before its first commit.
    query.go_on("short")
    query.policy = ROOMY
    run(query, range(8 * starts, 8 * starts + 2))
    rows, epoch = list(query.rows), query.epoch
    query.go_on("failed")
    run(query, range(8 * starts + 2, 8 * starts + 3))
    query.rows, query.epoch = rows, epoch
    done = adopt(query.root, QUERY, Root(tmp_path / "new"))
    assert done.epoch >= 8 * starts - 1
    query.begin_adopted("next")
    assert set(run(query, range(2))) == {"DUPLICATE"}
    adopt(query.root, QUERY, Root(tmp_path / "newer"))


def test_a_second_adoption_begins_with_the_newest_clocks(tmp_path: Path) -> None:
    """A quiet shard's copy is that of the first adoption; the other one's tells of later times."""
    query = QueryDriver(tmp_path, POLICY, shards=2)
    run(query, range(30))
    adopt(query.root, QUERY, Root(tmp_path / "one"))
    query.begin_adopted("life-2")
    for number in range(40, 75):
        query.now_ms += 60_000
        query.batch(records(number), {1: ROOMY})
    told = [read_backup(query.root, QUERY, shard) for shard in range(2)]
    clocks = [state.clocks.gc_watermark_ms for state in told if state is not None]
    assert clocks[0] > clocks[1]
    adopt(query.root, QUERY, Root(tmp_path / "two"))
    for shard in range(2):
        adopted = read_adopted(query.root, QUERY, shard)
        assert adopted is not None
        assert adopted.clocks.gc_watermark_ms == clocks[0]


def test_a_pending_list_that_was_emptied_since_is_named_no_more(tmp_path: Path) -> None:
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
            gone = [
                pending_list
                for pending_list in (told.manifest.pending_lists if told else ())
                if not list((tmp_path / "root").rglob(f"{pending_list.name}.expired"))
            ]
            if gone:
                break
            query.now_ms += 60_000
            query.batch([(b"%d-%d" % (number, n), query.now_ms) for n in range(400)])
        else:
            pytest.fail("no pending list was emptied behind the copy's back")
    adopt(query.root, QUERY, Root(tmp_path / "new"))
    query.begin_adopted("next")
    query.now_ms += 60_000
    query.batch([])
    named = {pending_list.name for pending_list in query.state().manifest.pending_lists}
    assert not named & {pending_list.name for pending_list in gone}


def test_vacuum_with_a_copy_does_not_delete_what_the_original_made_since(tmp_path: Path) -> None:
    """The original rests since, and its note of how far it is was made before that."""
    query = QueryDriver(tmp_path, POLICY)
    run(query, range(13))
    copied = query.states()
    run(query, range(13, 53))
    now_ms = query.now_ms + 10 * DAY_MS + 10**12
    with pytest.raises(ConfigError, match="went on behind the state of this checkpoint") as refused:
        plan_vacuum(query.root, QUERY, copied, now_ms=now_ms, older_than_ms=DAY_MS, sole=False)
    assert refused.value.remedy == "branched-history"
    told = plan_vacuum(query.root, QUERY, copied, now_ms=now_ms, older_than_ms=0, sole=True)
    live = {segment.name for segment in query.state().manifest.segments()}
    assert live & {file.parsed.segment for file in told.files}, "the word is taken"
    # With its own checkpoint the same files are no orphans, and no word is needed.
    own = plan_vacuum(query.root, QUERY, query.states(), now_ms=now_ms, older_than_ms=0, sole=False)
    assert not live & {file.parsed.segment for file in own.files}


def test_a_branch_that_began_before_a_full_lineage_still_counts() -> None:
    runs = tuple(Run(f"run-{n}", 10 * n) for n in range(1, MAX_RUNS + 1))
    lineage = Lineage(runs)
    copy = Run("a copy since long ago", 5, through_epoch=90_000)
    ended = Run("ended before", 0, through_epoch=4)
    assert lineage.branches([*runs, copy, ended]) == (copy,)


def test_traces_of_runs_are_as_many_as_a_lineage_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedup.core.lineage.MAX_RUNS", 4)
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
        rows, epoch = list(query.rows), query.epoch
        query.go_on(f"failed-{start}")
        run(query, range(90, 91))
        query.rows, query.epoch = rows, epoch
    for start in range(12, 18):
        query.go_on(f"run-{start}")
        run(query, range(2 * start, 2 * start + 2))
    assert len(list_runs(query.root, QUERY)) <= 5
    assert query.state().branches == 0


def test_which_micro_batches_a_lineage_made() -> None:
    lineage = Lineage((Run("a", 0), Run("b", 5), Run("c", 9)))
    assert lineage.contains("a", 4)
    assert not lineage.contains("a", 5)
    assert lineage.contains("b", 8)
    assert lineage.contains("c", 99)
    assert not lineage.contains("d", 1)


def test_the_runs_of_a_quiet_query_are_listed_as_one_line(tmp_path: Path) -> None:
    query = QueryDriver(tmp_path, ROOMY)
    for start in range(4):
        query.go_on(f"run-{start}")
        run(query, range(3 * start, 3 * start + 3))
    assert query.state().branches == 0
    assert [known.run_id for known in list_runs(query.root, QUERY)] == [
        f"run-{n}" for n in range(4)
    ]
