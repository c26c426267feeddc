"""The interface that the engine needs from a catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dedup.core.entries import Entries
from dedup.core.filter import SplitBlockFilter
from dedup.core.keys import Keys
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.kernel.arrays import BOOL, I64, U64

#: Result of a lookup if the segment does not hold the ID.
ABSENT_MS = int(np.iinfo(np.int64).min)


class SegmentStore(Protocol):
    """The segments of one shard, as the engine uses them.

    `tests/unit/test_segment_store.py` checks this contract for every store. Only the caller's
    manifest decides which segments are live. All attempts of a task see the same segments. If one
    attempt repeats an operation, nothing changes for the other attempts.

    Raises
    ------
    SegmentDamaged
        If a method must read a segment that is missing or damaged at the catalog root.
    CatalogError
        If the catalog root cannot be reached, or the local disk fails.
    """

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        """Return for each of n hashes whether the segment's filter may hold it.

        The hashes are sorted and in the segment's range. If the filter is damaged, the store
        rebuilds it from the segment.
        """

    def read_filter(self, seg: SegmentRef) -> SplitBlockFilter | None:
        """Return the segment's filter, or None if no intact sidecar is on this machine."""

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64, digests: U64 | None = None) -> I64:
        """Return the timestamp (ms) of each of n keys, or `ABSENT_MS` if a key is absent.

        If ``digests`` is given, the method fills it with the digests stored beside the n keys, and
        with 0 for a key without a digest.
        """

    def read_segment(self, seg: SegmentRef, hash_ranges: int = 1, range_index: int = 0) -> Entries:
        """Return the sorted entries in range ``range_index`` of ``hash_ranges`` equal ranges."""

    def write_segment(
        self, plan: SegmentPlan, pieces: Sequence[Entries]
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        """Write the entries of all pieces as a new segment with its sidecar.

        Both files are durable on return. No key is in two pieces, and all hashes are in the range
        of the plan. The store never uses the segment's name again.
        """

    def delete(self, names: Sequence[str]) -> int:
        """Delete the segments of these names, and return how many existed.

        If this raises, some of the segments may be deleted already.
        """

    def spill_pending(self, names: Sequence[str]) -> str:
        """Write the names of expired segments into a new pending list, and return its name.

        The list is a durable object at the catalog root.
        """

    def delete_pending(self, pending_list: str) -> int:
        """Delete a pending list's segments, then the list, and return how many segments existed.

        If the list is missing or damaged, no segments are deleted.
        """

    def loss_accepted(self, seg: SegmentRef) -> bool:
        """Return whether a user accepted the loss of this segment."""
