"""A query's history in the model: its records, the oracle over them, and its checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from dedup.core.admission import FLAG_FUTURE, FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED
from dedup.core.arrival import Verdict
from dedup.core.clocks import NEVER_MS, Observed
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.records import Records

MAX_FUTURE_MS = 50
SOURCES = ("p", "q", "r")
_CLOCKS = ("", *SOURCES)
POOL = [b"pool-%d" % i for i in range(6)] + [b"", b"\x00" * 16]


@dataclass(frozen=True)
class Item:
    """A record: its ID (None: null), own timestamp (None: null), source, and rank among ties."""

    id: bytes | None
    time_ms: int | None
    source: str
    rank: int

    @property
    def untimed(self) -> bool:
        """Whether nothing gives its time: every second record without a time."""
        return self.time_ms is None and self.rank % 2 == 1


def make_items(
    rng: Random,
    ledger: Ledger,
    policy: Policy,
    *,
    event_ms: int,
    batch: int,
    silent: frozenset[str],
    own_times_ms: dict[bytes, int | None],
) -> list[Item]:
    """The records of one micro-batch; stable timestamps give each copy the time of the first."""
    speaking = [source for source in SOURCES if source not in silent] or list(SOURCES)
    items: list[Item] = []
    for n in range(rng.choice((0, 1, 3, 8, 20))):
        record_id, time_ms = _one(rng, ledger, policy, event_ms, b"%d-%d-%x" % (
            batch, n, rng.getrandbits(40)))  # fmt: skip
        if items and rng.random() < 0.2:  # a copy within the micro-batch
            record_id = rng.choice(items).id
            if rng.random() < 0.5:
                time_ms = rng.choice(items).time_ms
        if policy.stable_timestamps and record_id is not None:
            time_ms = own_times_ms.setdefault(record_id, time_ms)
        items.append(Item(record_id, time_ms, rng.choice(speaking), rng.getrandbits(60)))
    return items


def _one(
    rng: Random, ledger: Ledger, policy: Policy, event_ms: int, new_id: bytes
) -> tuple[bytes | None, int | None]:
    horizon_ms = policy.horizon_ms
    kind = rng.choices(
        ("fresh", "pool", "near", "old", "late", "future", "null id", "null time"),
        (30, 15, 30, 6, 8, 3, 4, 4),
    )[0]
    known = ledger.sample(rng, recent=kind != "old")
    if kind == "fresh" or (kind in ("near", "old") and known is None):
        return new_id, event_ms - rng.randint(0, 20)
    if kind in ("near", "old"):
        assert known is not None
        record_id, taken_ms = known
        edge = rng.choice((0, 1, horizon_ms - 1, horizon_ms, horizon_ms + 1, rng.randint(0, 300)))
        return record_id, taken_ms + edge * rng.choice((1, 1, -1))
    if kind == "pool":
        return rng.choice(POOL), event_ms - rng.randint(-10, 200)
    some_id = known[0] if known and rng.random() < 0.6 else new_id
    if kind == "late":
        return some_id, event_ms - rng.randint(100, 900)
    if kind == "future":
        return some_id, event_ms + rng.choice((60, 1_000, 10_000_000))
    return (None, event_ms) if kind == "null id" else (some_id, None)


def marked(items: Sequence[Item], policy: Policy, now_ms: int) -> tuple[np.ndarray, np.ndarray]:
    """Timestamps with future and null ones substituted, and flags, as pack sets them."""
    own = np.array([NEVER_MS if item.time_ms is None else item.time_ms for item in items], np.int64)
    flags = np.array([FLAG_NULL_ID * (item.id is None) for item in items], np.uint8)
    if policy.event_time:
        flags[own > now_ms + MAX_FUTURE_MS] |= FLAG_FUTURE
        flags[own == NEVER_MS] |= FLAG_NULL_TIME
        flags[[item.untimed for item in items]] |= FLAG_UNTIMED
    substituted = (flags & (FLAG_FUTURE | FLAG_NULL_TIME)) != 0
    return np.where(substituted, np.int64(now_ms), own), flags


def clock_of(item: Item, policy: Policy) -> str:
    """The source partition of a record; all are one where no columns tell them apart."""
    return item.source if policy.source_columns else ""


def hear(items: Sequence[Item], policy: Policy, now_ms: int) -> dict[str, Observed]:
    """The clocks of the whole micro-batch, which every shard hears."""
    times_ms, flags = marked(items, policy, now_ms)
    observed: dict[str, Observed] = {}
    for item, time_ms, flag in zip(items, times_ms.tolist(), flags.tolist(), strict=True):
        if flag & FLAG_UNTIMED:
            continue
        own_ms = NEVER_MS if flag & (FLAG_FUTURE | FLAG_NULL_TIME) else time_ms
        name, new = clock_of(item, policy), Observed(own_ms, 1)
        observed[name] = observed[name].merge(new) if name in observed else new
    return observed


def pack(
    items: Sequence[Item], policy: Policy, *, now_ms: int, observed: dict[str, Observed]
) -> Records:
    """One shard's records, in the order given."""
    times_ms, flags = marked(items, policy, now_ms)
    ranks = np.array([item.rank for item in items], np.int64)
    return Records(
        keys=Keys.from_list([item.id or b"" for item in items]),
        times_ms=times_ms,
        flags=flags,
        observed=observed,
        tie_rank=lambda index: ranks[index],
        sources=np.array([_CLOCKS.index(clock_of(i, policy)) for i in items], np.uint64),
        source_hashes={name: _CLOCKS.index(name) for name in observed},
    )


def shuffled(rng: Random, items: Sequence[Item]) -> list[Item]:
    """The same records in another order: what a retried stage may deliver."""
    mixed = [replace(item) for item in items]
    rng.shuffle(mixed)
    return mixed


@dataclass(frozen=True)
class Judged:
    """A record and its verdict, under its effective timestamp."""

    id: bytes | None
    effective_ms: int
    rank: int
    late: bool
    untimed: bool
    verdict: Verdict


@dataclass
class Ledger:
    """The oracle: records that passed, and the two clauses of the guarantee over them.

    By ID, their effective timestamps and micro-batches. It knows nothing of buckets, filters,
    segments or manifests.
    """

    passed: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    #: The same in order of emission, to draw from.
    in_order: list[tuple[bytes, int, int]] = field(default_factory=list)
    #: Horizon of each micro-batch.
    horizons_ms: list[int] = field(default_factory=list)

    def sample(self, rng: Random, *, recent: bool) -> tuple[bytes, int] | None:
        """An ID that passed, and its time; None if no ID has passed."""
        if not self.in_order:
            return None
        some = self.in_order[-40:] if recent else self.in_order
        record_id, time_ms, _ = rng.choice(some)
        return record_id, time_ms

    def copy(self) -> Ledger:
        """A ledger that goes its own way."""
        return copy.deepcopy(self)

    def roll_back(self, batch: int) -> None:
        """Forget everything from a micro-batch on."""
        del self.horizons_ms[batch:]
        self.in_order = [entry for entry in self.in_order if entry[2] < batch]
        self.passed = {}
        for record_id, time_ms, taken in self.in_order:
            self.passed.setdefault(record_id, []).append((time_ms, taken))

    def judge(self, records: Iterable[Judged], policy: Policy, batch: int) -> None:
        """Check the verdicts of a micro-batch that is committed, and take what passed."""
        assert len(self.horizons_ms) == batch
        self.horizons_ms.append(policy.horizon_ms)
        for record in sorted(records, key=lambda r: (r.effective_ms, r.rank)):
            if record.id is None:
                assert record.verdict == Verdict.NULL_ID, f"{record} has no ID"
                continue
            if record.untimed:
                assert record.verdict == Verdict.UNTIMED, f"{record} has no time"
                continue
            same = self.passed.get(record.id, [])
            near = [
                (time_ms, taken)
                for time_ms, taken in same
                if abs(time_ms - record.effective_ms) <= policy.horizon_ms
            ]
            if record.verdict == Verdict.DUPLICATE:
                assert near, f"clause 2: {record} has no reason to be dropped; passed: {same}"
                continue
            assert record.verdict == (Verdict.LATE if record.late else Verdict.UNIQUE), record
            emitted = record.verdict == Verdict.UNIQUE or policy.late == "emit"
            # If late records are dropped anyway, their duplicates need no verdict of DUPLICATE.
            if emitted or not policy.forgets_at_late:
                close = [entry for entry in near if self._covers(entry, record.effective_ms)]
                assert not close, f"clause 1: {record} passed although {close} did"
            if emitted:
                self.passed.setdefault(record.id, []).append((record.effective_ms, batch))
                self.in_order.append((record.id, record.effective_ms, batch))

    def _covers(self, entry: tuple[int, int], time_ms: int) -> bool:
        """Whether the guarantee covers the pair: the shortest horizon since then does."""
        taken_ms, taken = entry
        return abs(taken_ms - time_ms) <= min(self.horizons_ms[taken:])


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
        max_filter_state_bytes=rng.choice((0, 300, 2_000, 1 << 20)),
        segment_ids=rng.choice((4, 32, 1 << 20)),
        keep_expired_ms=rng.choice((0, 0, 5_000)),
        retain_epochs=retain_epochs,
    )
