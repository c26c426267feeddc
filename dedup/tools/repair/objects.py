"""Are the small objects of a catalog whole: all that is neither segment nor sidecar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from dedup.catalog.accepted_loss import AcceptedLoss
from dedup.catalog.backup import check_backup, read_adopted
from dedup.catalog.certificate import Certificate, load_certificate
from dedup.catalog.gc.pending_lists import check_pending_list
from dedup.catalog.gc.runs import check_lineage
from dedup.catalog.layout import (
    ADOPTED_FILE,
    MANIFEST_FILE,
    PENDING_LIST_SUFFIX,
    certificate_path,
    shard_path,
)
from dedup.catalog.listing import CatalogFile, list_catalog
from dedup.catalog.root import ObjectMissing, Root
from dedup.core.lineage import Run
from dedup.core.sharding import filter_key_id
from dedup.core.state import ShardState
from dedup.errors import CatalogError


@dataclass(frozen=True, slots=True)
class ObjectProblem:
    """What is wrong with an object, and what follows from it."""

    query_id: str
    name: str
    problem: str


def verify_objects(
    root: Root, query_id: str, states: Mapping[int, ShardState] | None = None
) -> list[ObjectProblem]:
    """Read every object of a query that is neither segment nor sidecar; say all that is wrong.

    Parameters
    ----------
    root, query_id
        Whose.
    states : mapping of shard to ShardState, optional
        What Spark keeps. Without it only objects that are there are checked: none can be missing
        but the certificate and what was adopted.
    """
    files = list_catalog(root, query_id)
    found = [_certificate(root, query_id)]
    for file in files:
        check = _CHECKS.get(file.parsed.kind)
        # The mark of how far a run went is its name alone.
        if check is not None and file.parsed.through_epoch is None:
            found.append((file.name, _why_not(check, root, file)))
    adopted = {file.parsed.shard for file in files if file.parsed.kind == "adopted"}
    for shard in range(_shards(root, query_id)) if adopted else ():
        if shard not in adopted:
            name = shard_path(query_id, shard, ADOPTED_FILE)
            found.append((name, "missing, though other shards have one: run adopt again"))
    there = {file.name for file in files}
    for shard, state in (states or {}).items():
        found += ((name, why) for name, why in _named(query_id, shard, state) if name not in there)
    return [ObjectProblem(query_id, name, why) for name, why in found if why]


def _certificate(root: Root, query_id: str) -> tuple[str, str]:
    name = certificate_path(query_id)
    try:
        certificate = load_certificate(root, query_id)
    except CatalogError as exc:
        return name, exc.text
    if certificate is None:
        return name, "missing: the query will not start; restore it with the checkpoint's catalog"
    owner = certificate.query_id, certificate.hash_key_id
    if owner != (query_id, filter_key_id(query_id, certificate.secret)):
        return name, f"is that of query {certificate.query_id}: restore the right one from a copy"
    return name, ""


def _shards(root: Root, query_id: str) -> int:
    try:
        certificate: Certificate | None = load_certificate(root, query_id)
    except CatalogError:
        return 0
    return certificate.shards if certificate else 0


def _named(query_id: str, shard: int, state: ShardState) -> Iterator[tuple[str, str]]:
    """Yield objects that must be there by what Spark keeps, and what follows where one is not."""
    for pending_list in state.manifest.pending_lists:
        yield (
            shard_path(query_id, shard, pending_list.name + PENDING_LIST_SUFFIX),
            f"missing: {_PENDING_LIST_IS_LOST} ({pending_list.count} segments)",
        )
    # Written in the micro-batch after the one that wrote segments.
    if any(f"{state.epoch:012d}" > segment.name[:12] for segment in state.manifest.segments()):
        yield shard_path(query_id, shard, MANIFEST_FILE), f"missing: {_BACKUP_IS_LOST}"


def _why_not(check: Callable[[Root, CatalogFile], None], root: Root, file: CatalogFile) -> str:
    try:
        check(root, file)
    except ObjectMissing:  # deleted since it was listed
        return ""
    except CatalogError as exc:
        return exc.text
    except ValueError as exc:
        return str(exc)
    return ""


@contextmanager
def _damage(consequence: str) -> Iterator[None]:
    try:
        yield
    except ValueError as exc:
        raise ValueError(f"damaged: {exc}; {consequence}") from exc


def _accepted_loss(root: Root, file: CatalogFile) -> None:
    with _damage("it is no consent: accept the loss again"):
        segment = root.read(file.name, AcceptedLoss.from_bytes).segment
    if segment != file.parsed.segment:
        raise ValueError(f"it speaks of segment {segment}: accept the loss again")


def _pending_list(root: Root, file: CatalogFile) -> None:
    with _damage(_PENDING_LIST_IS_LOST):
        check_pending_list(
            root, file.parsed.query_id or "", file.parsed.shard or 0, file.parsed.segment or ""
        )


def _backup(root: Root, file: CatalogFile) -> None:
    with _damage(_BACKUP_IS_LOST):
        check_backup(root, file.parsed.query_id or "", file.parsed.shard or 0)


def _adopted(root: Root, file: CatalogFile) -> None:
    read_adopted(root, file.parsed.query_id or "", file.parsed.shard or 0)


def _lineage(root: Root, file: CatalogFile) -> None:
    parsed = file.parsed
    with _damage(_LINEAGE_IS_LOST):
        check_lineage(root, parsed.query_id or "", Run(parsed.run_id or "", parsed.epoch or 0))


_PENDING_LIST_IS_LOST = (
    "restore it from a copy, or leave it: the expired segments that it names stay until vacuum "
    "deletes them, once the query has dropped it"
)
_BACKUP_IS_LOST = (
    "without the checkpoint this shard's IDs could not be adopted; the query writes it again with "
    "its next segments"
)
_LINEAGE_IS_LOST = (
    "earlier runs may now count as branches, so that nothing is deleted: run vacuum --sole if no "
    "other checkpoint of this query is in use"
)
_CHECKS: dict[str, Callable[[Root, CatalogFile], None]] = {
    "accepted_loss": _accepted_loss,
    "pending_list": _pending_list,
    "manifest": _backup,
    "adopted": _adopted,
    "run": _lineage,
}
