"""Lineage: the runs that a shard's memory descends from, and whether its history has branched.

A run is one start of the query. It begins at a micro-batch, from the state that an earlier run
left. States and runs form a line until somebody copies or restores a checkpoint. Then two runs
descend from one state, and each may count segments as expired or orphaned that the other still
needs. In that case nothing is deleted (invariant 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

#: Number of runs, the newest, that a lineage keeps.
MAX_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a query."""

    #: Unique, and never reused.
    run_id: str
    #: First micro-batch of the run.
    began_epoch: int
    #: A micro-batch that the run certainly committed, or None if it may have committed nothing.
    through_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The runs whose micro-batches made the state, oldest first. The last one is under way."""

    runs: tuple[Run, ...]

    def followed_by(self, run: Run) -> Lineage:
        return Lineage((*self.runs, run)[-MAX_RUNS:])

    def holds(self, run_id: str) -> bool:
        return any(run.run_id == run_id for run in self.runs)

    def contains(self, run_id: str, epoch: int) -> bool:
        """Return whether a micro-batch of a run is part of this history."""
        return self.holds(run_id) and epoch < self._ends().get(run_id, epoch + 1)

    def undid(self, run_id: str, epoch: int) -> bool:
        """Return whether this history reaches back to ``epoch`` but lacks that batch of the run.

        If so, somebody restored a checkpoint from before the micro-batch.
        """
        return epoch >= self.runs[0].began_epoch and not self.contains(run_id, epoch)

    def outran(self, run_id: str, epoch: int) -> Run | None:
        """Return the run if it wrote in ``epoch``, after its successor had begun, or else None.

        If so, the run also committed its own version of the successor's first micro-batch.
        """
        for run, after in pairwise(self.runs):
            if run.run_id == run_id and epoch > after.began_epoch:
                return run
        return None

    def listed_in(self, listed: Iterable[Run]) -> bool:
        """Return whether the newest run, or the one before it, is among the listed runs.

        Each run writes its object when it begins. A listing that lacks both is incomplete, and may
        lack branches too.
        """
        newest_ids = {run.run_id for run in self.runs[-2:]}
        return any(run.run_id in newest_ids for run in listed)

    def branches(self, listed: Iterable[Run]) -> tuple[Run, ...]:
        """Return the listed runs that committed a micro-batch which is not part of this history.

        A run of the lineage is a branch if it continued after its successor had begun. A run that
        committed nothing did no harm and needs nothing. Runs that ended before the oldest run of a
        full lineage began are left out.
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
        """Return the listed runs that ended before the oldest run of a full lineage began."""
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
