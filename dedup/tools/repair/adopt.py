"""Going on with a catalog whose checkpoint is lost.

A new checkpoint is given the old query's ID, and each shard begins with the memory that its
manifest backup tells. The newest IDs, which only the lost checkpoint held, are unknown.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import Any

from dedup.catalog.backup import read_backup, write_adopted, write_backup
from dedup.catalog.certificate import certificate_of
from dedup.catalog.gc.runs import drop_runs, list_runs, read_lineage
from dedup.catalog.layout import MANIFEST_FILE, SEGMENT_SUFFIX, run_path, shard_path
from dedup.catalog.listing import CatalogFile, list_catalog
from dedup.catalog.root import Root
from dedup.core.lineage import Lineage
from dedup.core.manifest import Manifest
from dedup.core.state import ShardState
from dedup.errors import CatalogError, ConfigError
from dedup.tools.repair.inspection import Where, only_query, open_root


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a new checkpoint begins with.

    Parameters
    ----------
    root, checkpoint : str
        The catalog, and the new checkpoint.
    query_id : str
        The query, old and new.
    epoch : int
        Newest micro-batch of the old checkpoint that is told of.
    ids, segments : int
        Remembered.
    shards, unknown_shards : int
        All; and those of which nothing is known, because they never wrote a segment.
    """

    root: str
    checkpoint: str
    query_id: str
    epoch: int
    ids: int
    segments: int
    shards: int
    unknown_shards: int

    def to_json(self) -> dict[str, Any]:
        """Return what `dedup catalog adopt --json` prints."""
        return asdict(self)


def adopt(
    root: Where, checkpoint: str | os.PathLike[str], query: str | None = None, *, sole: bool = False
) -> Adoption:
    """Make a new checkpoint that goes on with a catalog whose own is lost.

    IDs that only the lost checkpoint held, the newest ones, may be emitted once more. The lost
    checkpoint must never run again.

    Parameters
    ----------
    root
        The catalog.
    checkpoint
        Where the new checkpoint is to be.
    query : str, optional
        Its ID, where the catalog holds several.
    sole : bool
        The sink holds all that the backups tell of, though the query's history has branched.

    Raises
    ------
    ConfigError
        If there is no catalog, or it does not say of which query, or the folder is in use, or the
        query's history has branched.
    CatalogError
        If segments are missing, or storage fails.
    """
    place, new = open_root(root), Root(checkpoint)
    query_id = query or only_query(place)
    return _adopt(place, query_id, new, sole=sole)


def _adopt(root: Root, query_id: str, checkpoint: Root, *, sole: bool) -> Adoption:
    certificate = certificate_of(root, query_id)
    if checkpoint.list():
        raise ConfigError(
            f"{checkpoint.url()} is not empty: adopt needs the place of a new checkpoint, and "
            "leaves the old one alone."
        )
    backups = {shard: read_backup(root, query_id, shard) for shard in range(certificate.shards)}
    states = {shard: state for shard, state in backups.items() if state is not None}
    files = list_catalog(root, query_id)
    _check_told(root, query_id, files, set(backups) - set(states))
    if not states:
        raise ConfigError(
            f"no shard of query {query_id} has a manifest backup at {root.url()}: all its IDs "
            "were in the lost checkpoint. Begin anew with another checkpoint.",
            remedy="lost-checkpoint",
        )
    _check_complete(root, query_id, files, states)
    if not sole:
        _check_one_line(root, query_id, files, states)
    # Every shard hears every clock, and clocks only advance; micro-batches may have begun anew.
    newest = max(states.values(), key=_how_far)
    there = {file.parsed.segment for file in files if file.parsed.kind == "pending_list"}
    for shard, state in backups.items():
        begin = _reborn(state or ShardState(), newest, there)
        write_adopted(root, query_id, shard, begin)
        if state is not None:
            # Its micro-batches are numbered anew, and so are those that the copy tells of.
            write_backup(root, query_id, shard, begin)
    drop_runs(root, query_id, list_runs(root, query_id), Lineage(()))
    checkpoint.put_bytes("metadata", json.dumps({"id": query_id}).encode())
    return Adoption(
        root.url(),
        checkpoint.url(),
        query_id,
        max(state.epoch for state in states.values()),
        sum(state.manifest.ids for state in states.values()),
        sum(1 for state in states.values() for _ in state.manifest.segments()),
        len(backups),
        len(backups) - len(states),
    )


def _how_far(state: ShardState) -> tuple[int, int, int, int]:
    clocks = state.clocks
    return clocks.gc_watermark_ms, clocks.newest_ms, clocks.now_ms, state.epoch


def _reborn(state: ShardState, newest: ShardState, there: set[str | None]) -> ShardState:
    """Return the state before micro-batch 0 of the new checkpoint.

    Pending lists that were emptied since the copy was written are gone, and no longer named.
    """
    manifest = state.manifest
    return replace(
        state,
        epoch=-1,
        bucket_ms=newest.bucket_ms,
        clocks=replace(newest.clocks, run_id=""),
        manifest=Manifest(
            manifest.buckets,
            tuple(replace(entry, epoch=-1) for entry in manifest.expired),
            tuple(
                replace(pending_list, epoch=-1)
                for pending_list in manifest.pending_lists
                if pending_list.name in there
            ),
        ),
        stray_files=(0, 0),
        run_began=0,
        branches=0,
        forgotten_before_ms=max(state.forgotten_before_ms, newest.forgotten_before_ms),
    )


def _check_told(root: Root, query_id: str, files: list[CatalogFile], untold: set[int]) -> None:
    """Refuse to begin with nothing where there was something."""
    for file in files:
        if file.parsed.kind in ("manifest", "segment") and file.parsed.shard in untold:
            raise CatalogError(
                f"the manifest backup of shard {file.parsed.shard} is missing or damaged, though "
                f"{root.url(file.name)} is there: its IDs would all come through again. Restore "
                f"{shard_path(query_id, file.parsed.shard or 0, MANIFEST_FILE)} from a copy of the "
                "catalog. A shard writes it in the micro-batch after the first that made a "
                "segment: if the query never came so far, delete the shard's folder, and the IDs "
                "in it are forgotten.",
                remedy="lost-checkpoint",
            )


def _check_one_line(
    root: Root, query_id: str, files: list[CatalogFile], known: dict[int, ShardState]
) -> None:
    """Refuse copies that tell of micro-batches which another state of the query undid."""
    runs = list_runs(root, query_id)
    if not runs:
        return
    times_ms = {file.name: file.modified_ms for file in files}
    began_ms = {
        run.run_id: times_ms.get(run_path(query_id, run.run_id, run.began_epoch)) for run in runs
    }
    unread = []
    for run in reversed(runs):
        line = read_lineage(root, query_id, run)
        if line is None:
            unread.append(run.run_id)
            continue
        covered = all(
            s.epoch < 0 or line.contains(s.clocks.run_id, s.epoch) for s in known.values()
        )
        if covered and not line.branches(runs) and not _tried(line, began_ms):
            return
    if unread:
        raise ConfigError(
            f"what run {unread[0]} of query {query_id} descends from cannot be read: its object in "
            f"{root.url(query_id)}/runs is missing or damaged, so nobody can tell whether the "
            "history has branched. If no checkpoint was copied or put back, say so with --sole.",
            remedy="branched-history",
        )
    raise ConfigError(
        f"query {query_id} went on from more than one state: a checkpoint was copied or put back, "
        "and what the manifest backups remember may be what the other one saw. Records that "
        "only that one let through would be dropped as duplicates. If the sink holds all that was "
        f"let through up to micro-batch {max(s.epoch for s in known.values())}, say so with "
        "--sole; else restore the catalog of an earlier day together with the sink.",
        remedy="branched-history",
    )


def _tried(line: Lineage, began_ms: dict[str, int | None]) -> bool:
    """Return whether a run not of this line began after its last one, by the storage's clock.

    A start that failed is older than the one that followed it.
    """
    last_ms = began_ms.get(line.runs[-1].run_id)
    others_ms = [at for run_id, at in began_ms.items() if not line.holds(run_id)]
    return any(last_ms is None or (at is not None and at >= last_ms) for at in others_ms)


def _check_complete(
    root: Root, query_id: str, files: list[CatalogFile], known: dict[int, ShardState]
) -> None:
    sizes = {file.name: file.size_bytes for file in files}
    missing = [
        segment.name
        for shard, state in known.items()
        for segment in state.manifest.segments()
        if sizes.get(shard_path(query_id, shard, segment.name + SEGMENT_SUFFIX))
        != segment.sst_bytes
        and shard_path(query_id, shard, segment.name + ".forgotten") not in sizes
    ]
    if missing:
        raise CatalogError(
            f"{len(missing)} segments that the manifest backups name are missing or cut short, "
            f"such as {missing[0]}: restore them, or accept their loss with dedup catalog "
            f"accept-loss {root.url()} --segment NAME, and adopt again.",
            remedy="lost-checkpoint",
        )
