"""The world of the model: one catalog on files and RocksDB, and the checkpoints that use it.

Micro-batches run as in dedup.spark.executor.group: base state from bytes, housekeeping, verdicts,
state row. After every attempt the catalog's folder is compared with what may be missing there.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch
from zlib import crc32

import numpy as np

from dedup.catalog.cache import LocalCache
from dedup.catalog.gc import housekeeping
from dedup.catalog.gc.housekeeping import housekeep
from dedup.catalog.open_views import OpenViews
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core import filter_choice, upkeep
from dedup.core.admission import FLAG_UNTIMED
from dedup.core.arrival import Verdict
from dedup.core.clocks import Observed
from dedup.core.policy import MAX_OPEN_SEGMENTS, Policy
from dedup.core.records import Epoch
from dedup.core.shard import process
from dedup.core.state import ShardState
from dedup.storage.root import Root
from tests.model.history import (
    BIRTH,
    Checkpoint,
    Commit,
    Item,
    Judged,
    Zombie,
    draw_policy,
    hear,
    make_items,
    marked,
    pack,
    shuffled,
)
from tests.support.catalog import HASH_KEY, KEY_ID, QUERY, SECRET, DirectoryFileSystem

#: Later than every real clock, so that files are as old as the model says and not younger.
BEGIN_MS = 4_102_444_800_000
#: Budgets from here on hold the head of every state that the model makes.
ROOMY_BUDGET_BYTES = 1 << 15
#: The clock is set back by less than this in all, now and then.
SET_BACK_MS = 1_000


class World:
    """A catalog root, a local cache, and one or more checkpoints.

    Parameters
    ----------
    folder : Path
        Empty.
    rng : Random
        Chooses the kind of world.
    """

    def __init__(self, folder: Path, rng: Random) -> None:
        self.folder = folder
        self.tally: Counter[str] = Counter()
        self.shards = rng.choice((1, 1, 2))
        self.retain_epochs = rng.choice((1, 3, 8, 20, 60))
        self.event_time = rng.random() < 0.75
        self.stable = self.event_time and rng.random() < 0.35
        self.cache_bytes = rng.choice((20_000, 10 << 30))
        remote = rng.random() < 0.3
        self.where = DirectoryFileSystem(str(folder / "remote")) if remote else folder / "root"
        self.query_folder = (
            folder / "remote" / "bucket" / "catalog" if remote else folder / "root"
        ) / QUERY
        self.now_ms = BEGIN_MS
        self.attempts = 0
        self.runs_begun = 0
        self.max_views = rng.choice((4, 64, 64))
        self.views = OpenViews(self.max_views)
        #: Storage time of every file under the shards' folders.
        self.files: dict[tuple[int, str], int] = {}
        self.own_times_ms: dict[bytes, int | None] = {}
        birth = Commit((b"",) * self.shards, frozenset(), ())
        first = Checkpoint(self.draw_policy(rng), (), BEGIN_MS - 100, commits={BIRTH: birth})
        first.begin_run(self.new_run_id())
        self.checkpoints = [first]
        self._patches = ExitStack()
        # In production a shard keeps house as often as Spark drops states, or more often.
        self.set_constant(housekeeping, "LOOK_STRIDE", min(100, self.retain_epochs))
        if rng.random() < 0.5:
            self.set_constant(upkeep, "MAX_EXPIRED_NAMES", 8)
            self.set_constant(upkeep, "MAX_DELETES", 4)
        if rng.random() < 0.5:
            # So that filters also come and go by load, not only by the bound.
            self.set_constant(filter_choice, "LEAST_BYTES", 1 << 10)

    def set_constant(self, module: object, name: str, value: int) -> None:
        """Another value for as long as the world is open; `monkeypatch` would end out of order."""
        self._patches.enter_context(patch.object(module, name, value))

    def close(self) -> None:
        """Close all files and put the module constants back."""
        self.views.close_all()
        self._patches.close()

    def draw_policy(self, rng: Random) -> Policy:
        """Options that this world's query may have."""
        return draw_policy(
            rng, event_time=self.event_time, stable=self.stable, retain_epochs=self.retain_epochs
        )  # fmt: skip

    def new_run_id(self) -> str:
        """A run ID that was never there before."""
        self.runs_begun += 1
        return f"run{self.runs_begun}"

    def new_process(self) -> None:
        """All open views are gone, as after the loss of every Python worker."""
        self.views.close_all()
        self.views = OpenViews(self.max_views)

    # --- micro-batches

    def micro_batch(
        self,
        line: Checkpoint,
        rng: Random,
        *,
        before: Callable[[list[Item]], list[int] | None] | None = None,
        zombie_after: int | None = None,
    ) -> None:
        """Run and commit the next micro-batch of a checkpoint.

        Parameters
        ----------
        before
            What attempts that do not win do first; it returns verdicts, where it came to any.
        zombie_after
            An attempt continues so many micro-batches after the winner; 0: before its commit.
        """
        self._advance_clocks(line, rng)
        items = make_items(
            rng, line.ledger, line.policy, event_ms=line.event_ms, batch=line.batch,
            silent=line.silent, own_times_ms=self.own_times_ms,
        )  # fmt: skip
        lost = before(items) if before is not None else None
        base, now_ms = line.base, self.now_ms
        commit, verdicts = self.attempt(line, items, rng)
        assert lost in (None, verdicts), "a replay answers the same"
        if zombie_after is not None:
            zombie = Zombie(
                line.batch, line.batch + zombie_after, base, line.policy, line.run_ids, items,
                now_ms, verdicts,
            )  # fmt: skip
            if zombie_after == 0:
                commit = rng.choice((commit, self.wake(zombie, rng)))
            else:
                line.zombies.append(zombie)
        self._judge(line, base, items, verdicts)
        self._check_states(line, base, commit)
        line.commit(commit)
        for segment in commit.live:
            line.named_ms[segment] = now_ms
        for zombie in [z for z in line.zombies if z.due_epoch < line.batch]:
            line.zombies.remove(zombie)
            late_commit = self.wake(zombie, rng)
            # With the old checkpoint format the last writer wins, even of a committed state.
            if zombie.run_ids == line.run_ids and rng.random() < 0.5:
                self._check_states(line, zombie.base, late_commit)
                if zombie.epoch + 1 < line.batch:
                    line.commits[zombie.epoch] = replace(late_commit, overwritten=True)
        self.check_files(line)
        self.tally["micro-batches"] += 1
        self.tally["records"] += len(items)

    def _advance_clocks(self, line: Checkpoint, rng: Random) -> None:
        line.event_ms += rng.choice((0, 0, 5, 20, 60, 300))
        self.now_ms += rng.choice((0, 10, 100, 400, -30))
        if line.event_ms > self.now_ms:
            self.now_ms = line.event_ms + rng.randint(0, 400)

    def wake(self, zombie: Zombie, rng: Random) -> Commit:
        """Let an attempt that lost do all its work; return the state that it would leave."""
        line = Checkpoint(
            zombie.policy, zombie.run_ids, 0, commits={zombie.epoch - 1: zombie.base},
            batch=zombie.epoch,
        )  # fmt: skip
        now_ms, self.now_ms = self.now_ms, zombie.now_ms
        commit, verdicts = self.attempt(line, zombie.items, rng)
        self.now_ms = now_ms
        assert verdicts == zombie.verdicts, "a replay answers the same"
        self.tally["zombies"] += 1
        return commit

    def attempt(
        self,
        line: Checkpoint,
        items: list[Item],
        rng: Random,
        *,
        root: Root | None = None,
        rows: tuple[bytes, ...] | None = None,
    ) -> tuple[Commit, list[int]]:
        """One attempt at the next micro-batch, of every shard; return its state and verdicts."""
        observed = hear(items, line.policy, self.now_ms)
        new_rows: list[bytes] = []
        live: set[tuple[int, str]] = set()
        verdicts = [-1] * len(items)
        by_rank = {item.rank: at for at, item in enumerate(items)}
        try:
            for shard in range(self.shards):
                mine = [i for i in items if crc32(i.id or b"") % self.shards == shard]
                mine = shuffled(rng, mine)
                row = (rows or line.base.rows)[shard]
                state, given = self._attempt_shard(line, shard, row, mine, observed, root)
                new_rows.append(state.to_bytes())
                live |= {(shard, segment.name) for segment in state.manifest.segments()}
                for item, verdict in zip(mine, given, strict=True):
                    verdicts[by_rank[item.rank]] = verdict
        finally:
            self.audit(line)
        return Commit(tuple(new_rows), frozenset(live), line.run_ids), verdicts

    def _attempt_shard(
        self,
        line: Checkpoint,
        shard: int,
        row: bytes,
        items: list[Item],
        observed: dict[str, Observed],
        root: Root | None,
    ) -> tuple[ShardState, list[int]]:
        root = root or Root(self.where)
        self.attempts += 1
        run_id, now_ms = line.run_ids[-1], self.now_ms
        store = ShardStore(
            ShardFiles(
                root,
                LocalCache(QUERY, self.folder / "cache", self.cache_bytes),
                QUERY,
                shard,
                SECRET,
            ),
            Attempt(line.batch, run_id, self.attempts),
            self.views,
        )
        base = ShardState.from_bytes(row, hash_key_id=KEY_ID) if row else ShardState()
        epoch = Epoch(
            number=line.batch, run_id=run_id, now_ms=now_ms, worker_now_ms=now_ms,
            shard=shard, hash_key=HASH_KEY,
        )  # fmt: skip
        base, swept = housekeep(root, QUERY, epoch, base, line.policy)
        outcome = process(
            base,
            pack(items, line.policy, now_ms=now_ms, observed=observed),
            line.policy,
            store,
            epoch,
        )
        counts = Counter(outcome.counts)
        told = sum(counts[v.name.lower()] for v in Verdict)
        assert counts["records_in"] == len(items) == told
        self.tally["orphans swept"] += swept
        self.tally["branched"] += outcome.state.branches > 0
        for name in ("segments_written", "segments_merged", "segments_deleted", "duplicate", "late",
                     "untimed", "filter_false_positive", "returned_from_idle"):  # fmt: skip
            self.tally[name] += counts[name]
        before = {s.name for s in base.manifest.segments()} - set(base.filters)
        live = {s.name for s in outcome.state.manifest.segments()}
        self.tally["filters returned"] += len(before & set(outcome.state.filters))
        self.tally["filters evicted"] += len(set(base.filters) & live - set(outcome.state.filters))
        self.tally["filters_rebuilt"] += store.counters.filters_rebuilt
        self.tally["views_rebuilt"] += store.counters.views_rebuilt
        return outcome.state, outcome.verdicts.tolist()

    # --- what must hold

    def _judge(
        self, line: Checkpoint, base: Commit, items: list[Item], verdicts: list[int]
    ) -> None:
        policy, clocks = line.policy, self.state(base, 0).clocks
        times_ms, flags = marked(items, policy, self.now_ms)
        untimed = (flags & FLAG_UNTIMED) != 0
        if policy.event_time:
            late = times_ms < clocks.late_watermark_ms
            times_ms = np.maximum(times_ms, clocks.late_watermark_ms)
        else:
            times_ms = np.full(len(items), clocks.effective_now(self.now_ms))
            late = np.zeros(len(items), bool)
        judged = [
            Judged(item.id, int(times_ms[i]), item.rank, bool(late[i]), bool(untimed[i]), verdict)
            for i, (item, verdict) in enumerate(zip(items, map(Verdict, verdicts), strict=True))
        ]
        line.ledger.judge(judged, policy, line.batch)

    def _check_states(self, line: Checkpoint, base: Commit, commit: Commit) -> None:
        policy = line.policy
        states = [self.state(commit, shard) for shard in range(self.shards)]
        before = self.state(base, 0).clocks
        assert all(state.clocks == states[0].clocks for state in states), "shards hear the same"
        clocks = states[0].clocks
        for name in ("low_watermark_ms", "late_watermark_ms", "gc_watermark_ms"):
            assert getattr(clocks, name) >= getattr(before, name), f"{name} fell"
        for row, state in zip(commit.rows, states, strict=True):
            assert state.tail.nbytes <= max(policy.state_budget_bytes // 2, 16)
            filter_bytes = sum(held.nbytes for held in state.filters.values())
            assert filter_bytes <= policy.max_filter_state_bytes, "filters keep to their bound"
            if policy.state_budget_bytes >= ROOMY_BUDGET_BYTES:
                rest_bytes = len(row) - filter_bytes
                assert rest_bytes <= policy.state_budget_bytes, "the rest keeps to its budget"
            assert len(state.manifest.expired) <= upkeep.MAX_EXPIRED_NAMES
            for bucket in state.manifest.buckets:
                assert bucket.depth <= MAX_OPEN_SEGMENTS, f"{bucket.depth} segments deep"

    def check_files(self, line: Checkpoint) -> None:
        """Every state that can still be gone on from, of every checkpoint, is whole."""
        there = {key for key in self.files if key[1].endswith(".sst")}
        for other in self.checkpoints:
            for epoch, commit in other.kept() if other is line else other.newest():
                missing = {key for key in commit.live if (key[0], f"{key[1]}.sst") not in there}
                assert not missing, f"state of micro-batch {epoch} lacks {sorted(missing)}"

    def audit(self, line: Checkpoint, *, by_user: bool = False) -> None:
        """Note new files, and judge every deletion by the rules of invariant 4."""
        seen: set[tuple[int, str]] = set()
        for shard in range(self.shards):
            folder = self.shard_folder(shard)
            for name in os.listdir(folder) if folder.exists() else ():
                seen.add((shard, name))
                if (shard, name) not in self.files:
                    self.files[shard, name] = self.now_ms
                    os.utime(folder / name, (self.now_ms / 1000, self.now_ms / 1000))
        policy = line.policy
        for shard, name in self.files.keys() - seen:
            came_ms = self.files.pop((shard, name))
            stem, _, suffix = name.rpartition(".")
            if suffix not in ("sst", "filter", "pending-list"):
                continue
            epoch, run_id = int(stem.split("-")[0]), stem.split("-")[1]
            for other in self.checkpoints:
                # Only the branch that deletes may roll back; the others must continue.
                for kept, commit in other.kept() if other is line else other.newest():
                    assert (shard, stem) not in commit.live, (
                        f"shard {shard}: micro-batch {line.batch} of {line.run_ids[-3:]} deleted "
                        f"{name}, micro-batch {kept} of {other.run_ids[-3:]} names it"
                    )
            if by_user:
                continue
            self.tally["deletions audited"] += 1
            assert run_id in line.run_ids, f"{name} is deleted by {line.run_ids}"
            if suffix != "pending-list":  # a pending list may be younger than what it names
                assert line.batch - epoch > policy.retain_epochs, f"{name} is deleted too soon"
                last_ms = max(came_ms, line.named_ms.get((shard, stem), came_ms))
                age_ms = self.now_ms - last_ms
                assert age_ms >= policy.keep_expired_ms - SET_BACK_MS, f"{name}: {age_ms} ms old"

    # --- looking at things

    def state(self, commit: Commit, shard: int) -> ShardState:
        """A shard's state, read back from its bytes."""
        row = commit.rows[shard]
        return ShardState.from_bytes(row, hash_key_id=KEY_ID) if row else ShardState()

    def shard_folder(self, shard: int) -> Path:
        """The shard's files on disk, independent of the catalog's view."""
        return self.query_folder / f"shard={shard:05d}"

    def lose_cache(self) -> None:
        """This machine's disk is new."""
        self.new_process()
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def resized(self, line: Checkpoint, rng: Random) -> Policy:
        """Other options for a restart, among those that this history still allows."""
        policy = replace(self.draw_policy(rng), late=rng.choice(("emit", "drop")))
        states = [self.state(line.base, shard) for shard in range(self.shards)]
        if any(s.clocks.gc_watermark_ms < s.forgotten_before_ms for s in states):
            policy = replace(policy, late="drop")
        return policy
