"""Records of the model: made at random around what was taken before, and packed for the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from dedup.core.admission import FLAG_FUTURE, FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED
from dedup.core.clocks import NEVER_MS, Observed
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.records import Records
from tests.model.ledger import Ledger

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
