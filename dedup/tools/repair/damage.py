"""Is a catalog whole, and what becomes of a segment that is not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dedup.catalog.listing import list_catalog
from dedup.catalog.root import Root
from dedup.core.duration import iso
from dedup.errors import ConfigError
from dedup.tools.repair.contents import EXPIRED, GIVEN_UP, ORPHAN, Segment, Snapshot
from dedup.tools.repair.inspection import Where, open_root, queries_in, segments
from dedup.tools.repair.objects import ObjectProblem, verify_objects
from dedup.tools.repair.segment_check import SegmentReport, verify_segment
from dedup.tools.repair.segment_check import accept_loss as write_accepted_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found of every file that a query may still need.

    Parameters
    ----------
    root : str
        The catalog.
    segments : tuple of (Segment, SegmentReport)
        All that were read.
    objects : tuple of ObjectProblem
        What is wrong with all that is neither segment nor sidecar.
    """

    root: str
    segments: tuple[tuple[Segment, SegmentReport], ...]
    objects: tuple[ObjectProblem, ...]

    @property
    def ok(self) -> bool:
        """Whether all is whole, but for losses that were accepted, which are no news."""
        return not self.objects and all(r.ok or s.loss_accepted for s, r in self.segments)

    def to_json(self) -> dict[str, Any]:
        """Return what `dedup catalog verify --json` prints."""
        return {
            "root": self.root,
            "status": "ok" if self.ok else "damaged",
            "segments": len(self.segments),
            "ids": sum(report.count for _, report in self.segments),
            "damaged": [
                segment.to_json() | {"problems": list(report.problems)}
                for segment, report in self.segments
                if not report.ok
            ],
            "damaged_objects": [asdict(problem) for problem in self.objects],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAccepted:
    """Which segment may be lost, and the bucket of its IDs; None where nothing tells it."""

    query_id: str
    shard: int
    segment: str
    start_ms: int | None
    end_ms: int | None

    def to_json(self) -> dict[str, Any]:
        """Return what `dedup catalog accept-loss --json` prints."""
        return {
            "query_id": self.query_id,
            "shard": self.shard,
            "segment": self.segment,
            "start": iso(self.start_ms),
            "end": iso(self.end_ms),
        }


def verify(root: Root, known: Snapshot | None, query_id: str | None = None) -> Verification:
    """Read every byte that a query may still need.

    With the manifests, orphans are left out and whole-file checksums are compared; without them,
    all segments are read.
    """
    problems = [
        problem
        for query in queries_in(list_catalog(root, query_id or ""))
        for problem in verify_objects(
            root, query, known.states if known and known.query_id == query else None
        )
    ]
    checked = tuple(
        (s, verify_segment(root, s.query_id, s.shard, s.name, s.ref))
        for s in segments(root, known, query_id)
        if s.standing not in (ORPHAN, GIVEN_UP) and not _is_on_its_way(s)
    )
    return Verification(root=root.url(), segments=checked, objects=tuple(problems))


def _is_on_its_way(segment: Segment) -> bool:
    """Return whether its file may well be missing: it is half written, or half deleted."""
    return segment.sst_bytes is None and (segment.standing == EXPIRED or segment.ref is None)


def accept_loss(
    root: Where, segment: str, query: str | None = None, shard: int | None = None
) -> LossAccepted:
    """Accept the loss of one damaged segment: its IDs may then be emitted once more.

    The query takes note at its next start; a segment that is whole stays in use.

    Parameters
    ----------
    root
        The catalog.
    segment : str
        As the query's error names it.
    query, shard : optional
        Needed where no file of the segment is left.

    Raises
    ------
    ConfigError
        If there is no catalog, or the name fits no segment, or several.
    """
    place = open_root(root)
    places = {
        (s.query_id, s.shard)
        for s in segments(place, None, query)
        if s.name == segment and shard in (None, s.shard)
    }
    if not places and query is not None and shard is not None:
        places = {(query, shard)}
    if len(places) != 1:
        found = "no file of" if not places else f"{len(places)} segments named"
        raise ConfigError(
            f"{place.url()} holds {found} {segment}; say which with --query and --shard (the error "
            "of the query names them).",
            remedy="damaged-segment",
        )
    query, number = places.pop()
    accepted = write_accepted_loss(place, query, number, segment)
    return LossAccepted(
        query_id=query,
        shard=number,
        segment=segment,
        start_ms=accepted.start_ms,
        end_ms=accepted.end_ms,
    )
