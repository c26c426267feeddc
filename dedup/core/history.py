"""Learn a shard's IDs from history, before the first micro-batch of a query."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dedup.core.clocks import Clocks, Observed
from dedup.core.filter import hash_key_id
from dedup.core.policy import Policy
from dedup.core.ports import SegmentStore
from dedup.core.records import Epoch, Records
from dedup.core.shard import process
from dedup.core.state import ShardState
from dedup.core.upkeep import Upkeep


@dataclass(slots=True, eq=False)
class History:
    """What a shard has learned so far.

    The engine judges the records as in micro-batches of one bucket each, by one clock.
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
        )
        self.state = ShardState(
            bucket_ms=self.policy.bucket_ms, hash_key_id=hash_key_id(self.epoch.hash_key)
        )

    def learn(self, records: Records, start_ms: int) -> None:
        """Remember the records of a bucket, all of them at once. Older buckets come first."""
        policy, end_ms = self.policy, start_ms + self.policy.bucket_ms
        if policy.event_time:
            records = replace(records, observed={"": Observed(min(self.newest_ms, end_ms), 1)})
            if end_ms <= self.newest_ms - policy.lateness_ms - policy.horizon_ms:
                self.too_old += len(records.flags)
        outcome = process(self.state, records, policy, self.store, self.epoch)
        self.state = outcome.state
        self.future += outcome.counts["future"]
        self.epoch = replace(self.epoch, number=self.epoch.number + 1)

    def first_state(self) -> ShardState:
        """Write the newest IDs, and return the state before micro-batch 0, with fresh clocks."""
        upkeep = Upkeep(self.state, self.policy, self.store, self.epoch, records=0)
        state = upkeep.seal_all()
        return state.restarted(replace(state, clocks=Clocks()), state.manifest)
