"""Find files of a shard that its manifest does not name, and decide which may be deleted.

An *orphan* is a file of an attempt that did not win, because its process was killed, its task was
retried, or its micro-batch was rolled back. A *foreign* file is of another program, and is only
counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dedup.catalog.gc.lineage import Lineage, Run
from dedup.catalog.gc.pending_lists import read_pending_list
from dedup.catalog.layout import CatalogFile, catalog_files, shard_path
from dedup.core.manifest import Manifest
from dedup.core.policy import Policy
from dedup.storage.root import Root

#: Largest number of files deleted per shard and sweep.
MAX_SWEPT = 256


@dataclass(frozen=True, slots=True)
class Stray:
    """The files in a shard's folder that its manifest does not name."""

    #: Files of segments, sidecars and pending lists.
    orphans: tuple[CatalogFile, ...]
    #: Number of files of other programs.
    foreign: int
    #: False if a pending list could not be read, so that some orphans may be expired segments.
    complete: bool


@dataclass(frozen=True, slots=True)
class Named:
    """The names of segments in a shard's manifest and its pending lists."""

    #: Segments that wait for their deletion.
    pending: frozenset[str]
    #: Live segments and the pending lists themselves.
    others: frozenset[str]
    #: False if a pending list could not be read, so that any other segment may be pending.
    complete: bool

    @classmethod
    def by(cls, root: Root, query_id: str, shard: int, manifest: Manifest) -> Named:
        pending, complete = {entry.name for entry in manifest.expired}, True
        for listed in manifest.pending_lists:
            names = read_pending_list(root, query_id, shard, listed.name)
            complete &= len(names) == listed.count
            pending.update(names)
        return cls(frozenset(pending), frozenset(manifest.names() - pending), complete)


def find_stray(root: Root, query_id: str, shard: int, manifest: Manifest) -> Stray:
    named = Named.by(root, query_id, shard, manifest)
    files = catalog_files(root, shard_path(query_id, shard, "").rstrip("/"))
    # Only the user may delete a segment whose loss was accepted, which no manifest names.
    accepted = {file.parsed.segment for file in files if file.parsed.kind == "accepted_loss"}
    kept = named.pending | named.others | accepted
    orphans = tuple(
        file
        for file in files
        if file.parsed.kind in ("segment", "sidecar", "pending_list")
        and file.parsed.segment not in kept
    )
    return Stray(orphans, sum(file.parsed.kind == "foreign" for file in files), named.complete)


def written_past_successor(
    orphans: Iterable[CatalogFile], lineage: Lineage
) -> list[tuple[Run, int]]:
    """Return the runs that continued after their successor had begun, with their newest epoch.

    Such a run left an orphan of a micro-batch after the first micro-batch of its successor.
    """
    newest: dict[Run, int] = {}
    for file in orphans:
        if file.parsed.run_id is not None and file.parsed.epoch is not None:
            run = lineage.outran(file.parsed.run_id, file.parsed.epoch)
            if run is not None:
                newest[run] = max(file.parsed.epoch, newest.get(run, 0))
    return list(newest.items())


def sweepable(
    orphans: Iterable[CatalogFile], lineage: Lineage, policy: Policy, *, epoch: int, now_ms: int
) -> list[str]:
    """Return the names of the orphans that no state can name, now or after a rollback.

    A run of the shard's own lineage wrote these orphans. Spark can no longer roll back to the
    micro-batch that wrote them, and they are older than `keep_expired`.
    """
    return [
        file.name
        for file in orphans
        if file.parsed.run_id is not None
        and lineage.holds(file.parsed.run_id)
        and file.parsed.epoch is not None
        and epoch - file.parsed.epoch > policy.retain_epochs
        and file.is_older(policy.keep_expired_ms, now_ms=now_ms)
    ][:MAX_SWEPT]
