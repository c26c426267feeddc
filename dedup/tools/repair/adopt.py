"""Make a new checkpoint for a catalog whose checkpoint is lost.

The new checkpoint gets the old query's ID. Each shard starts with the state in its manifest
backup, which the catalog holds. The newest IDs were only in the lost checkpoint and are forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dedup.catalog.backup import read_backup, write_adopted, write_backup
from dedup.catalog.certificate import certificate_of
from dedup.catalog.gc.lineage import Lineage
from dedup.catalog.gc.runs import drop_runs, list_runs, read_lineage
from dedup.catalog.layout import (
    ACCEPTED_LOSS_SUFFIX,
    BACKUP_FILE,
    SEGMENT_SUFFIX,
    CatalogFile,
    catalog_files,
    run_path,
    shard_path,
)
from dedup.catalog.successor import refuse_closed
from dedup.core.state import ShardState
from dedup.errors import CatalogError, ConfigError
from dedup.storage.root import Root
from dedup.tools.repair.new_checkpoint import name_query
from dedup.tools.repair.opening import Where, only_query, open_root


@dataclass(frozen=True, slots=True)
class Adoption:
    """The new checkpoint, and what its query remembers at the start."""

    #: The catalog, and the new checkpoint.
    root: str
    checkpoint: str
    query_id: str
    #: Newest micro-batch of the lost checkpoint that a backup includes.
    epoch: int
    #: Number of remembered IDs, and number of the segments that hold these IDs.
    ids: int
    segments: int
    #: Number of shards, and number of shards without a backup, because they never wrote a segment.
    shards: int
    unknown_shards: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def adopt(
    root: Where, checkpoint: str | os.PathLike[str], query: str | None = None, *, sole: bool = False
) -> Adoption:
    """Make a new checkpoint that continues a catalog whose own checkpoint is lost.

    The query may emit the newest IDs once more, because only the lost checkpoint held them. The
    lost checkpoint must never run again.

    Parameters
    ----------
    root
        The catalog.
    checkpoint
        Empty or new folder for the checkpoint.
    query : str, optional
        ID of the query. Needed if the catalog holds several queries.
    sole : bool
        The caller's promise that the sink holds everything that the backups remember. Needed if
        the query's history has branched.

    Raises
    ------
    ConfigError
        If the catalog or the query does not exist, the folder is not empty, or the query's
        history has branched and `sole` is not given.
    CatalogError
        If segments or backups are missing, or storage fails.
    """
    root, new = open_root(root), Root(checkpoint)
    query_id = query or only_query(root)
    certificate = certificate_of(root, query_id)
    refuse_closed(root, query_id)
    if new.list():
        raise ConfigError(
            f"{new.url()} is not empty. Give a new folder for the checkpoint; adopt leaves the "
            "old one alone."
        )
    backups = {shard: read_backup(root, query_id, shard) for shard in range(certificate.shards)}
    states = {shard: state for shard, state in backups.items() if state is not None}
    files = catalog_files(root, query_id)
    _check_backups(root, query_id, files, set(backups) - set(states))
    if not states:
        raise ConfigError(
            f"no shard of query {query_id} has a manifest backup at {root.url()}: all its IDs "
            "were in the lost checkpoint. Start the query with a new checkpoint.",
            remedy="lost-checkpoint",
        )
    check_complete(root, query_id, files, states)
    if not sole:
        _check_one_history(root, query_id, files, states)
    # Clocks are equal in all shards and only advance, so they show the newest state. Numbers of
    # micro-batches may restart at 0.
    newest = max(states.values(), key=_progress)
    pending = {file.parsed.segment for file in files if file.parsed.kind == "pending_list"}
    unknown = ShardState(hash_key_id=newest.hash_key_id)
    for shard, state in backups.items():
        first = _first_state(state or unknown, newest, pending)
        write_adopted(root, query_id, shard, first)
        if state is not None:
            # The new checkpoint numbers micro-batches from 0, so the backup must not name old ones.
            write_backup(root, query_id, shard, first)
    drop_runs(root, query_id, list_runs(root, query_id), Lineage(()))
    name_query(new, query_id)
    return Adoption(
        root.url(),
        new.url(),
        query_id,
        max(state.epoch for state in states.values()),
        sum(state.manifest.ids for state in states.values()),
        sum(1 for state in states.values() for _ in state.manifest.segments()),
        len(backups),
        len(backups) - len(states),
    )


def _progress(state: ShardState) -> tuple[int, int, int, int]:
    clocks = state.clocks
    return clocks.gc_watermark_ms, clocks.newest_ms, clocks.now_ms, state.epoch


def _first_state(state: ShardState, newest: ShardState, pending: set[str | None]) -> ShardState:
    """Return a shard's state before micro-batch 0 of the new checkpoint.

    The state omits pending lists that the query has deleted since it wrote the backup.
    """
    left = tuple(one for one in state.manifest.pending_lists if one.name in pending)
    return state.restarted(newest, replace(state.manifest, pending_lists=left))


def _check_backups(
    root: Root, query_id: str, files: Sequence[CatalogFile], lacking: set[int]
) -> None:
    """Raise CatalogError if a shard has files but no backup, because it would start empty."""
    for file in files:
        if file.parsed.kind in ("backup", "segment") and file.parsed.shard in lacking:
            raise CatalogError(
                f"the manifest backup of shard {file.parsed.shard} is missing or damaged, but "
                f"{root.url(file.name)} exists: all IDs of the shard would pass again. Restore "
                f"{shard_path(query_id, file.parsed.shard or 0, BACKUP_FILE)} from a copy of the "
                "catalog. A shard writes it in the micro-batch after its first segment. If the "
                "query stopped before that, delete the shard's folder; its IDs are forgotten then.",
                remedy="lost-checkpoint",
            )


def _check_one_history(
    root: Root, query_id: str, files: Sequence[CatalogFile], states: dict[int, ShardState]
) -> None:
    """Raise ConfigError if the history has branched, because backups may be from two branches."""
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
            s.epoch < 0 or line.contains(s.clocks.run_id, s.epoch) for s in states.values()
        )
        if covered and not line.branches(runs) and not _later_start(line, began_ms):
            return
    if unread:
        raise ConfigError(
            f"the parents of run {unread[0]} of query {query_id} cannot be read: its object in "
            f"{root.url(query_id)}/runs is missing or damaged, so the history may have branched. "
            "If no checkpoint was copied or restored, promise it with --sole.",
            remedy="branched-history",
        )
    raise ConfigError(
        f"query {query_id} was continued from more than one state: a checkpoint was copied or "
        "restored, and the manifest backups may remember IDs that only the other copy let pass. "
        "Their records would be dropped as duplicates. If the sink holds all rows up to "
        f"micro-batch {max(s.epoch for s in states.values())}, promise it with --sole. Otherwise "
        "restore an earlier copy of the catalog together with the sink.",
        remedy="branched-history",
    )


def _later_start(line: Lineage, began_ms: dict[str, int | None]) -> bool:
    """Return whether a run outside the lineage began after the lineage's last run.

    The storage's clock decides. If a start failed and the lineage started again later, the failed
    start does not count.
    """
    last_ms = began_ms.get(line.runs[-1].run_id)
    others_ms = [at for run_id, at in began_ms.items() if not line.holds(run_id)]
    return any(last_ms is None or (at is not None and at >= last_ms) for at in others_ms)


def check_complete(
    root: Root, query_id: str, files: Sequence[CatalogFile], states: dict[int, ShardState]
) -> None:
    """Raise CatalogError if a segment of the states is missing and its loss not accepted."""
    sizes = {file.name: file.size_bytes for file in files}
    missing = [
        segment.name
        for shard, state in states.items()
        for segment in state.manifest.segments()
        if sizes.get(shard_path(query_id, shard, segment.name + SEGMENT_SUFFIX))
        != segment.sst_bytes
        and shard_path(query_id, shard, segment.name + ACCEPTED_LOSS_SUFFIX) not in sizes
    ]
    if missing:
        raise CatalogError(
            f"{len(missing)} segments of the query are missing or truncated, such as {missing[0]}. "
            f"Restore them, or accept their loss with dedup catalog accept-loss {root.url()} "
            "--segment NAME, and call again.",
            remedy="lost-checkpoint",
        )
