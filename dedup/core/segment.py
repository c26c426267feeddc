"""References to segments in the manifest, and plans of new segments."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from dedup.core.hash_ranges import check_hash_ranges, hash_range, spread_hashes
from dedup.kernel.arrays import U64
from dedup.values.parse import array, integer, name


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A reference to one immutable segment of a shard.

    The reference has the checksums of the segment's files. So a reader detects as damage, too, that
    somebody replaced a file by another intact file.
    """

    #: Unique within the shard and never reused. Also the name of the segment's files and view.
    name: str
    #: Time range of the bucket: every timestamp in the segment is in ``[start_ms, end_ms)``.
    start_ms: int
    end_ms: int
    #: Number of record IDs, >= 0.
    count: int
    #: Size and CRC-32 of the SST file (a RocksDB table), which holds the record IDs.
    sst_bytes: int
    sst_crc32: int
    #: Size of the filter sidecar, and CRC-32 of its head, which holds a checksum of every page.
    filter_bytes: int
    filter_crc32: int
    #: The segment holds only IDs of range number ``range_index`` of ``hash_ranges`` equal ranges of
    #: hashes (a power of two, at most `MAX_HASH_RANGES`). 1 and 0 mean all hashes.
    hash_ranges: int = 1
    range_index: int = 0

    def within(self, hashes: U64) -> slice:
        """Return the slice of the sorted hashes that the segment's range contains."""
        return hash_range(hashes, self.hash_ranges, self.range_index)

    def overlaps(self, hash_ranges: int, index: int) -> bool:
        """Return whether the segment's range overlaps range ``index`` of ``hash_ranges`` ranges."""
        starts_before = self.range_index * hash_ranges < (index + 1) * self.hash_ranges
        return starts_before and self.reaches_past(hash_ranges, index)

    def reaches_past(self, hash_ranges: int, index: int) -> bool:
        """Return whether the segment holds hashes at or above the start of a range.

        The range has the number ``index`` among ``hash_ranges`` equal ranges.
        """
        return (self.range_index + 1) * hash_ranges > index * self.hash_ranges

    def spread(self, hashes: U64) -> U64:
        """Stretch hashes of the segment's range over all 64 bits.

        Filters and blocks need this, because they expect evenly spread hashes.
        """
        return spread_hashes(hashes, self.hash_ranges)

    def to_json(self) -> list[str | int]:
        return list(astuple(self))

    @classmethod
    def from_json(cls, fields: object) -> SegmentRef:
        segment, *numbers = array(fields, 10)
        start_ms, end_ms, *others = map(integer, numbers)
        hash_ranges, range_index = others[-2:]
        check_hash_ranges(hash_ranges, range_index)
        if start_ms >= end_ms or min(others) < 0:
            raise ValueError(f"{fields!r:.300} is not a segment")
        return cls(name(segment), start_ms, end_ms, *others)


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The plan of a new segment. ``fpr`` is the target false-positive rate of its filter."""

    start_ms: int
    end_ms: int
    fpr: float
    hash_ranges: int = 1
    range_index: int = 0
