"""A bucket: all segments of one time range, in sorted runs that are merged step by step.

A **run** holds each of its IDs once. A run is split by ranges of hashes into segments of bounded
size. Sealing the tail adds a run of one segment. Invariant 13 lists the bounds. A merge handles one
range of hashes at a time. A micro-batch that seals little merges only a segment or two, however
large the bucket is. Until the merge ends, lookups find the IDs of the finished ranges in its
output, and all other IDs in the runs that it merges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dedup.core.hash_ranges import check_hash_ranges
from dedup.core.segment import SegmentRef
from dedup.errors import CatalogError
from dedup.values.parse import integer, row, tuple_of

SortedRun: TypeAlias = tuple[SegmentRef, ...]


def ids_in(run: SortedRun) -> int:
    return sum(segment.count for segment in run)


@dataclass(frozen=True, slots=True)
class Merge:
    """An unfinished merge of several runs into one run."""

    runs: tuple[SortedRun, ...]
    #: Number of ranges of hashes into which the merge splits its output, a power of two.
    hash_ranges: int
    #: Number of finished ranges. Lookups read these from `output`, and all others from `runs`.
    ranges_done: int = 0
    #: One segment per finished range, except segments whose loss was accepted.
    output: SortedRun = ()

    @property
    def inputs(self) -> SortedRun:
        return tuple(segment for run in self.runs for segment in run)

    @property
    def ids(self) -> int:
        return ids_in(self.inputs)

    def check_complete(self, last: SegmentRef | None) -> None:
        """Raise CatalogError if the finished output, with the segment ``last``, lacks IDs.

        Only a defect of this library can make a merge lose an ID.
        """
        output = self.output if last is None else (*self.output, last)
        ids = ids_in(output)
        if len(output) == self.hash_ranges and ids < self.ids:
            raise CatalogError(
                f"A merge of {len(self.inputs)} segments wrote {ids} of their {self.ids} record "
                "IDs, though it read each segment without an error. The segments still exist, but "
                "copies of the missing IDs may have passed since the merge began. Check the "
                "catalog with dedup catalog verify, and report this as a defect of dedup.",
                remedy="incomplete-merge",
            )


@dataclass(frozen=True, slots=True)
class Coverage:
    """A segment, and the hashes for which a lookup must read the segment.

    The lookup skips hashes in the first ``ranges_done`` of ``hash_ranges`` equal ranges, because a
    merge has already written these ranges to its output.
    """

    segment: SegmentRef
    hash_ranges: int = 1
    ranges_done: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """All segments of one time range ``[start_ms, end_ms)`` of one shard."""

    #: The range of emitted timestamps, milliseconds since the epoch.
    start_ms: int
    end_ms: int
    #: Whether the bucket holds an ID whose timestamp was replaced by the micro-batch's time. If so,
    #: lookups search this bucket for every copy, whatever timestamp the copy carries.
    clamped: bool = False
    #: Runs, oldest first. No ID is in two runs.
    runs: tuple[SortedRun, ...] = ()
    #: Unfinished merges. The runs that they merge are not in `runs`.
    merges: tuple[Merge, ...] = ()

    @property
    def range(self) -> tuple[int, int]:
        """Start and end, which identify the bucket."""
        return self.start_ms, self.end_ms

    @property
    def ids(self) -> int:
        """Number of distinct IDs in all segments.

        The number is too low during a merge if the user accepted the loss of an input segment.
        """
        return sum(map(ids_in, self.runs)) + sum(merge.ids for merge in self.merges)

    @property
    def depth(self) -> int:
        """Largest number of segments that may hold one ID."""
        return len(self.runs) + sum(len(merge.runs) for merge in self.merges)

    @property
    def segments(self) -> SortedRun:
        loose = tuple(segment for run in self.runs for segment in run)
        return loose + tuple(s for merge in self.merges for s in (*merge.inputs, *merge.output))

    def coverages(self) -> Iterator[Coverage]:
        """Yield every segment that lookups read, with the hashes to look up in that segment."""
        for run in self.runs:
            for segment in run:
                yield Coverage(segment)
        for merge in self.merges:
            for segment in merge.output:
                yield Coverage(segment)
            for segment in merge.inputs:
                # Lookups skip an input segment whose whole range is done.
                if segment.reaches_past(merge.hash_ranges, merge.ranges_done):
                    yield Coverage(segment, merge.hash_ranges, merge.ranges_done)

    def adding(self, run: SortedRun, *, clamped: bool) -> Bucket:
        return replace(self, runs=(*self.runs, run), clamped=self.clamped or clamped)

    def beginning(self, runs: tuple[SortedRun, ...], hash_ranges: int) -> Bucket:
        kept = tuple(run for run in self.runs if run not in runs)
        return replace(self, runs=kept, merges=(*self.merges, Merge(runs, hash_ranges)))

    def advancing(
        self, merge: Merge, new: SegmentRef | None
    ) -> tuple[Bucket, Merge | None, SortedRun]:
        """Return the bucket after ``merge`` has finished one more range of hashes.

        Also returns the merge, or None if the merge has ended, and the segments that became
        obsolete. ``new`` is the segment of the finished range, or None if the range has no IDs.
        """
        output = merge.output if new is None else (*merge.output, new)
        others = tuple(m for m in self.merges if m is not merge)
        if merge.ranges_done + 1 < merge.hash_ranges:
            on = replace(merge, ranges_done=merge.ranges_done + 1, output=output)
            return replace(self, merges=(*others, on)), on, ()
        runs = (*self.runs, output) if output else self.runs
        return replace(self, runs=runs, merges=others), None, merge.inputs

    def without(self, name: str) -> Bucket:
        """Return the bucket without the segment of this name.

        Merges that do not contain the segment stay the same objects.
        """

        def rest(run: SortedRun) -> SortedRun:
            return tuple(segment for segment in run if segment.name != name)

        def rests(runs: Iterable[SortedRun]) -> tuple[SortedRun, ...]:
            return tuple(kept for run in runs if (kept := rest(run)))

        merges = (
            replace(m, runs=rests(m.runs), output=rest(m.output))
            if any(segment.name == name for segment in (*m.inputs, *m.output))
            else m
            for m in self.merges
        )
        return replace(self, runs=rests(self.runs), merges=tuple(merges))

    def to_json(self) -> list[Any]:
        def run(segments: SortedRun) -> list[Any]:
            return [segment.to_json() for segment in segments]

        return [
            self.start_ms,
            self.end_ms,
            int(self.clamped),
            [run(segments) for segments in self.runs],
            [
                [[run(r) for r in m.runs], m.hash_ranges, m.ranges_done, run(m.output)]
                for m in self.merges
            ],
        ]

    @staticmethod
    def from_json(value: object) -> Bucket:
        start_ms, end_ms, clamped, runs, merges = _BUCKET(value)
        if start_ms >= end_ms or clamped not in (0, 1):
            raise ValueError(f"{[start_ms, end_ms, clamped]} is not a bucket")
        for _, hash_ranges, done, _ in merges:
            check_hash_ranges(hash_ranges, done)
        merging = tuple(Merge(*merge) for merge in merges)
        bucket = Bucket(start_ms, end_ms, bool(clamped), runs, merging)
        for segment in bucket.segments:
            if (segment.start_ms, segment.end_ms) != bucket.range:
                raise ValueError(f"segment {segment.name} is outside bucket {bucket.range}")
        return bucket


_RUN = tuple_of(SegmentRef.from_json)
_BUCKET = row(
    integer, integer, integer, tuple_of(_RUN), tuple_of(row(tuple_of(_RUN), integer, integer, _RUN))
)
