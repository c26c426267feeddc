"""Files of a shard that its manifest does not name, and which of them may be deleted.

An orphan is what an attempt left behind that did not win: its process was killed, its task was
retried, its micro-batch was rolled back. Foreign files are counted and never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dedup.catalog.gc.pending_lists import read_pending_list
from dedup.catalog.layout import shard_path
from dedup.catalog.listing import CatalogFile, list_catalog
from dedup.catalog.root import Root
from dedup.core.lineage import Lineage, Run
from dedup.core.manifest import Manifest
from dedup.core.policy import Policy

#: Files deleted per shard and sweep.
MAX_SWEPT = 256


@dataclass(frozen=True, slots=True)
class Stray:
    """What lies in a shard's folder without being named.

    Parameters
    ----------
    orphans : tuple of CatalogFile
        Files of segments, sidecars and pending lists.
    foreign : int
        Files that are not of this library.
    complete : bool
        False where a pending list could not be read, so that some orphans may be expired segments.
    """

    orphans: tuple[CatalogFile, ...]
    foreign: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Named:
    """What a shard's manifest names, and what follows for files in its folder.

    Parameters
    ----------
    pending : frozenset of str
        Segments that wait for their deletion.
    others : frozenset of str
        Live segments, and pending lists.
    complete : bool
        False where a pending list could not be read: a segment that is not named may be pending.
    """

    pending: frozenset[str]
    others: frozenset[str]
    complete: bool

    @classmethod
    def by(cls, root: Root, query_id: str, shard: int, manifest: Manifest) -> Named:
        """Return what a manifest names, and what its pending lists do."""
        pending, complete = {entry.name for entry in manifest.expired}, True
        for listed in manifest.pending_lists:
            names = read_pending_list(root, query_id, shard, listed.name)
            complete &= len(names) == listed.count
            pending.update(names)
        return cls(frozenset(pending), frozenset(manifest.names() - pending), complete)

    def is_orphan(self, name: str, accepted_losses: Collection[str]) -> bool:
        """Return whether an attempt that did not win left the segment or pending list behind.

        One whose loss was accepted has left the manifest as well, and is the user's to delete.
        Where the manifest's lists are not complete, this may be wrong.
        """
        return not (name in self.pending or name in self.others or name in accepted_losses)


def find_stray(root: Root, query_id: str, shard: int, manifest: Manifest) -> Stray:
    """Return what the manifest does not name in a shard's folder."""
    named = Named.by(root, query_id, shard, manifest)
    files = list_catalog(root, shard_path(query_id, shard, "").rstrip("/"))
    accepted = {file.parsed.segment or "" for file in files if file.parsed.kind == "accepted_loss"}
    orphans = tuple(
        file
        for file in files
        if file.parsed.kind in ("segment", "sidecar", "pending_list")
        and named.is_orphan(file.parsed.segment or "", accepted)
    )
    return Stray(orphans, sum(file.parsed.kind == "foreign" for file in files), named.complete)


def written_past_successor(
    orphans: Iterable[CatalogFile], lineage: Lineage
) -> list[tuple[Run, int]]:
    """Return runs of the lineage that went on elsewhere, with the newest micro-batch they wrote in.

    What they wrote behind the first micro-batch of their successor is no orphan of theirs.
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

    They were written by a run of the shard's own lineage, in a micro-batch that Spark can no longer
    roll back to, and are older than `keep_expired` by the storage's clock.
    """
    return [
        file.name
        for file in orphans
        if file.parsed.run_id is not None
        and lineage.holds(file.parsed.run_id)
        and file.parsed.epoch is not None
        and epoch - file.parsed.epoch > policy.retain_epochs
        and file.modified_ms is not None
        and now_ms - file.modified_ms >= policy.keep_expired_ms
    ][:MAX_SWEPT]
