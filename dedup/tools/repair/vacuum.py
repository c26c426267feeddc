"""Cleaning up a catalog from outside: orphans, half-written files, runs that are no more.

The operator sweeps what its own lineage left. The rest needs a person's word: files of starts that
failed before their first micro-batch, and everything once a checkpoint was copied or put back.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from dedup.catalog.gc.runs import drop_runs, lineage_from, list_runs
from dedup.catalog.gc.sweep import find_stray, written_past_successor
from dedup.catalog.listing import CatalogFile, list_catalog
from dedup.catalog.root import Root
from dedup.core.lineage import Lineage, Run
from dedup.core.state import ShardState
from dedup.errors import CatalogError, ConfigError
from dedup.spark.machine import wall_clock_ms
from dedup.tools.repair.contents import Snapshot

_SAY_SO = "other checkpoint of this query is in use, say so with --sole."


@dataclass(frozen=True, slots=True)
class VacuumPlan:
    """What may go.

    Parameters
    ----------
    files : tuple of CatalogFile
        Orphans and half-written files, old enough.
    young : int
        Those that are not, and stay.
    foreign : tuple of CatalogFile
        Files that are not of this library; they stay.
    branches : tuple of Run
        Runs that went on from a state of this checkpoint's history, and are forgotten.
    lineage : Lineage
        Runs that the checkpoint descends from.
    """

    files: tuple[CatalogFile, ...]
    young: int
    foreign: tuple[CatalogFile, ...]
    branches: tuple[Run, ...]
    lineage: Lineage

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that go."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What was deleted of a query's files, or would be.

    Parameters
    ----------
    root, query_id : str
    dry_run : bool
        Nothing was.
    plan : VacuumPlan
    """

    root: str
    query_id: str
    dry_run: bool
    plan: VacuumPlan

    def to_json(self) -> dict[str, Any]:
        """Return what `dedup catalog vacuum --json` prints."""
        return {
            "root": self.root,
            "query_id": self.query_id,
            "dry_run": self.dry_run,
            "files": [file.name for file in self.plan.files],
            "bytes": self.plan.size_bytes,
            "young": self.plan.young,
            "foreign": [file.name for file in self.plan.foreign],
            "runs": [run.run_id for run in self.plan.branches],
        }


def vacuum(
    root: Root, known: Snapshot, *, older_than_ms: int, sole: bool, dry_run: bool
) -> Vacuumed:
    """Delete what the manifests of a checkpoint do not name; errors as `plan_vacuum`.

    The age of a file is counted up to when the checkpoint was read: whatever came later is young.
    """
    since_read_ms = max(0, wall_clock_ms() - known.read_ms)
    storage_ms = wall_clock_ms() if dry_run else _storage_now_ms(root)
    plan = plan_vacuum(
        root,
        known.query_id,
        known.states,
        now_ms=storage_ms - since_read_ms,
        older_than_ms=older_than_ms,
        sole=sole,
    )
    if not dry_run:
        carry_out(root, known.query_id, plan)
    return Vacuumed(root=root.url(), query_id=known.query_id, dry_run=dry_run, plan=plan)


def _storage_now_ms(root: Root) -> int:
    """Return the time by the storage's clock, which dates objects; this machine's may be off."""
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
) -> VacuumPlan:
    """Return what may be deleted of a query's files, going by the manifests of its checkpoint.

    Parameters
    ----------
    root : Root
    query_id : str
    states : dict of shard to ShardState
        As of the last committed micro-batch.
    now_ms, older_than_ms : int
        What is younger may belong to a micro-batch under way.
    sole : bool
        The user's word that no other checkpoint of this query is in use.

    Raises
    ------
    ConfigError
        When other runs went on from this history, and the word is not given.
    CatalogError
        When an object that names expired segments cannot be read, or the root cannot.
    """
    newest = max(states.values(), key=lambda state: state.epoch, default=ShardState())
    # As if a run began after the checkpoint's last micro-batch.
    lineage = lineage_from(root, query_id, newest, Run("", newest.epoch + 1))
    runs = list_runs(root, query_id)
    branches = lineage.branches(runs)
    if not sole:
        _check_runs(query_id, lineage, runs)
    orphans = _orphans(root, query_id, states)
    if not sole and (overrun := written_past_successor(orphans, lineage)):
        names = ", ".join(f"{run.run_id} (to micro-batch {epoch})" for run, epoch in overrun)
        raise _branched(
            f"query {query_id} went on behind the state of this checkpoint: {names}. It is a copy, "
            f"or was put back; what is an orphan here may be alive there. If no {_SAY_SO}"
        )
    files = list_catalog(root, query_id)
    orphans += [file for file in files if file.parsed.kind == "temp"]
    # Of branches that are over: no micro-batch under way wrote them, whatever their age.
    past = Lineage(lineage.runs[:-1])
    old = tuple(
        file
        for file in orphans
        if _old(file, now_ms, older_than_ms) or (sole and written_past_successor([file], past))
    )
    foreign = tuple(file for file in files if file.parsed.kind == "foreign")
    return VacuumPlan(old, len(orphans) - len(old), foreign, branches, lineage)


def _check_runs(query_id: str, lineage: Lineage, runs: list[Run]) -> None:
    if len(lineage.runs) > 1 and not lineage.listed_in(runs):
        raise _branched(
            f"the storage lists no trace of run {lineage.runs[-2].run_id}, which wrote the last "
            f"micro-batch of query {query_id}: other runs from its history would be missed as "
            f"well. List again; if the trace is lost, and no {_SAY_SO}"
        )
    if branches := lineage.branches(runs):
        names = ", ".join(f"{run.run_id} (from micro-batch {run.began_epoch})" for run in branches)
        raise _branched(
            f"query {query_id} was also started from another state of its history: {names}. A "
            "checkpoint was copied or put back; what is an orphan here may be alive there. If no "
            f"{_SAY_SO}"
        )


def _branched(text: str) -> ConfigError:
    return ConfigError(text, remedy="branched-history")


def _orphans(root: Root, query_id: str, states: dict[int, ShardState]) -> list[CatalogFile]:
    orphans: list[CatalogFile] = []
    for shard, state in states.items():
        stray = find_stray(root, query_id, shard, state.manifest)
        if not stray.complete:
            raise CatalogError(
                f"shard {shard}: an object that names expired segments is missing or damaged; "
                "what it named cannot be told from orphans. If the query was stopped while it "
                "deleted, let it do one more micro-batch; else restore it from a copy",
                remedy="damaged-pending-list",
            )
        orphans += stray.orphans
    return orphans


def carry_out(root: Root, query_id: str, plan: VacuumPlan) -> int:
    """Delete what the plan names; return how many files were there.

    Raises
    ------
    CatalogError
        When the root cannot be written; some may be deleted then.
    """
    deleted = root.delete(file.name for file in plan.files)
    drop_runs(root, query_id, plan.branches, plan.lineage)
    return deleted


def _old(file: CatalogFile, now_ms: int, older_than_ms: int) -> bool:
    return file.modified_ms is not None and now_ms - file.modified_ms >= older_than_ms
