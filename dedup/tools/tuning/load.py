"""A synthetic load on one shard.

The engine (`dedup.core`) judges the records. Its catalog is in memory, and counts its work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dedup import kernel
from dedup.catalog.blocks import block_count, block_numbers
from dedup.core.arrival import Verdict
from dedup.core.clocks import Observed
from dedup.core.entries import Entries
from dedup.core.filter import SplitBlockFilter
from dedup.core.hash_ranges import hash_range, spread_hashes
from dedup.core.keys import Keys
from dedup.core.policy import Policy
from dedup.core.ports import ABSENT_MS, SegmentStore
from dedup.core.records import Epoch, Records
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.core.shard import process
from dedup.core.state import ShardState
from dedup.errors import FilterDamaged
from dedup.kernel.arrays import BOOL, I64, U64

#: Function that returns the keys of IDs, given their numbers.
KeysOf = Callable[[I64], Keys]

#: Arbitrary key of the hash in filters.
HASH_KEY = bytes(range(16))
#: Length of a UUID's canonical bytes.
UUID_BYTES = 17
#: IDs with this number or a larger one never occur in a load.
UNKNOWN = 1 << 40
#: Bytes of the shortest key of a load: a first byte and the 64-bit number in the key.
_LEAST_KEY = 9
#: Bytes that a segment file needs for an ID besides the key, as measured.
SST_BYTES_BESIDE_KEY = 4.4


def synthetic_keys(key_bytes: int = UUID_BYTES) -> KeysOf:
    """Return a function that makes keys from numbers. Keys have `key_bytes` bytes, at least 9."""
    words = -(-(max(key_bytes, _LEAST_KEY) - 1) // 8)

    def keys(numbers: I64) -> Keys:
        data = np.empty((len(numbers), 1 + 8 * words), np.uint8)
        data[:, 0] = 1
        for word in range(words):
            with np.errstate(over="ignore"):
                mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15 + 2 * word)
            data[:, 1 + 8 * word : 9 + 8 * word] = mixed.astype(">u8").view(np.uint8).reshape(-1, 8)
        # Keep the whole first word, because its last bytes alone do not identify the number.
        length = max(key_bytes, _LEAST_KEY)
        flat = np.ascontiguousarray(data[:, :length]).reshape(-1)
        return Keys(flat, np.arange(len(numbers) + 1, dtype=np.int64) * length)

    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The records that one shard receives, and the policy by which it judges them."""

    #: Number of records per micro-batch.
    rows: int
    #: Length of the event time that a micro-batch covers.
    batch_ms: int
    policy: Policy
    #: Share of records that repeat an earlier record, which may be as old as the horizon.
    duplicates: float = 0.05
    #: Number of segments in the real shard for every segment that a merge writes here.
    parts: float = 1.0

    @property
    def new(self) -> int:
        """Number of new IDs per micro-batch, at least one."""
        return max(1, round(self.rows * (1 - self.duplicates)))

    @property
    def batches_per_horizon(self) -> int:
        """Number of micro-batches after which an ID may expire, without lateness."""
        return self.policy.horizon_ms // self.batch_ms


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The result of a micro-batch: the state of the shard, counts, and wrong verdicts.

    `now_ms` is the newest possible timestamp of the micro-batch. `passed_again` counts repeats that
    passed. `wrongly_dropped` counts new IDs that did not pass.
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
    store: SegmentStore,
    *,
    hash_key: bytes = HASH_KEY,
    on_stage_end: Callable[[str], None] = lambda stage: None,
) -> Iterator[Step]:
    """Let one shard judge micro-batches with known repeats, and yield a step after every one.

    `hash_key` is the key of the hash in filters. Calls `on_stage_end` with the name of every
    finished stage.
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
        outcome = process(state, records, load.policy, store, epoch, on_stage_end)
        state = outcome.state
        passed = numbers[outcome.verdicts == Verdict.UNIQUE]
        # One copy of a new ID passes, and it may be any copy.
        fresh = np.unique(passed[passed >= first])
        yield Step(
            number,
            now_ms - 1,
            state,
            {**outcome.counts, "rows": len(numbers)},
            passed_again=len(passed) - len(fresh),
            wrongly_dropped=load.new - len(fresh),
        )


@dataclass(slots=True)
class CountingStore:
    """A `dedup.core.ports.SegmentStore` in memory that counts blocks read and IDs written."""

    content: dict[str, Entries] = field(default_factory=dict)
    filters: dict[str, SplitBlockFilter] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    names: int = 0

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        return self.filters[seg.name].may_contain(seg.spread(hashes))

    def read_filter(self, seg: SegmentRef) -> SplitBlockFilter | None:
        return self.filters[seg.name]

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64, digests: U64 | None = None) -> I64:
        assert digests is None, "a trial has no payloads"
        self.counts["blocks_read"] += len(
            np.unique(block_numbers(seg.spread(hashes), block_count(seg.count)))
        )
        entries = self.content[seg.name]
        times_ms = np.full(len(keys), ABSENT_MS, np.int64)
        index, entry = kernel.match(
            entries.keys.data, entries.keys.offsets, entries.hashes, keys.data, keys.offsets, hashes
        )
        times_ms[index] = entries.times_ms[entry]
        return times_ms

    def read_segment(self, seg: SegmentRef, hash_ranges: int = 1, range_index: int = 0) -> Entries:
        entries = self.content[seg.name]
        return entries[hash_range(entries.hashes, hash_ranges, range_index)]

    def write_segment(
        self, plan: SegmentPlan, pieces: Sequence[Entries]
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        """Write a segment with its filter. Raises FilterDamaged if the filter lacks an entry."""
        entries = Entries.joined(pieces)
        spread = spread_hashes(entries.hashes, plan.hash_ranges)
        built = SplitBlockFilter.build(spread, plan.fpr, hash_key_id=1)
        missing = int((~built.may_contain(spread)).sum())
        if missing:
            raise FilterDamaged(
                f"A filter of this installation ({kernel.PATH} kernel) lacks {missing:,} IDs that "
                "were added to it: duplicates would pass. Run no query with this installation, and "
                "report this as a defect of dedup."
            )
        name = f"{self.names:08d}"
        self.names += 1
        sst_bytes = round(len(entries.keys.data) + SST_BYTES_BESIDE_KEY * len(entries))
        self.content[name] = entries
        self.filters[name] = built
        self.counts["ids_written"] += len(entries)
        size = (len(entries), sst_bytes, 0, built.nbytes, 0)
        bucket = plan.start_ms, plan.end_ms
        return SegmentRef(name, *bucket, *size, plan.hash_ranges, plan.range_index), built

    def delete(self, names: Sequence[str]) -> int:
        for name in names:
            self.content.pop(name, None)
            self.filters.pop(name, None)
        return len(names)

    def spill_pending(self, names: Sequence[str]) -> str:
        return "pending_list"

    def delete_pending(self, pending_list: str) -> int:
        return 0

    def loss_accepted(self, seg: SegmentRef) -> bool:
        return False
