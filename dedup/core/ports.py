"""What the core needs from a catalog, and how it names what is in there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dedup.core.entries import Entries
from dedup.core.filter import SplitBlockFilter
from dedup.core.keys import Keys
from dedup.errors import StateError

I64: TypeAlias = npt.NDArray[np.int64]
U64: TypeAlias = npt.NDArray[np.uint64]
U8: TypeAlias = npt.NDArray[np.uint8]
BOOL: TypeAlias = npt.NDArray[np.bool_]

#: No timestamp at all.
NO_TIME = int(np.iinfo(np.int64).min)
#: Ranges of hashes that the IDs of a bucket are split into at most: 16 bits of the hash.
MAX_PARTS = 1 << 16
#: Answer of a lookup for an ID that the segment does not hold.
ABSENT_MS = NO_TIME


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """One immutable segment of a shard, as the manifest names it.

    The checksums are held here, not beside the files, so that a file that was swapped for another
    healthy one is damage too.

    Parameters
    ----------
    name : str
        Unique for ever within the shard; also the name of its files and of its view.
    start_ms, end_ms : int
        The bucket: every timestamp in the segment lies in ``[start_ms, end_ms)``.
    count : int
        Number of record IDs, >= 0.
    sst_bytes, sst_crc32 : int
        Size and CRC-32 of the SST file.
    filter_bytes, filter_crc32 : int
        Size of the filter sidecar, and CRC-32 of its head, which holds a checksum of every page.
    parts, part : int
        Of ``parts`` equal ranges of hashes (a power of two, at most `MAX_PARTS`) the segment
        holds IDs of range number ``part`` only; 1 and 0: of all hashes.
    """

    name: str
    start_ms: int
    end_ms: int
    count: int
    sst_bytes: int
    sst_crc32: int
    filter_bytes: int
    filter_crc32: int
    parts: int = 1
    part: int = 0

    def within(self, hashes: U64) -> slice:
        """Return which of the hashes, which never fall, lie in the segment's range."""
        return hash_range(hashes, self.parts, self.part)

    def spread(self, hashes: U64) -> U64:
        """Return hashes of the segment's range spread over all: what its filter and blocks use."""
        return spread_hashes(hashes, self.parts)

    def to_json(self) -> list[str | int]:
        """Return the fields as a list that JSON can hold; ``from_json`` reads it back."""
        return list(astuple(self))

    @classmethod
    def from_json(cls, fields: Sequence[object]) -> SegmentRef:
        """Return the segment that ``to_json`` wrote.

        Raises
        ------
        StateError
            When number or types of the fields are not those of a segment.
        """
        if len(fields) == 10:
            name, *numbers = fields
            whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)]
            if isinstance(name, str) and name and len(whole) == 9:
                start_ms, end_ms, *others = whole
                parts, part = others[-2:]
                power = 1 <= parts <= MAX_PARTS and parts & (parts - 1) == 0
                if start_ms < end_ms and min(others) >= 0 and power and part < parts:
                    return cls(name, start_ms, end_ms, *others)
        raise StateError(
            f"the manifest in the state row holds {list(fields)!r:.300}, which is no segment; "
            "restore the checkpoint together with its catalog from a copy",
            remedy="damaged-state",
        )


def hash_range(hashes: U64, parts: int, part: int) -> slice:
    """Return which of the hashes, which never fall, lie in range ``part`` of ``parts`` equal ones.

    Parameters
    ----------
    hashes : ndarray of uint64, shape (n,)
    parts : int
        A power of two.
    part : int
        0 to ``parts``, which is behind the last.
    """
    if parts == 1:
        return slice(0, len(hashes) if part == 0 else 0)
    bits = 64 - (parts.bit_length() - 1)
    low = int(np.searchsorted(hashes, np.uint64(part << bits))) if part < parts else len(hashes)
    if part + 1 >= parts:
        return slice(low, len(hashes))
    return slice(low, int(np.searchsorted(hashes, np.uint64((part + 1) << bits))))


def spread_hashes(hashes: U64, parts: int) -> U64:
    """Return hashes of one of ``parts`` equal ranges, a power of two, spread over all 64 bits."""
    return hashes if parts == 1 else hashes << np.uint64(parts.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """What a segment is to be, before it is written.

    Parameters
    ----------
    start_ms, end_ms : int
        The bucket.
    fpr : float
        Target false-positive rate of its filter, in (0, 1).
    parts, part : int
        The range of hashes, as of `SegmentRef`.
    """

    start_ms: int
    end_ms: int
    fpr: float
    parts: int = 1
    part: int = 0


class SegmentStore(Protocol):
    """The segments of one shard: what the shard logic may ask of a catalog.

    Nothing here decides what is live; only the caller's manifest does. A segment that is missing or
    damaged at the root raises `dedup.errors.SegmentDamaged`, storage that cannot be reached
    `dedup.errors.CatalogError`.
    """

    def may_hold(self, seg: SegmentRef, hashes: U64) -> BOOL:
        """Return which hashes the segment's filter may hold, shape (n,).

        The hashes never fall and lie in the segment's range. A damaged filter is rebuilt from the
        segment.
        """

    def lookup(self, seg: SegmentRef, keys: Keys, hashes: U64) -> I64:
        """Return the timestamp (ms) of each of n keys, shape (n,); `ABSENT_MS` where absent."""

    def read_segment(self, seg: SegmentRef, parts: int = 1, part: int = 0) -> Entries:
        """Return the entries of a range of hashes."""

    def write_segment(
        self, plan: SegmentPlan, pieces: Sequence[Entries]
    ) -> tuple[SegmentRef, SplitBlockFilter]:
        """Write the entries of all pieces as a new segment with its sidecar, durable on return.

        No key is in two pieces, and all hashes lie in the range of the plan.
        """

    def delete(self, names: Sequence[str]) -> int:
        """Delete the segments of these names; missing ones are fine. Return how many were there."""

    def spill_pending(self, names: Sequence[str]) -> str:
        """Write names of expired segments as one durable object; return the object's name."""

    def delete_pending(self, pending_list: str) -> int:
        """Delete the segments that such an object names, then the object; return how many."""

    def loss_accepted(self, seg: SegmentRef) -> bool:
        """Tell whether a user accepted the loss of this segment (its accepted loss is there)."""
