"""One shard driven by the real core through micro-batches in which it is known what is a repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dedup.core.arrays import I64
from dedup.core.arrival import Verdict
from dedup.core.clocks import Observed
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.ports import SegmentStore
from dedup.core.records import Epoch, Records
from dedup.core.shard import process
from dedup.core.state import ShardState

#: Gives the keys of numbered IDs.
KeysOf = Callable[[I64], Keys]

#: A hash key; any will do.
HASH_KEY = bytes(range(16))
#: Of a UUID.
UUID_BYTES = 17
#: Numbers of IDs that a stream never has: asked of the filters, which must not know them.
UNKNOWN = 1 << 40
#: Fewest bytes of a key that still tell so many numbers apart.
_LEAST_KEY = 9


def synthetic_keys(key_bytes: int = UUID_BYTES) -> KeysOf:
    """Return what makes keys of numbers, as many bytes as asked for (at least 9)."""
    words = -(-(max(key_bytes, _LEAST_KEY) - 1) // 8)

    def keys(numbers: I64) -> Keys:
        data = np.empty((len(numbers), 1 + 8 * words), np.uint8)
        data[:, 0] = 1
        for word in range(words):
            with np.errstate(over="ignore"):
                mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15 + 2 * word)
            data[:, 1 + 8 * word : 9 + 8 * word] = mixed.astype(">u8").view(np.uint8).reshape(-1, 8)
        # The low bytes of a product take part of the number: the first word stays whole.
        length = max(key_bytes, _LEAST_KEY)
        flat = np.ascontiguousarray(data[:, :length]).reshape(-1)
        return Keys(flat, np.arange(len(numbers) + 1, dtype=np.int64) * length)

    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one shard is given.

    Parameters
    ----------
    rows : int
        Records per micro-batch.
    batch_ms : int
        Event time that a micro-batch spans.
    policy : Policy
    duplicates : float
        Share of records that repeat an earlier one of the shard, at any age within the horizon.
    parts : float
        Segments of the real shard for each of those that a merge makes here out of several ranges.
    """

    rows: int
    batch_ms: int
    policy: Policy
    duplicates: float = 0.05
    parts: float = 1.0

    @property
    def new(self) -> int:
        """New IDs per micro-batch, at least one."""
        return max(1, round(self.rows * (1 - self.duplicates)))

    @property
    def batches_per_horizon(self) -> int:
        """Micro-batches that pass until an ID may be forgotten, lateness apart."""
        return self.policy.horizon_ms // self.batch_ms


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One micro-batch: the state behind it, what it counted and got wrong.

    Parameters
    ----------
    now_ms : int
        Newest timestamp that it could have held.
    passed_again, wrongly_dropped : int
        Repeats that went on; IDs seen for the first time that did not.
    """

    number: int
    now_ms: int
    state: ShardState
    counts: Mapping[str, int]
    passed_again: int
    wrongly_dropped: int


def drive(
    load: Load,
    batches: int,
    keys: KeysOf,
    store_of: Callable[[int], SegmentStore],
    *,
    hash_key: bytes = HASH_KEY,
    on_stage_end: Callable[[str], None] = lambda stage: None,
) -> Iterator[Step]:
    """Let one shard judge so many micro-batches, in which it is known what is a repeat.

    Parameters
    ----------
    load : Load
    batches : int
        How many micro-batches.
    keys : callable
        Gives the keys of numbered IDs.
    store_of : callable
        Gives the store for a micro-batch.
    hash_key : bytes
        The filters'.
    on_stage_end : callable
        Called with a stage's name when it ends.
    """
    rng = np.random.default_rng(1)
    state = ShardState()
    for number in range(batches):
        first = number * load.new
        oldest = max(0, first - load.new * load.batches_per_horizon)
        repeated = rng.integers(oldest, first + load.new, load.rows - load.new)
        numbers = np.concatenate([np.arange(first, first + load.new), repeated])
        times_ms = (numbers * load.batch_ms // load.new).astype(np.int64)
        records = Records(
            keys=keys(numbers),
            times_ms=times_ms,
            flags=np.zeros(len(numbers), np.uint8),
            observed={"": Observed(int(times_ms.max()), len(numbers))},
            tie_rank=np.copy,
        )
        now_ms = (number + 1) * load.batch_ms
        epoch = Epoch(
            number=number, run_id="r", now_ms=now_ms, worker_now_ms=now_ms, shard=0,
            hash_key=hash_key,
        )  # fmt: skip
        on_stage_end("prepare")
        outcome = process(state, records, load.policy, store_of(number), epoch, on_stage_end)
        state = outcome.state
        passed = numbers[outcome.verdicts == Verdict.UNIQUE]
        # Whichever of an ID's copies in the micro-batch in which it is new.
        fresh = np.unique(passed[passed >= first])
        yield Step(
            number,
            now_ms - 1,
            state,
            {**outcome.counts, "rows": len(numbers)},
            passed_again=len(passed) - len(fresh),
            wrongly_dropped=load.new - len(fresh),
        )
