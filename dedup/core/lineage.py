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
        """Return the lineage of a run that goes on from here."""
        return Lineage((*self.runs, run)[-MAX_RUNS:])

    def holds(self, run_id: str) -> bool:
        """Return whether a run is one of them."""
        return any(run.run_id == run_id for run in self.runs)

    def contains(self, run_id: str, epoch: int) -> bool:
        """Return whether a micro-batch of a run is part of this history."""
        return self.holds(run_id) and epoch < self._ends().get(run_id, epoch + 1)

    def undid(self, run_id: str, epoch: int) -> bool:
        """Return whether this history reaches back to a micro-batch of a run and does without it.

        The checkpoint was put back behind it.
        """
        return epoch >= self.runs[0].began_epoch and not self.contains(run_id, epoch)

    def outran(self, run_id: str, epoch: int) -> Run | None:
        """Return the run of the lineage that was still at work when its successor had long begun.

        It wrote in a micro-batch behind its successor's first, so it committed that one as well.
        """
        for run, after in pairwise(self.runs):
            if run.run_id == run_id and epoch > after.began_epoch:
                return run
        return None

    def listed_in(self, listed: Iterable[Run]) -> bool:
        """Return whether the newest run, or the one before it, is among the listed runs.

        Each leaves its object when it begins; a listing without both is not complete, and may lack
        branches too.
        """
        newest_ids = {run.run_id for run in self.runs[-2:]}
        return any(run.run_id in newest_ids for run in listed)

    def branches(self, listed: Iterable[Run]) -> tuple[Run, ...]:
        """Return the listed runs that committed a micro-batch which is not part of this history.

        A run of the lineage did so if it went on after its successor had begun; a run that
        committed nothing did no harm and needs nothing. Runs that ended before the oldest of a full
        lineage began are not judged.
        """
        first = self._first_epoch()
        ends = self._ends()
        newest_id = self.runs[-1].run_id if self.runs else None
        return tuple(
            run
            for run in listed
            if run.through_epoch is not None
            and run.run_id != newest_id
            and run.through_epoch >= first
            and run.through_epoch >= ends.get(run.run_id, run.began_epoch)
        )

    def superseded(self, listed: Iterable[Run]) -> tuple[Run, ...]:
        """Return the listed runs that ended before the oldest of a full lineage began."""
        first = self._first_epoch()
        return tuple(
            run
            for run in listed
            if run.began_epoch < first
            and (run.through_epoch or 0) < first
            and not self.holds(run.run_id)
        )

    def _ends(self) -> dict[str, int]:
        return {run.run_id: after.began_epoch for run, after in pairwise(self.runs)}

    def _first_epoch(self) -> int:
        return self.runs[0].began_epoch if len(self.runs) == MAX_RUNS else 0
