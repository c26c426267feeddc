"""Lineage: the runs that led to a shard's state, and whether another run has branched off.

A run is one start of the query. It begins at a micro-batch, from the state that an earlier run
left. States and runs form a line until somebody copies or restores a checkpoint. Then two runs
continue from the same state. A segment that is expired or orphaned for one run may be live for the
other run, so neither run deletes anything (invariant 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

#: A lineage keeps at most this many runs, the newest.
MAX_RUNS = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a query."""

    #: Unique name, never used again.
    run_id: str
    #: First micro-batch of the run.
    began_epoch: int
    #: A micro-batch that the run certainly committed, or None if it may have committed nothing.
    through_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The runs whose micro-batches made the state, oldest first. The last is the current run."""

    runs: tuple[Run, ...]

    def followed_by(self, run: Run) -> Lineage:
        return Lineage((*self.runs, run)[-MAX_RUNS:])

    def holds(self, run_id: str) -> bool:
        return any(run.run_id == run_id for run in self.runs)

    def contains(self, run_id: str, epoch: int) -> bool:
        """Return whether this history includes the micro-batch ``epoch`` of the run."""
        return self.holds(run_id) and epoch < self._ends().get(run_id, epoch + 1)

    def undid(self, run_id: str, epoch: int) -> bool:
        """Return whether this history covers ``epoch``, but lacks the run's micro-batch ``epoch``.

        If so, somebody restored a checkpoint from before that micro-batch.
        """
        return epoch >= self.runs[0].began_epoch and not self.contains(run_id, epoch)

    def outran(self, run_id: str, epoch: int) -> Run | None:
        """Return the run if ``epoch`` is later than its successor's first micro-batch, else None.

        A run that wrote something in such an ``epoch`` also committed its own version of the
        successor's first micro-batch.
        """
        for run, after in pairwise(self.runs):
            if run.run_id == run_id and epoch > after.began_epoch:
                return run
        return None

    def listed_in(self, listed: Iterable[Run]) -> bool:
        """Return whether one of this history's two newest runs is among the listed runs.

        Every run writes an object at the catalog root when it begins. If a listing of these objects
        lacks both runs, the listing is incomplete, and may lack branches too.
        """
        newest_ids = {run.run_id for run in self.runs[-2:]}
        return any(run.run_id in newest_ids for run in listed)

    def branches(self, listed: Iterable[Run]) -> tuple[Run, ...]:
        """Return the listed runs that committed a micro-batch which is not part of this history.

        A run of this lineage is a branch too if it continued after its successor had begun. Runs
        that committed nothing are not branches, because they need no segments. Runs that
        `superseded` returns are not branches either.
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
        """Return the listed runs that ended before the oldest run of this lineage began.

        A lineage with less than `MAX_RUNS` runs holds every earlier run, so the result is empty.
        """
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
