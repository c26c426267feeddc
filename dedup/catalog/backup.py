"""Copies of the shards' memory at the root, for the day when the checkpoint is lost.

A shard writes one after a micro-batch that changed its set of segments, once that micro-batch is
known to be committed; it is the one kind of file that is overwritten. It tells all but the newest
IDs, those in Spark state. Nothing is judged live, or deleted, by it; the operator reads it only
before it replaces the backup of another run. `dedup catalog adopt` turns all of them into what a
new checkpoint begins with.
"""

from __future__ import annotations

from dataclasses import replace

from dedup.catalog.document import from_document, to_document
from dedup.catalog.gc.runs import read_lineage
from dedup.catalog.layout import ADOPTED_FILE, MANIFEST_FILE, parse, shard_path
from dedup.catalog.root import ObjectMissing, Root
from dedup.core.lineage import Run
from dedup.core.parse import mapping
from dedup.core.state import ShardState
from dedup.core.tail import Tail
from dedup.errors import CatalogError, OtherRelease, StateError

BACKUP_FORMAT = 3

_FIELDS = frozenset(("query_id", "shard", "state"))


def write_backup(root: Root, query_id: str, shard: int, state: ShardState) -> None:
    """Overwrite a shard's manifest backup with a committed state."""
    root.put_bytes(shard_path(query_id, shard, MANIFEST_FILE), _to_bytes(query_id, shard, state))


def read_backup(root: Root, query_id: str, shard: int) -> ShardState | None:
    """Return a shard's manifest backup, None where there is none or it is damaged.

    Raises
    ------
    CatalogError
        If the root cannot be read, or another release wrote the backup.
    """
    try:
        return check_backup(root, query_id, shard)
    except (ObjectMissing, ValueError):
        return None


def backup_is_due(root: Root, query_id: str, shard: int, base: ShardState, run_id: str) -> bool:
    """Return whether a shard's manifest backup is to be replaced by this committed state.

    The micro-batch that made it changed which segments there are, or was the first of its run: the
    backup of a run before may tell of what a checkpoint that was put back undid. A run that has
    committed nothing yet replaces no backup of a later micro-batch: it may be tried and given up.

    Parameters
    ----------
    root : Root
    query_id : str
    shard : int
    base : ShardState
        The state that the micro-batch under way goes on from.
    run_id : str
        The run under way.

    Raises
    ------
    CatalogError
        When the root cannot be read, or another release wrote the lineage of the backup's run.
    """
    if base.epoch < 0 or not (base.epoch == base.run_began or base.manifest.changed_in(base.epoch)):
        return False
    if base.clocks.run_id == run_id:
        return True
    try:
        backup = check_backup(root, query_id, shard)
    except (ObjectMissing, OtherRelease, ValueError):
        return True  # what Spark keeps is the truth
    if backup.epoch <= base.epoch:
        return True
    lineage = read_lineage(root, query_id, Run(backup.clocks.run_id, backup.run_began))
    return lineage is not None and lineage.undid(base.clocks.run_id, base.epoch)


def check_backup(root: Root, query_id: str, shard: int) -> ShardState:
    """Return a shard's manifest backup; ObjectMissing if there is none, ValueError if damaged."""
    name = shard_path(query_id, shard, MANIFEST_FILE)
    return root.read(name, lambda data: _from_bytes(data, query_id, shard))


def write_adopted(root: Root, query_id: str, shard: int, state: ShardState) -> None:
    """Write what a shard begins with under a new checkpoint."""
    root.put_bytes(shard_path(query_id, shard, ADOPTED_FILE), _to_bytes(query_id, shard, state))


def read_adopted(root: Root, query_id: str, shard: int) -> ShardState | None:
    """Return what a shard without Spark state begins with, None where nothing was adopted.

    Raises
    ------
    CatalogError
        If it is damaged, another shard's or release's, or missing where other shards have one:
        beginning with nothing would emit everything again.
    """
    name = shard_path(query_id, shard, ADOPTED_FILE)
    try:
        return root.read(name, lambda data: _from_bytes(data, query_id, shard))
    except ObjectMissing:
        if not any(parse(found.name).kind == "adopted" for found in root.list(query_id)):
            return None
        why: object = "it is missing, though other shards of this query have one"
    except ValueError as exc:
        why = exc
    raise CatalogError(
        f"{root.url(name)}, which a new checkpoint begins with, cannot be used: {why}. Run "
        "dedup catalog adopt again, into another new checkpoint",
        remedy="lost-checkpoint",
    )


def _to_bytes(query_id: str, shard: int, state: ShardState) -> bytes:
    without_tail = replace(state, tail=Tail.empty(), filters={})
    fields = {"query_id": query_id, "shard": shard, "state": without_tail.head()}
    return to_document(fields, version=BACKUP_FORMAT)


def _from_bytes(data: bytes, query_id: str, shard: int) -> ShardState:
    """Return the state; ValueError where the bytes are damaged, or another shard's or query's."""
    _, fields = from_document(data, version=BACKUP_FORMAT)
    mapping(fields, needed=_FIELDS, allowed=_FIELDS)
    owner = fields["query_id"], fields["shard"]
    if owner != (query_id, shard):
        raise ValueError(f"it is that of shard {owner[1]!r:.80} of query {owner[0]!r:.80}")
    try:
        return ShardState.from_head(fields["state"])
    except StateError as exc:
        raise ValueError(exc.text) from exc
