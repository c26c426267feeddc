"""Housekeeping of a shard at the root: whether its history has branched, and what may go.

Done before a micro-batch is judged, from its base state: whatever the attempt writes later is not
there yet, and whatever it deletes no state needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dedup.catalog.gc.runs import drop_runs, lineage_from, list_runs, mark_through, write_lineage
from dedup.catalog.gc.sweep import find_stray, sweepable, written_past_successor
from dedup.catalog.root import Root
from dedup.core.lineage import Run
from dedup.core.policy import Policy
from dedup.core.state import ShardState
from dedup.errors import faults

#: A shard does so when a run begins, after so many micro-batches, and four times within
#: `keep_expired`, but at most once a minute.
LOOK_STRIDE = 100
_LOOKS_PER_KEEP = 4
_LEAST_LOOK_MS = 60_000
#: Shards take turns within the time between two looks.
_TURNS = 16


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Who keeps house: one attempt of one shard's micro-batch."""

    query_id: str
    run_id: str
    shard: int
    epoch: int
    now_ms: int


def housekeep(
    root: Root, task: ShardTask, base: ShardState, policy: Policy
) -> tuple[ShardState, int]:
    """Return the base state with what was seen, and how many orphaned files were deleted."""
    begins = base.clocks.run_id != task.run_id
    run = Run(task.run_id, task.epoch if begins else base.run_began)
    if not begins and task.shard == 0 and base.epoch == run.began_epoch:
        mark_through(root, task.query_id, run, base.epoch)
    state = replace(base, run_began=run.began_epoch)
    if not begins and not _due(task, base, policy):
        return state, 0
    lineage = lineage_from(root, task.query_id, base, run)
    if task.shard == 0:
        if begins:
            write_lineage(root, task.query_id, lineage)
            if len(lineage.runs) > 1:
                mark_through(root, task.query_id, lineage.runs[-2], base.epoch)
            faults.point("lineage.put.after")
        else:
            mark_through(root, task.query_id, run, base.epoch)
    stray = find_stray(root, task.query_id, task.shard, base.manifest)
    for ahead, epoch in written_past_successor(stray.orphans, lineage):
        mark_through(root, task.query_id, ahead, epoch - 1)
    runs = list_runs(root, task.query_id)
    # A list without one's own run was cut short, and may lack a branch as well.
    complete = lineage.listed_in(runs)
    if begins and task.shard == 0 and complete:
        drop_runs(root, task.query_id, lineage.superseded(runs), lineage)
    branches = len(lineage.branches(runs)) if complete else base.branches
    swept = []
    if complete and not branches and stray.complete:
        swept = sweepable(stray.orphans, lineage, policy, epoch=task.epoch, now_ms=task.now_ms)
    if swept:
        faults.point("sweep.before")
        root.delete(swept)
        faults.point("sweep.after")
    left = len(stray.orphans) - len(swept)
    return replace(state, branches=branches, stray_files=(left, stray.foreign)), len(swept)


def _due(task: ShardTask, base: ShardState, policy: Policy) -> bool:
    every_ms = max(policy.keep_expired_ms // _LOOKS_PER_KEEP, _LEAST_LOOK_MS)
    turn_ms = task.shard % _TURNS * every_ms // _TURNS
    return (task.epoch + task.shard) % LOOK_STRIDE == 0 or (
        (base.clocks.now_ms + turn_ms) // every_ms != (task.now_ms + turn_ms) // every_ms
    )
