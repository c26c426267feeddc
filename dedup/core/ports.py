"""The interface that the engine needs from a catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dedup.core.arrays import BOOL, I64, U64
from dedup.core.entries import Entries
from dedup.core.filter import SplitBlockFilter
from dedup.core.keys import Keys
from dedup.core.segment import SegmentPlan, SegmentRef

#: Result of a lookup for an ID that the segment does not hold.
ABSENT_MS = int(np.iinfo(np.int64).min)


class SegmentStore(Protocol):
    """The segments of one shard, as the engine uses them.

    `tests/unit/test_segment_store.py` checks this contract for every store. A store never decides
    what is live; only the caller's manifest does. All attempts of a task see the same segments, and
    an operation that one of them repeats changes nothing for the others.

    Raises
    ------
    SegmentDamaged
        If a segment that is read is missing or damaged at the root.
    CatalogError
        If the root cannot be reached, or the local disk fails.
    """

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        """Return which of n hashes the segment's filter may hold, shape (n,).

        The hashes are sorted and in the segment's range. A damaged filter is rebuilt from the
        segment.
        """

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64, digests: U64 | None = None) -> I64:
        """Return the timestamp (ms) of each of n keys, or `ABSENT_MS` if it is absent, shape (n,).

        Fills ``digests``, shape (n,), with the digests stored beside the keys, or 0 if there is
        none.
        """

    def read_segment(self, seg: SegmentRef, hash_ranges: int = 1, range_index: int = 0) -> Entries:
        """Return the entries of range ``range_index`` of ``hash_ranges`` equal ranges, in order."""

    def write_segment(
        self, plan: SegmentPlan, pieces: Sequence[Entries]
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        """Write the entries of all pieces as a new segment with its sidecar, durable on return.

        No key is in two pieces, and all hashes are in the range of the plan. The segment's name is
        never used again.
        """

    def delete(self, names: Sequence[str]) -> int:
        """Delete the segments of these names, and return how many existed.

        If this raises, some of the segments may be deleted already.
        """

    def spill_pending(self, names: Sequence[str]) -> str:
        """Write names of expired segments as one durable object, and return its name."""

    def delete_pending(self, pending_list: str) -> int:
        """Delete a pending list's segments, then the list. Return how many segments existed.

        A list that is missing or damaged names none.
        """

    def loss_accepted(self, seg: SegmentRef) -> bool:
        """Return whether a user accepted the loss of this segment."""
