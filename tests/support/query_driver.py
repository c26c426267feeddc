"""Micro-batches of a whole query as the group function does them: core and catalog, no Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dedup import kernel
from dedup.catalog.backup import backup_is_due, read_adopted, write_backup
from dedup.catalog.cache import LocalCache
from dedup.catalog.compatibility import create_or_check
from dedup.catalog.gc.housekeeping import housekeep
from dedup.catalog.open_views import OpenViews
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.arrival import Verdict
from dedup.core.clocks import Observed
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.records import Epoch, Records
from dedup.core.shard import process
from dedup.core.sharding import derive_keys, shards_of
from dedup.core.state import ShardState
from dedup.spark.id_encoding import ENCODING
from dedup.storage.root import Root
from tests.support.catalog import KEY_ID, QUERY, SECRET, certificate

SHARD_KEY, HASH_KEY = derive_keys(QUERY, SECRET)

DAY_MS = 86_400_000
POLICY = Policy(
    horizon_ms=7 * DAY_MS, bucket_ms=DAY_MS, event_time=True, lateness_ms=3_600_000,
    state_budget_bytes=40_000,
)  # fmt: skip
#: Nothing is sealed under it.
ROOMY = replace(POLICY, state_budget_bytes=1 << 30)
PER_BATCH = 100
#: An ID and its timestamp.
Rec = tuple[bytes, int]


@dataclass
class QueryDriver:
    """A query and its checkpoint: `rows` are the state rows, `history` those before each epoch."""

    folder: Path
    policy: Policy
    shards: int = 1
    now_ms: int = 1_800_000_000_000
    run_id: str = "run-1"
    epoch: int = 0
    rows: list[bytes] = field(default_factory=list)
    history: dict[int, list[bytes]] = field(default_factory=dict)
    attempts: int = 0

    def __post_init__(self) -> None:
        self.root = Root(self.folder / "root")
        self.rows = self.rows or [b""] * self.shards
        born = certificate(
            shards=self.shards,
            encoding=ENCODING,
            timestamp_source="column ts timestamp",
            stable_timestamps=self.policy.stable_timestamps,
        )
        create_or_check(self.root, born)

    def batch(self, recs: list[Rec], policies: dict[int, Policy] | None = None) -> list[str]:
        """Run and commit a micro-batch; its verdicts by name, in order."""
        self.history[self.epoch] = list(self.rows)
        keys = Keys.from_list([name for name, _ in recs])
        shard_of = shards_of(kernel.hash64(keys.data, keys.offsets, SHARD_KEY), self.shards)
        observed = {"": Observed(max(at for _, at in recs), len(recs))} if recs else {}
        told = np.full(len(recs), 255, np.uint8)
        for shard in range(self.shards):
            mine = np.flatnonzero(shard_of == shard)
            records = Records(
                keys=keys.take(mine),
                times_ms=np.array([recs[n][1] for n in mine], np.int64),
                flags=np.zeros(len(mine), np.uint8),
                observed=observed,
                tie_rank=np.copy,
            )
            told[mine] = self._shard(shard, records, (policies or {}).get(shard, self.policy))
        self.epoch += 1
        return [Verdict(int(v)).name for v in told]

    def _shard(self, shard: int, records: Records, policy: Policy) -> np.ndarray:
        self.attempts += 1
        adopted = None if self.rows[shard] else read_adopted(self.root, QUERY, shard)
        if adopted is not None:
            adopted.check_key(KEY_ID)
        base = self.state(shard) if self.rows[shard] else adopted or ShardState()
        if backup_is_due(self.root, QUERY, shard, base, self.run_id):
            write_backup(self.root, QUERY, shard, base)
        epoch = Epoch(
            number=self.epoch,
            run_id=self.run_id,
            now_ms=self.now_ms,
            worker_now_ms=self.now_ms,
            shard=shard,
            hash_key=HASH_KEY,
        )
        base, _ = housekeep(self.root, QUERY, epoch, base, policy)
        views = OpenViews(8)
        store = ShardStore(
            ShardFiles(self.root, LocalCache(QUERY, self.folder / "cache"), QUERY, shard, SECRET),
            Attempt(self.epoch, self.run_id, self.attempts),
            views,
        )
        outcome = process(base, records, policy, store, epoch)
        views.close_all()
        self.rows[shard] = outcome.state.to_bytes()
        return outcome.verdicts

    def state(self, shard: int = 0) -> ShardState:
        return ShardState.from_bytes(self.rows[shard], hash_key_id=KEY_ID)

    def states(self) -> dict[int, ShardState]:
        return {shard: self.state(shard) for shard in range(self.shards)}

    def go_on(self, run_id: str, *, from_epoch: int | None = None) -> None:
        """Start again, from an older checkpoint where an epoch is given."""
        if from_epoch is not None:
            self.rows, self.epoch = list(self.history[from_epoch]), from_epoch
        self.run_id = run_id

    def begin_adopted(self, run_id: str) -> None:
        """Start with the empty checkpoint that an adoption made."""
        self.rows, self.epoch, self.run_id = [b""] * self.shards, 0, run_id


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


def give_up(query: QueryDriver, run_id: str, number: int, *, from_epoch: int | None = None) -> None:
    """Start with one micro-batch that is never committed."""
    rows, epoch = list(query.rows), query.epoch
    query.go_on(run_id, from_epoch=from_epoch)
    run(query, range(number, number + 1))
    query.rows, query.epoch = rows, epoch
