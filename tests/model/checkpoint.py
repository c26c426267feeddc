"""A checkpoint of the query: committed state rows, and what its history may take for its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from dedup.core.policy import Policy
from tests.model.items import Item
from tests.model.ledger import Ledger

BIRTH = -1


@dataclass(frozen=True)
class Commit:
    """What one micro-batch left: state rows by shard, segments that they name, and its runs."""

    rows: tuple[bytes, ...]
    live: frozenset[tuple[int, str]]
    run_ids: tuple[str, ...]
    #: Written by an attempt that lost, over the committed one.
    overwritten: bool = False


@dataclass(frozen=True)
class Zombie:
    """An attempt that continues although another one won some micro-batches earlier."""

    epoch: int
    due_epoch: int
    base: Commit
    policy: Policy
    run_ids: tuple[str, ...]
    items: list[Item]
    now_ms: int
    verdicts: list[int]


@dataclass
class Checkpoint:
    """One line of history over the catalog; copies of it go their own way."""

    policy: Policy
    run_ids: tuple[str, ...]
    event_ms: int
    ledger: Ledger = field(default_factory=Ledger)
    commits: dict[int, Commit] = field(default_factory=dict)
    batch: int = 0
    highest: int = BIRTH
    silent: frozenset[str] = frozenset()
    zombies: list[Zombie] = field(default_factory=list)
    #: When a state of this history last named a segment.
    named_ms: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def base(self) -> Commit:
        """What the next micro-batch starts from."""
        return self.commits[self.batch - 1]

    @property
    def oldest_kept(self) -> int:
        """The oldest micro-batch whose state Spark still has."""
        return max(BIRTH, self.highest - self.policy.retain_epochs)

    def kept(self) -> list[tuple[int, Commit]]:
        """States that Spark can still continue from, which must be whole."""
        # Expiry keeps segments one micro-batch longer than Spark does; sweeping does not.
        return [
            (epoch, commit)
            for epoch, commit in self.commits.items()
            if epoch >= self.oldest_kept + commit.overwritten
        ]

    def newest(self) -> list[tuple[int, Commit]]:
        """What the next micro-batch starts from, and which one that was."""
        return [(self.batch - 1, self.base)]

    def commit(self, commit: Commit) -> None:
        """Take a micro-batch as done, and forget states as Spark does."""
        self.commits[self.batch] = commit
        self.highest = max(self.highest, self.batch)
        self.batch += 1
        self.commits = dict(self.kept())

    def furthest_rollback(self) -> int:
        """How many micro-batches can be taken back."""
        return self.batch - 1 - min(self.commits)

    def roll_back(self, batches: int) -> None:
        """Continue from an earlier micro-batch; a new run must begin."""
        self.batch -= batches
        self.commits = {e: c for e, c in self.commits.items() if e < self.batch}
        self.ledger.roll_back(self.batch)
        # What only the undone future named is an orphan, as old as its file.
        live = self.base.live
        self.named_ms = {name: ms for name, ms in self.named_ms.items() if name in live}
        self.zombies.clear()

    def begin_run(self, run_id: str) -> None:
        """Restart the query."""
        self.run_ids = (*self.base.run_ids, run_id)

    def copied(self) -> Checkpoint:
        """A copy of the checkpoint's folder.

        The first to continue sees no branch until its next housekeeping, and deletes what it
        alone can do without: rollback to before the copy is promised to neither.
        """
        self.commits = {self.batch - 1: self.base}
        return replace(
            self,
            ledger=self.ledger.copy(),
            commits=dict(self.commits),
            zombies=[],
            named_ms=dict(self.named_ms),
        )


def draw_policy(rng: Random, *, event_time: bool, stable: bool, retain_epochs: int) -> Policy:
    """Options that a user may choose, and change on a restart."""
    horizon_ms = rng.choice((1, 7, 30, 60, 60, 200))
    return Policy(
        horizon_ms=horizon_ms,
        bucket_ms=rng.choice((max(1, horizon_ms // 8), -(-horizon_ms // 3), horizon_ms)),
        event_time=event_time,
        lateness_ms=rng.choice((0, 10, 60, 300)) if event_time else 0,
        late=rng.choice(("emit", "drop")),
        stable_timestamps=stable,
        source_columns=rng.choice(((), ("source",), ("source",))) if event_time else (),
        idle_timeout_ms=rng.choice((None, 0, 100, 5_000)),
        fpr=rng.choice((0.01, 0.9)),
        state_budget_bytes=rng.choice((0, 64, 400, 4_000, 1 << 15, 1 << 20)),
        segment_ids=rng.choice((4, 32, 1 << 20)),
        keep_expired_ms=rng.choice((0, 0, 5_000)),
        retain_epochs=retain_epochs,
    )
