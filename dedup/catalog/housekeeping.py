"""Now and then a shard looks round at the root: has its history branched, what may be deleted.

Done before a micro-batch is judged, from its base state: whatever the attempt writes later is not
there yet, and whatever it deletes no state needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dedup import faults
from dedup.catalog.root import Root
from dedup.catalog.runs import (
    forget_runs,
    list_runs,
    mark_through,
    read_lineage,
    write_lineage,
)
from dedup.catalog.sweep import find_stray, others_work, sweepable
from dedup.core.lineage import Lineage, Run
from dedup.core.policy import Policy
from dedup.core.state import ShardState

#: A shard looks round when a run begins, after so many micro-batches, and four times within
#: `keep_expired`, but at most once a minute.
LOOK_STRIDE = 100
_LOOKS_PER_KEEP = 4
_LEAST_LOOK_MS = 60_000
#: Shards take turns within the time between two looks.
_TURNS = 16


@dataclass(frozen=True, slots=True)
class Visit:
    """Who looks round: one attempt of one shard's micro-batch."""

    query_id: str
    run_id: str
    shard: int
    epoch: int
    now_ms: int


def look_round(
    root: Root, visit: Visit, base: ShardState, policy: Policy
) -> tuple[ShardState, int]:
    """Return the base state with what was seen, and how many orphaned files were deleted.

    Raises
    ------
    CatalogError
        When the root cannot be read or written.
    """
    begins = base.clocks.run_id != visit.run_id
    run = Run(visit.run_id, visit.epoch if begins else base.run_began)
    if not begins and visit.shard == 0 and base.epoch == run.began_epoch:
        mark_through(root, visit.query_id, run, base.epoch)
    state = replace(base, run_began=run.began_epoch)
    if not begins and not _due(visit, base, policy):
        return state, 0
    lineage = _lineage(root, visit.query_id, base, run)
    if visit.shard == 0:
        if begins:
            write_lineage(root, visit.query_id, lineage)
            if len(lineage.runs) > 1:
                mark_through(root, visit.query_id, lineage.runs[-2], base.epoch)
            faults.point("lineage.put.after")
        else:
            mark_through(root, visit.query_id, run, base.epoch)
    stray = find_stray(root, visit.query_id, visit.shard, base.manifest)
    for ahead, epoch in others_work(stray.orphans, lineage):
        mark_through(root, visit.query_id, ahead, epoch - 1)
    known = list_runs(root, visit.query_id)
    # A list without one's own run was cut short, and may lack a branch as well.
    told = lineage.told_by(known)
    if begins and visit.shard == 0 and told:
        forget_runs(root, visit.query_id, lineage.outlived(known), lineage)
    branches = len(lineage.branches(known)) if told else base.branches
    swept = []
    if told and not branches and stray.complete:
        swept = sweepable(stray.orphans, lineage, policy, epoch=visit.epoch, now_ms=visit.now_ms)
    if swept:
        faults.point("sweep.before")
        root.delete(swept)
        faults.point("sweep.after")
    left = len(stray.orphans) - len(swept)
    return replace(state, branches=branches, stray_files=(left, stray.foreign)), len(swept)


def _due(visit: Visit, base: ShardState, policy: Policy) -> bool:
    every_ms = max(policy.keep_expired_ms // _LOOKS_PER_KEEP, _LEAST_LOOK_MS)
    turn_ms = visit.shard % _TURNS * every_ms // _TURNS
    return (visit.epoch + visit.shard) % LOOK_STRIDE == 0 or (
        (base.clocks.now_ms + turn_ms) // every_ms != (visit.now_ms + turn_ms) // every_ms
    )


def _lineage(root: Root, query_id: str, base: ShardState, run: Run) -> Lineage:
    """The runs that made the base state, and the one that goes on from it."""
    if base.clocks.run_id == run.run_id:
        return read_lineage(root, query_id, run) or Lineage((run,))
    if not base.clocks.run_id:
        return Lineage((run,))
    parent = Run(base.clocks.run_id, base.run_began)
    return (read_lineage(root, query_id, parent) or Lineage((parent,))).followed_by(run)
