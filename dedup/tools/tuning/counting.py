"""A catalog in memory that counts what a real one would do: reads, writes, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dedup import kernel
from dedup.catalog.blocks import block_count, block_numbers
from dedup.core.arrays import BOOL, I64, U64
from dedup.core.entries import Entries
from dedup.core.filter import PAGE_BLOCKS, PAGE_BYTES, SplitBlockFilter
from dedup.core.hash_ranges import hash_range, spread_hashes
from dedup.core.keys import Keys
from dedup.core.ports import ABSENT_MS
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.errors import FilterDamaged

#: Of a segment file beside the key of each ID: its time, and what blocks and RocksDB add; measured.
SST_BYTES_BESIDE_KEY = 4.4


@dataclass(slots=True)
class CountingStore:
    """Segments in memory; implements `dedup.core.ports.SegmentStore`."""

    content: dict[str, Entries] = field(default_factory=dict)
    filters: dict[str, SplitBlockFilter] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    names: int = 0

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        """Return which hashes the segment's filter may hold."""
        spread, piece = seg.spread(hashes), self.filters[seg.name]
        pages, _ = kernel.filter_pages(spread, piece.blocks, PAGE_BLOCKS)
        self.counts["filter_bytes_read"] += len(pages) * PAGE_BYTES
        return piece.may_contain(spread)

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64, digests: U64 | None = None) -> I64:
        """Return the timestamp of each key, `ABSENT_MS` where the segment lacks it."""
        assert digests is None, "a trial has no payloads"
        self.counts["blocks_read"] += len(
            np.unique(block_numbers(seg.spread(hashes), block_count(seg.count)))
        )
        held = self.content[seg.name]
        times_ms = np.full(len(keys), ABSENT_MS, np.int64)
        asked, entry = kernel.match(
            held.keys.data, held.keys.offsets, held.hashes, keys.data, keys.offsets, hashes
        )
        times_ms[asked] = held.times_ms[entry]
        return times_ms

    def read_segment(self, seg: SegmentRef, hash_ranges: int = 1, range_index: int = 0) -> Entries:
        """Return the entries of a range of hashes."""
        entries = self.content[seg.name]
        inside = hash_range(entries.hashes, hash_ranges, range_index)
        self.counts["ids_read"] += inside.stop - inside.start
        return entries[inside]

    def write_segment(
        self, plan: SegmentPlan, pieces: Sequence[Entries]
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        """Return the entries as a new segment.

        Raises
        ------
        FilterDamaged
            If its filter does not know one of them.
        """
        entries = Entries.joined(pieces)
        spread = spread_hashes(entries.hashes, plan.hash_ranges)
        built = SplitBlockFilter.build(spread, plan.fpr, hash_key_id=1)
        forgotten = int((~built.may_contain(spread)).sum())
        if forgotten:
            raise FilterDamaged(
                f"A filter of this installation ({kernel.PATH} kernel) did not know {forgotten:,} "
                "IDs that were added to it: duplicates would pass. Run no query with it, and "
                "report this as a defect of dedup."
            )
        name = f"{self.names:08d}"
        self.names += 1
        sst_bytes = round(len(entries.keys.data) + SST_BYTES_BESIDE_KEY * len(entries))
        self.content[name] = entries
        self.filters[name] = built
        self.counts["puts"] += 2
        self.counts["ids_written"] += len(entries)
        self.counts["bytes_written"] += sst_bytes + built.nbytes
        size = (len(entries), sst_bytes, 0, built.nbytes, 0)
        bucket = plan.start_ms, plan.end_ms
        return SegmentRef(name, *bucket, *size, plan.hash_ranges, plan.range_index), built

    def delete(self, names: Sequence[str]) -> int:
        """Forget these segments."""
        self.counts["deletes"] += 2 * len(names)
        for name in names:
            self.content.pop(name, None)
            self.filters.pop(name, None)
        return len(names)

    def spill_pending(self, names: Sequence[str]) -> str:
        """Count the object that would name them."""
        self.counts["puts"] += 1
        return "pending_list"

    def delete_pending(self, pending_list: str) -> int:
        """Count its deletion."""
        self.counts["deletes"] += 1
        return 0

    def loss_accepted(self, seg: SegmentRef) -> bool:
        """No loss was ever accepted."""
        return False
