"""Delete orphans, half-written files and the traces of past runs from a catalog.

A query deletes most orphans itself. It leaves files of starts that failed before their first
micro-batch. Once somebody has copied or restored the checkpoint, the query deletes no orphans at
all. To delete them here, a person promises that no other checkpoint is in use.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any

from dedup.catalog.gc.lineage import Lineage, Run
from dedup.catalog.gc.runs import drop_runs, lineage_from, list_runs
from dedup.catalog.gc.sweep import find_stray, written_past_successor
from dedup.catalog.layout import CatalogFile, catalog_files
from dedup.core.state import ShardState
from dedup.errors import CatalogError, ConfigError
from dedup.spark.machine import wall_clock_ms
from dedup.storage.root import Root
from dedup.tools.repair.opening import Checkpoint, Where, open_root, read_checkpoint
from dedup.values.duration import duration_ms

_PROMISE = "other checkpoint of this query is in use, promise it with --sole."


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What `vacuum` has deleted and kept, or in a dry run would delete and keep."""

    root: str
    query_id: str
    dry_run: bool = True
    #: Orphans and half-written files that are old enough to be deleted.
    files: tuple[CatalogFile, ...]
    #: Number of orphans and half-written files that stay because they are too young.
    young: int
    #: Files that this library did not write. They stay.
    foreign: tuple[CatalogFile, ...]
    #: Runs of other branches, which continued an earlier state of this checkpoint. Their traces are
    #: deleted.
    branches: tuple[Run, ...]
    #: Runs whose micro-batches led to the state in the checkpoint.
    lineage: Lineage

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "root": self.root,
            "query_id": self.query_id,
            "dry_run": self.dry_run,
            "files": [file.name for file in self.files],
            "bytes": self.size_bytes,
            "young": self.young,
            "foreign": [file.name for file in self.foreign],
            "runs": [run.run_id for run in self.branches],
        }


def vacuum(
    root: Where,
    checkpoint: Checkpoint,
    *,
    older_than: str = "24 hours",
    sole: bool = False,
    dry_run: bool = False,
) -> Vacuumed:
    """Delete a query's orphans, which no manifest of the query names, and half-written files.

    Parameters
    ----------
    root
        The catalog.
    checkpoint
        Checkpoint of the query. Files that it names stay.
    older_than : str
        Smallest age of a deleted file, as of the time when the checkpoint was read. Younger files
        stay, because a running micro-batch may own them.
    sole : bool
        The caller's promise that no other checkpoint of this query is in use.
    dry_run : bool
        Return what would be deleted, and delete nothing.

    Raises
    ------
    ConfigError
        If the catalog or the checkpoint does not exist, or the query's history has branched and
        `sole` is not given.
    CatalogError
        If the catalog cannot be read or written.
    """
    older_than_ms = duration_ms(older_than, option="--older-than")
    root = open_root(root)
    snapshot = read_checkpoint(root, checkpoint)
    since_read_ms = max(0, wall_clock_ms() - snapshot.read_ms)
    storage_ms = wall_clock_ms() if dry_run else _storage_now_ms(root)
    plan = plan_vacuum(
        root,
        snapshot.query_id,
        snapshot.states,
        now_ms=storage_ms - since_read_ms,
        older_than_ms=older_than_ms,
        sole=sole,
    )
    if dry_run:
        return plan
    carry_out(root, plan)
    return replace(plan, dry_run=False)


def _storage_now_ms(root: Root) -> int:
    """Return the time by the storage's clock. Writes a file to learn the time."""
    probe = f"probe-{uuid.uuid4()}"
    root.put_bytes(probe, b"")
    try:
        storage_ms = root.modified_ms(probe)
    finally:
        root.delete([probe])
    return wall_clock_ms() if storage_ms is None else min(wall_clock_ms(), storage_ms)


def plan_vacuum(
    root: Root,
    query_id: str,
    states: dict[int, ShardState],
    *,
    now_ms: int,
    older_than_ms: int,
    sole: bool,
) -> Vacuumed:
    """Return the files of a query that may be deleted, given the states of its shards."""
    newest = max(states.values(), key=lambda state: state.epoch, default=ShardState())
    # Read the lineage as if a run started after the checkpoint's last micro-batch.
    lineage = lineage_from(root, query_id, newest, Run("", newest.epoch + 1))
    runs = list_runs(root, query_id)
    branches = lineage.branches(runs)
    if not sole:
        _check_runs(query_id, lineage, runs)
    orphans = _orphans(root, query_id, states)
    if not sole and (overrun := written_past_successor(orphans, lineage)):
        names = ", ".join(f"{run.run_id} (to micro-batch {epoch})" for run, epoch in overrun)
        raise _branched(
            f"query {query_id} ran past the state of this checkpoint: {names}. The checkpoint was "
            "copied or restored, and another copy may use the files that are orphans here. If no "
            f"{_PROMISE}"
        )
    files = catalog_files(root, query_id)
    orphans += [file for file in files if file.parsed.kind == "temp"]
    # No running micro-batch owns files of past branches, however young they are.
    past = Lineage(lineage.runs[:-1])
    old = tuple(
        file
        for file in orphans
        if file.is_older(older_than_ms, now_ms=now_ms)
        or (sole and written_past_successor([file], past))
    )
    foreign = tuple(file for file in files if file.parsed.kind == "foreign")
    return Vacuumed(
        root=root.url(), query_id=query_id, files=old, young=len(orphans) - len(old),
        foreign=foreign, branches=branches, lineage=lineage,
    )  # fmt: skip


def _check_runs(query_id: str, lineage: Lineage, runs: list[Run]) -> None:
    if len(lineage.runs) > 1 and not lineage.listed_in(runs):
        raise _branched(
            f"the storage lists no trace of run {lineage.runs[-2].run_id}, which wrote the last "
            f"micro-batch of query {query_id}, so it may miss traces of other runs too. Try again. "
            f"If the trace is lost and no {_PROMISE}"
        )
    if branches := lineage.branches(runs):
        names = ", ".join(f"{run.run_id} (from micro-batch {run.began_epoch})" for run in branches)
        raise _branched(
            f"query {query_id} was also started from another state of its history: {names}. A "
            "checkpoint was copied or restored, and another copy may use the files that are "
            f"orphans here. If no {_PROMISE}"
        )


def _branched(text: str) -> ConfigError:
    return ConfigError(text, remedy="branched-history")


def _orphans(root: Root, query_id: str, states: dict[int, ShardState]) -> list[CatalogFile]:
    orphans: list[CatalogFile] = []
    for shard, state in states.items():
        stray = find_stray(root, query_id, shard, state.manifest)
        if not stray.complete:
            raise CatalogError(
                f"shard {shard}: an object that names expired segments is missing or damaged, so "
                "these segments look like orphans. If the query was stopped while it deleted, let "
                "it run one more micro-batch. Otherwise restore the object from a copy.",
                remedy="damaged-pending-list",
            )
        orphans += stray.orphans
    return orphans


def carry_out(root: Root, plan: Vacuumed) -> None:
    """Delete the files of the plan. If this raises CatalogError, some files may be deleted."""
    root.delete(file.name for file in plan.files)
    drop_runs(root, plan.query_id, plan.branches, plan.lineage)
