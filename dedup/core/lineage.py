"""Lineage: the runs that a shard's memory descends from, and whether it has gone two ways.

A run is one start of the query. It begins at a micro-batch, from the state that an earlier run
left. States and runs make a line, until a checkpoint is copied or put back: then two runs descend
from one state, and each counts segments as expired, or as left over, that the other may still need.
Nothing is deleted then (invariant 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

#: Runs that a lineage keeps, the newest.
MAX_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a query.

    Parameters
    ----------
    run_id : str
        Unique for ever.
    began_epoch : int
        Its first micro-batch.
    through_epoch : int or None
        A micro-batch that it is known to have committed; None: it may have committed nothing.
    """

    run_id: str
    began_epoch: int
    through_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The runs whose micro-batches made the state, oldest first; the last one goes on."""

    runs: tuple[Run, ...]

    def followed_by(self, run: Run) -> Lineage:
        """The lineage of a run that goes on from here."""
        return Lineage((*self.runs, run)[-MAX_RUNS:])

    def holds(self, run_id: str) -> bool:
        """Whether a run is one of them."""
        return any(run.run_id == run_id for run in self.runs)

    def contains(self, run_id: str, epoch: int) -> bool:
        """Whether a micro-batch of a run is part of this history."""
        ends = {run.run_id: after.began_epoch for run, after in pairwise(self.runs)}
        return self.holds(run_id) and epoch < ends.get(run_id, epoch + 1)

    def outran(self, run_id: str, epoch: int) -> Run | None:
        """The run of the lineage that was still at work when its successor had long begun.

        It wrote in a micro-batch behind its successor's first, so it committed that one as well.
        """
        for run, after in pairwise(self.runs):
            if run.run_id == run_id and epoch > after.began_epoch:
                return run
        return None

    def listed_in(self, known: Iterable[Run]) -> bool:
        """Whether the newest run, or the one before it, is among the runs that a listing told.

        Each leaves its object when it begins; a listing without both is not whole, and may lack
        branches too.
        """
        own = {run.run_id for run in self.runs[-2:]}
        return any(run.run_id in own for run in known)

    def branches(self, known: Iterable[Run]) -> tuple[Run, ...]:
        """Those of all known runs that committed a micro-batch which is not part of this history.

        A run of the lineage did so if it went on after its successor had begun; a run that
        committed nothing did no harm and needs nothing. Runs that ended before the oldest of a full
        lineage began are not judged.
        """
        first = self._first_epoch()
        ends = {run.run_id: after.began_epoch for run, after in pairwise(self.runs)}
        own = self.runs[-1].run_id if self.runs else None
        return tuple(
            run
            for run in known
            if run.through_epoch is not None
            and run.run_id != own
            and run.through_epoch >= first
            and run.through_epoch >= ends.get(run.run_id, run.began_epoch)
        )

    def superseded(self, known: Iterable[Run]) -> tuple[Run, ...]:
        """Those of all known runs that ended before the oldest of a full lineage began."""
        first = self._first_epoch()
        return tuple(
            run
            for run in known
            if run.began_epoch < first
            and (run.through_epoch or 0) < first
            and not self.holds(run.run_id)
        )

    def _first_epoch(self) -> int:
        return self.runs[0].began_epoch if len(self.runs) == MAX_RUNS else 0
