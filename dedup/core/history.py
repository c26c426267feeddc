"""Learn a shard's IDs from history, before the first micro-batch of a query."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from dedup import kernel
from dedup.core.clocks import Clocks, Observed
from dedup.core.filter import hash_key_id
from dedup.core.policy import Policy
from dedup.core.ports import SegmentStore
from dedup.core.records import Epoch, Records
from dedup.core.shard import process
from dedup.core.state import ShardState
from dedup.core.upkeep import Upkeep
from dedup.kernel.arrays import I64

#: The engine judges about as many records at a time. All copies of a record are among them.
PART_RECORDS = 1 << 18


@dataclass(slots=True, eq=False)
class History:
    """What a shard has learned so far.

    The engine judges the records as in micro-batches of one slice of time each, by one clock.
    """

    policy: Policy
    store: SegmentStore
    epoch: Epoch
    #: Newest timestamp in the history of all shards, or NEVER_MS.
    newest_ms: int
    state: ShardState = field(init=False)
    #: Number of records that were forgotten for their age, and of those with a time in the future.
    too_old: int = field(default=0, init=False)
    future: int = field(default=0, init=False)
    #: Number of records by the end of their bucket.
    _rows: Counter[int] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.policy = replace(
            self.policy,
            late="emit",  # under "drop", buckets may expire at the late watermark
            guarantee="exactly-once",
            accept_clock_jump=True,
            source_columns=(),
            window_delay_ms=None,
            # No state that Spark could return to names what a merge replaces.
            retain_epochs=0,
            keep_expired_ms=0,
            # Before the clocks of the stream are known, no bucket is behind them.
            max_live_ids=None,
        )
        self.state = ShardState(
            bucket_ms=self.policy.bucket_ms, hash_key_id=hash_key_id(self.epoch.hash_key)
        )

    def learn(self, records: Records, end_ms: int) -> None:
        """Remember all records of a slice of time, after the older slices. It ends at `end_ms`."""
        self._learn(records, min(end_ms, self.newest_ms))

    def first_state(self, records: Records) -> ShardState:
        """Remember the rest, and return the state before micro-batch 0, with fresh clocks."""
        self._learn(records, self.newest_ms)
        gc_ms = self.state.clocks.gc_watermark_ms
        self.too_old = sum(count for end_ms, count in self._rows.items() if end_ms <= gc_ms)
        upkeep = Upkeep(self.state, self.policy, self.store, self.epoch, records=0)
        state = upkeep.seal_all()
        return state.restarted(replace(state, clocks=Clocks()), state.manifest)

    def _learn(self, records: Records, clock_ms: int) -> None:
        """Let the engine judge the records, in parts of bounded size. The clock advances last."""
        if self.policy.event_time:
            length_ms = self.policy.bucket_ms
            starts, counts = np.unique(records.times_ms // length_ms, return_counts=True)
            ends_ms = ((starts + 1) * length_ms).tolist()
            self._rows.update(dict(zip(ends_ms, counts.tolist(), strict=True)))
        parts = _parts(records, self.epoch.hash_key)
        for number, own in enumerate(parts, 1):
            advances = self.policy.event_time and number == len(parts)
            own = replace(own, observed={"": Observed(clock_ms, 1)} if advances else {})
            outcome = process(self.state, own, self.policy, self.store, self.epoch)
            self.state = outcome.state
            self.future += outcome.counts["future"]
            self.epoch = replace(self.epoch, number=self.epoch.number + 1)


def _parts(records: Records, hash_key: bytes) -> list[Records]:
    """Divide records by their IDs, so that all copies of an ID are in one part."""
    count = 1 + len(records.flags) // PART_RECORDS
    if count == 1:
        return [records]
    hashes = kernel.hash64(records.keys.data, records.keys.offsets, hash_key)
    part_of = hashes % np.uint64(count)
    return [_part(records, np.flatnonzero(part_of == part)) for part in range(count)]


def _part(records: Records, index: I64) -> Records:
    """Return some records of history, which has no source partitions and observes no clock."""
    hashes = records.payload_hashes
    return replace(
        records,
        keys=records.keys.take(index),
        times_ms=records.times_ms[index],
        flags=records.flags[index],
        payload_hashes=None if hashes is None else hashes[index],
        tie_rank=lambda tied: records.tie_rank(index[tied]),
    )
