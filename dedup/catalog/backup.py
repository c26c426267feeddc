"""Manifest backups: copies of the shards' manifests at the catalog root.

If the checkpoint is lost, `dedup catalog adopt` makes the start of a new checkpoint from the
backups. A shard writes a backup once a micro-batch that changed its set of segments is committed. A
backup covers all IDs except the newest, which only Spark state holds. Other files at the root are
never overwritten. The operator never judges records or deletes files by a backup. It reads a backup
only before it replaces the backup of another run.
"""

from __future__ import annotations

from dataclasses import replace

from dedup.catalog.gc.lineage import Run
from dedup.catalog.gc.runs import read_lineage
from dedup.catalog.layout import ADOPTED_FILE, BACKUP_FILE, catalog_files, shard_path
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.errors import CatalogError, OtherRelease
from dedup.storage.document import from_document, to_document
from dedup.storage.root import ObjectMissing, Root
from dedup.values.parse import count, name, record

#: The first format, and the format of a state that forgets IDs early.
BACKUP_FORMAT, CAPPED_BACKUP_FORMAT = 1, 2


def write_backup(root: Root, query_id: str, shard: int, state: ShardState) -> None:
    root.put_bytes(shard_path(query_id, shard, BACKUP_FILE), _to_bytes(query_id, shard, state))


def read_backup(root: Root, query_id: str, shard: int) -> ShardState | None:
    """Return a shard's manifest backup, or None if it is missing or damaged."""
    try:
        return check_backup(root, query_id, shard)
    except (ObjectMissing, ValueError):
        return None


def backup_is_due(root: Root, query_id: str, shard: int, base: ShardState, run_id: str) -> bool:
    """Return whether this committed state should replace the shard's manifest backup.

    The state replaces the backup if its micro-batch changed the set of segments. The state of the
    first micro-batch of a run also does, because the backup of an earlier run may include what a
    restored checkpoint undid. A run that has committed nothing yet does not replace the backup of a
    later micro-batch, because somebody may give that run up.

    ``base`` is the state that the current micro-batch starts from, ``run_id`` the current run.
    """
    if base.epoch < 0 or not (base.epoch == base.run_began or base.manifest.changed_in(base.epoch)):
        return False
    if base.clocks.run_id == run_id:
        return True
    try:
        backup = check_backup(root, query_id, shard)
    except (ObjectMissing, OtherRelease, ValueError):
        return True  # Spark's state is the truth
    if backup.epoch <= base.epoch:
        return True
    lineage = read_lineage(root, query_id, Run(backup.clocks.run_id, backup.run_began))
    return lineage is not None and lineage.undid(base.clocks.run_id, base.epoch)


def check_backup(root: Root, query_id: str, shard: int) -> ShardState:
    """Return a shard's manifest backup. Raises ObjectMissing, or ValueError if damaged."""
    path = shard_path(query_id, shard, BACKUP_FILE)
    return root.read(path, lambda data: _from_bytes(data, query_id, shard))


def write_adopted(root: Root, query_id: str, shard: int, state: ShardState) -> None:
    root.put_bytes(shard_path(query_id, shard, ADOPTED_FILE), _to_bytes(query_id, shard, state))


def read_adopted(root: Root, query_id: str, shard: int) -> ShardState | None:
    """Return the adopted state that a shard starts with, or None if no state was adopted.

    Raises CatalogError if the state is damaged, or of another shard or release. Also raises it if
    the state is missing although other shards have one, because a shard that starts without its
    state would emit everything again.
    """
    path = shard_path(query_id, shard, ADOPTED_FILE)
    try:
        return root.read(path, lambda data: _from_bytes(data, query_id, shard))
    except ObjectMissing:
        if not any(file.parsed.kind == "adopted" for file in catalog_files(root, query_id)):
            return None
        why: object = "it is missing, though other shards of this query have one"
    except ValueError as exc:
        why = exc
    raise CatalogError(
        f"{root.url(path)}, which a new checkpoint starts with, cannot be used: {why}. Run "
        "dedup catalog adopt or rebuild again, into another new checkpoint.",
        remedy="lost-checkpoint",
    )


def _to_bytes(query_id: str, shard: int, state: ShardState) -> bytes:
    without_tail = replace(state, tail=Tail.empty(), filters={})
    fields = {"query_id": query_id, "shard": shard, "state": without_tail.head()}
    return to_document(fields, version=CAPPED_BACKUP_FORMAT if state.is_capped else BACKUP_FORMAT)


def _from_bytes(data: bytes, query_id: str, shard: int) -> ShardState:
    """Return the state in these bytes.

    Raises ValueError if the bytes are damaged, or belong to another shard or query.
    """
    fields = from_document(data, version=CAPPED_BACKUP_FORMAT, least=BACKUP_FORMAT)
    read = record(fields, {"query_id": name, "shard": count, "state": ShardState.from_head})
    if (read["query_id"], read["shard"]) != (query_id, shard):
        raise ValueError(f"it belongs to shard {read['shard']} of query {read['query_id']}")
    state: ShardState = read["state"]
    return state
