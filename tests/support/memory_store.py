"""A segment store that keeps everything in a dictionary, for tests of the pure core."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dedup import kernel
from dedup.core.entries import Entries
from dedup.core.filter import FilterHead, SplitBlockFilter, hash_key_id, head_bytes
from dedup.core.hash_ranges import hash_range, spread_hashes
from dedup.core.keys import Keys
from dedup.core.ports import ABSENT_MS
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.errors import SegmentDamaged
from dedup.kernel.arrays import BOOL, I64, U64

HASH_KEY = bytes(range(16))
KEY_ID = hash_key_id(HASH_KEY)


@dataclass
class MemoryStore:
    """Implements `dedup.core.ports.SegmentStore`; shared by all attempts of one shard."""

    hash_key: bytes = HASH_KEY
    segments: dict[str, tuple[SegmentRef, dict[bytes, int]]] = field(default_factory=dict)
    #: Of segments that have any.
    digests: dict[str, dict[bytes, int]] = field(default_factory=dict)
    filters: dict[str, SplitBlockFilter] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)
    pending_lists: dict[str, list[str]] = field(default_factory=dict)
    lookups: int = 0
    reads: int = 0
    written: int = 0

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        self._check(seg)
        assert seg.within(hashes) == slice(0, len(hashes))
        made = self.filters[seg.name].to_bytes()
        head = FilterHead.from_bytes(made, hash_key_id=hash_key_id(self.hash_key))

        def read_into(offset: int, buffer: memoryview) -> None:
            start = head.nbytes + offset
            buffer[:] = made[start : start + len(buffer)]

        return head.may_contain(seg.spread(hashes), read_into)

    def read_filter(self, seg: SegmentRef) -> SplitBlockFilter | None:
        self._check(seg)
        return self.filters[seg.name]

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64, digests: U64 | None = None) -> I64:
        self._check(seg)
        self.lookups += 1
        entries = self.segments[seg.name][1]
        if digests is not None:
            beside = self.digests.get(seg.name, {})
            digests[:] = np.array([beside.get(key, 0) for key in keys], np.uint64)
        return np.array([entries.get(key, ABSENT_MS) for key in keys], np.int64)

    def read_segment(self, seg: SegmentRef, hash_ranges: int = 1, range_index: int = 0) -> Entries:
        self._check(seg)
        self.reads += 1
        held = self.segments[seg.name][1]
        keys = Keys.from_list(list(held))
        hashes = kernel.hash64(keys.data, keys.offsets, self.hash_key)
        times_ms = np.array(list(held.values()), np.int64)
        digests = None
        if beside := self.digests.get(seg.name):
            digests = np.array([beside[key] for key in held], np.uint64)
        entries = Entries.in_order(keys, hashes, times_ms, digests)
        return entries[hash_range(entries.hashes, hash_ranges, range_index)]

    def write_segment(
        self, plan: SegmentPlan, pieces: Sequence[Entries]
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        entries = Entries.joined(pieces)
        held = dict(zip(entries.keys, entries.times_ms.tolist(), strict=True))
        n = len(entries)
        assert len(held) == n, "an ID occurs at most once in a bucket"
        assert all(plan.start_ms <= t < plan.end_ms for t in held.values())
        assert hash_range(entries.hashes, plan.hash_ranges, plan.range_index) == slice(0, n)
        name = f"s{self.written:06d}"
        self.written += 1
        spread = spread_hashes(entries.hashes, plan.hash_ranges)
        made = SplitBlockFilter.build(spread, plan.fpr, hash_key_id=hash_key_id(self.hash_key))
        crc = zlib.crc32(made.to_bytes()[: head_bytes(made.blocks)])
        size = n, n, 0, made.nbytes, crc
        ref = SegmentRef(
            name, plan.start_ms, plan.end_ms, *size, plan.hash_ranges, plan.range_index
        )
        self.segments[name] = (ref, held)
        self.filters[name] = made
        if entries.digests is not None:
            beside = zip(entries.keys, entries.digests.tolist(), strict=True)
            self.digests[name] = dict(beside)
        return ref, made

    def delete(self, names: Sequence[str]) -> int:
        self.deleted += names
        return sum(self.segments.pop(name, None) is not None for name in names)

    def spill_pending(self, names: Sequence[str]) -> str:
        pending_list = f"g{len(self.pending_lists):06d}"
        self.pending_lists[pending_list] = list(names)
        return pending_list

    def delete_pending(self, pending_list: str) -> int:
        return self.delete(self.pending_lists.pop(pending_list, []))

    def loss_accepted(self, seg: SegmentRef) -> bool:
        return seg.name in self.accepted

    def _check(self, seg: SegmentRef) -> None:
        if seg.name in self.damaged or seg.name not in self.segments:
            raise SegmentDamaged(f"{seg.name} is damaged")
