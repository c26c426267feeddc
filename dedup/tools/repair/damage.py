"""Verify a catalog: read every file that a query may need, and accept the loss of a segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dedup.catalog.accepted_loss import AcceptedLoss
from dedup.catalog.backup import check_backup, read_adopted
from dedup.catalog.certificate import load_certificate
from dedup.catalog.gc.lineage import Run
from dedup.catalog.gc.pending_lists import check_pending_list
from dedup.catalog.gc.runs import check_lineage
from dedup.catalog.layout import (
    ADOPTED_FILE,
    BACKUP_FILE,
    PENDING_LIST_SUFFIX,
    CatalogFile,
    catalog_files,
    certificate_path,
    shard_path,
)
from dedup.catalog.successor import read_successor
from dedup.core.sharding import filter_key_id
from dedup.core.state import ShardState
from dedup.errors import CatalogError, ConfigError
from dedup.storage.root import ObjectMissing, Root
from dedup.tools.repair.contents import EXPIRED, LOSS_ACCEPTED, ORPHAN, Segment, inspect
from dedup.tools.repair.opening import Checkpoint, Where, open_root, queries_in, snapshot_of
from dedup.tools.repair.segment_check import SegmentReport, verify_segment, write_accepted_loss
from dedup.values.duration import iso


@dataclass(frozen=True, slots=True)
class ObjectProblem:
    """A damaged or missing object, its problem, and the consequence. Segments have reports."""

    query_id: str
    name: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Results for every file that a query may still need."""

    root: str
    segments: tuple[tuple[Segment, SegmentReport], ...]
    objects: tuple[ObjectProblem, ...]

    @property
    def ok(self) -> bool:
        """Whether all files are intact. Segments whose loss was accepted do not count."""
        return not self.objects and all(r.ok or s.loss_accepted for s, r in self.segments)

    def to_json(self) -> dict[str, Any]:
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
    """A segment whose loss was accepted, and its bucket, which is None if unknown."""

    query_id: str
    shard: int
    segment: str
    start_ms: int | None
    end_ms: int | None

    def to_json(self) -> dict[str, Any]:
        return {
            "query_id": self.query_id,
            "shard": self.shard,
            "segment": self.segment,
            "start": iso(self.start_ms),
            "end": iso(self.end_ms),
        }


def verify(
    root: Where, checkpoint: Checkpoint | None = None, query: str | None = None
) -> Verification:
    """Read every file of a catalog that a query may still need, and return what is damaged.

    With a checkpoint, the function skips orphans, and compares checksums of whole files. Without a
    checkpoint, it reads all segments. Parameters and errors are the same as in `inspect`.
    """
    root = open_root(root)
    snapshot = snapshot_of(root, checkpoint)
    problems = [
        problem
        for query_id in queries_in(catalog_files(root, query or ""))
        for problem in verify_objects(
            root, query_id, snapshot.states if snapshot and snapshot.query_id == query_id else None
        )
    ]
    reports = tuple(
        (s, verify_segment(root, s.query_id, s.shard, s.name, s.ref))
        for s in inspect(root, snapshot, query).segments
        if s.standing not in (ORPHAN, LOSS_ACCEPTED) and not _in_transition(s)
    )
    return Verification(root=root.url(), segments=reports, objects=tuple(problems))


def _in_transition(segment: Segment) -> bool:
    """Return whether the segment may be half written or half deleted."""
    return segment.sst_bytes is None and (segment.standing == EXPIRED or segment.ref is None)


def accept_loss(
    root: Where, segment: str, query: str | None = None, shard: int | None = None
) -> LossAccepted:
    """Accept the loss of one damaged segment, whose IDs may then be emitted once more.

    The query reads the acceptance at its next start. An intact segment stays in use.

    Parameters
    ----------
    root
        The catalog.
    segment : str
        Name of the segment, from the query's error.
    query, shard : optional
        ID of the query, and number of the shard. Needed if no file of the segment is left.

    Raises
    ------
    ConfigError
        If the catalog does not exist, or no segment or several segments have this name.
    """
    root = open_root(root)
    places = {
        (s.query_id, s.shard)
        for s in inspect(root, query=query).segments
        if s.name == segment and shard in (None, s.shard)
    }
    if not places and query is not None and shard is not None:
        places = {(query, shard)}
    if len(places) != 1:
        matches = "no file of" if not places else f"{len(places)} segments named"
        raise ConfigError(
            f"{root.url()} holds {matches} {segment}. Choose one with --query and --shard (the "
            "query's error names them).",
            remedy="damaged-segment",
        )
    query, number = places.pop()
    loss = write_accepted_loss(root, query, number, segment)
    return LossAccepted(
        query_id=query, shard=number, segment=segment, start_ms=loss.start_ms, end_ms=loss.end_ms
    )


def verify_objects(
    root: Root, query_id: str, states: Mapping[int, ShardState] | None = None
) -> list[ObjectProblem]:
    """Read every object of a query except segments and sidecars, and return all problems.

    `states` are the shards' states from Spark. Without `states`, the only missing objects that the
    function can report are the certificate and adopted states.
    """
    files = catalog_files(root, query_id)
    shards, problem = _certificate(root, query_id)
    problems = [(certificate_path(query_id), problem)]
    for file in files:
        # Skip the mark of a run's last commit, which has no content.
        if file.parsed.kind in _CHECKS and file.parsed.through_epoch is None:
            problems.append((file.name, _problem(root, file)))
    adopted = {file.parsed.shard for file in files if file.parsed.kind == "adopted"}
    problems += (
        (
            shard_path(query_id, shard, ADOPTED_FILE),
            "missing, though other shards have one: run adopt again",
        )
        for shard in range(shards if adopted else 0)
        if shard not in adopted
    )
    names = {file.name for file in files}
    for shard, state in (states or {}).items():
        problems += (
            (name, why) for name, why in _required(query_id, shard, state) if name not in names
        )
    return [ObjectProblem(query_id, name, why) for name, why in problems if why]


def _certificate(root: Root, query_id: str) -> tuple[int, str]:
    """Return the number of shards, and the certificate's problem, or "" if it is intact."""
    try:
        certificate = load_certificate(root, query_id)
    except CatalogError as exc:
        return 0, exc.text
    if certificate is None:
        return 0, "missing: the query will not start; restore it with the checkpoint's catalog"
    owner = certificate.query_id, certificate.hash_key_id
    if owner != (query_id, filter_key_id(query_id, certificate.secret)):
        problem = f"belongs to query {certificate.query_id}: restore the right one from a copy"
        return certificate.shards, problem
    return certificate.shards, ""


def _required(query_id: str, shard: int, state: ShardState) -> Iterator[tuple[str, str]]:
    """Yield the names of objects that a shard's state requires, and the consequences of a loss."""
    for pending_list in state.manifest.pending_lists:
        yield (
            shard_path(query_id, shard, pending_list.name + PENDING_LIST_SUFFIX),
            f"missing: {_PENDING_LIST_LOST} ({pending_list.count} segments)",
        )
    # If a micro-batch writes segments, the shard writes the backup in the next micro-batch.
    if any(f"{state.epoch:012d}" > segment.name[:12] for segment in state.manifest.segments()):
        yield shard_path(query_id, shard, BACKUP_FILE), f"missing: {_BACKUP_LOST}"


def _problem(root: Root, file: CatalogFile) -> str:
    check, consequence = _CHECKS[file.parsed.kind]
    try:
        check(root, file)
    except ObjectMissing:  # the query has deleted the object since we listed it
        return ""
    except CatalogError as exc:
        return exc.text
    except ValueError as exc:
        return f"damaged: {exc}; {consequence}"
    return ""


def _owner(file: CatalogFile) -> tuple[str, int]:
    return file.parsed.query_id or "", file.parsed.shard or 0


def _accepted_loss(root: Root, file: CatalogFile) -> None:
    segment = root.read(file.name, AcceptedLoss.from_bytes).segment
    if segment != file.parsed.segment:
        raise ValueError(f"it names segment {segment}")


def _lineage(root: Root, file: CatalogFile) -> None:
    parsed = file.parsed
    check_lineage(root, parsed.query_id or "", Run(parsed.run_id or "", parsed.epoch or 0))


_PENDING_LIST_LOST = (
    "restore it from a copy, or leave it: the expired segments that it names stay until vacuum "
    "deletes them, once the query has dropped it"
)
_BACKUP_LOST = (
    "without the checkpoint this shard's IDs could not be adopted; the query writes it again with "
    "its next segments"
)
_LINEAGE_LOST = (
    "earlier runs may now count as branches, and then nothing is deleted: run vacuum --sole if no "
    "other checkpoint of this query is in use"
)
#: For each kind of object, the function that checks it, and the consequence of damage.
_CHECKS: dict[str, tuple[Callable[[Root, CatalogFile], object], str]] = {
    "accepted_loss": (_accepted_loss, "it permits no loss: accept the loss again"),
    "pending_list": (
        lambda root, file: check_pending_list(root, *_owner(file), file.parsed.segment or ""),
        _PENDING_LIST_LOST,
    ),
    "backup": (lambda root, file: check_backup(root, *_owner(file)), _BACKUP_LOST),
    # The error of `read_adopted` states the consequence.
    "adopted": (lambda root, file: read_adopted(root, *_owner(file)), ""),
    "run": (_lineage, _LINEAGE_LOST),
    "successor": (lambda root, file: read_successor(root, _owner(file)[0]), ""),
}
