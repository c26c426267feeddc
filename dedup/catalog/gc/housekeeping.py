"""Housekeeping of a shard at the catalog root: detect branches of its history, delete orphans.

Housekeeping begins from the state before the micro-batch, and runs before records are judged. So it
cannot see what this attempt will write, and it deletes nothing that a state needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dedup.catalog.gc.lineage import Lineage, Run
from dedup.catalog.gc.runs import drop_runs, lineage_from, list_runs, mark_through, write_lineage
from dedup.catalog.gc.sweep import find_stray, sweepable, written_past_successor
from dedup.catalog.layout import CatalogFile
from dedup.core.policy import Policy
from dedup.core.records import Epoch
from dedup.core.state import ShardState
from dedup.errors import faults
from dedup.storage.root import Root

#: A shard lists the root when a run begins, and then every this many micro-batches. It also lists
#: the root every quarter of `keep_expired`, which counts as at least a minute.
LOOK_STRIDE = 100
_LOOKS_PER_KEEP = 4
_LEAST_LOOK_MS = 60_000
#: Number of groups of shards. The groups list the root at different times.
_TURNS = 16


def housekeep(
    root: Root, query_id: str, epoch: Epoch, base: ShardState, policy: Policy
) -> tuple[ShardState, int]:
    """Search the root for branches and orphans, and delete old orphans.

    Returns the state, updated with what the search found, and the number of orphans deleted.

    Shard 0 records the run for all shards.
    """
    begins, leads = base.clocks.run_id != epoch.run_id, epoch.shard == 0
    run = Run(epoch.run_id, epoch.number if begins else base.run_began)
    state = replace(base, run_began=run.began_epoch)
    looks = begins or _look_is_due(epoch, base, policy)
    if leads and not begins and (looks or base.epoch == run.began_epoch):
        mark_through(root, query_id, run, base.epoch)
    if not looks:
        return state, 0
    lineage = lineage_from(root, query_id, base, run)
    if leads and begins:
        _record_start(root, query_id, lineage, base.epoch)
    stray = find_stray(root, query_id, epoch.shard, base.manifest)
    runs = _all_runs(root, query_id, lineage, stray.orphans)
    if runs is None:
        return replace(state, stray_files=(len(stray.orphans), stray.foreign)), 0
    if leads and begins:
        drop_runs(root, query_id, lineage.superseded(runs), lineage)
    branches = len(lineage.branches(runs))
    swept = []
    if not branches and stray.complete:
        swept = sweepable(stray.orphans, lineage, policy, epoch=epoch.number, now_ms=epoch.now_ms)
        if swept:
            faults.point("sweep.before")
            root.delete(swept)
            faults.point("sweep.after")
    left = len(stray.orphans) - len(swept)
    return replace(state, branches=branches, stray_files=(left, stray.foreign)), len(swept)


def _look_is_due(epoch: Epoch, base: ShardState, policy: Policy) -> bool:
    every_ms = max(policy.keep_expired_ms // _LOOKS_PER_KEEP, _LEAST_LOOK_MS)
    turn_ms = epoch.shard % _TURNS * every_ms // _TURNS
    return (epoch.number + epoch.shard) % LOOK_STRIDE == 0 or (
        (base.clocks.now_ms + turn_ms) // every_ms != (epoch.now_ms + turn_ms) // every_ms
    )


def _record_start(root: Root, query_id: str, lineage: Lineage, base_epoch: int) -> None:
    """Write the lineage of a run that begins, and record the last commit of the previous run."""
    write_lineage(root, query_id, lineage)
    if len(lineage.runs) > 1:
        mark_through(root, query_id, lineage.runs[-2], base_epoch)
    faults.point("lineage.put.after")


def _all_runs(
    root: Root, query_id: str, lineage: Lineage, orphans: Sequence[CatalogFile]
) -> list[Run] | None:
    """Return every run of the query, or None if the listing is incomplete and may lack a branch.

    If orphans reveal that a run committed more than its mark says, updates the mark first.
    """
    for ahead, epoch in written_past_successor(orphans, lineage):
        mark_through(root, query_id, ahead, epoch - 1)
    runs = list_runs(root, query_id)
    return runs if lineage.listed_in(runs) else None
