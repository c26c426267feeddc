"""Publish each micro-batch exactly once with one commit that compares and sets.

A table format such as Delta Lake or Iceberg commits everything at once, and only if no other writer
has committed since the table was read. A folder of files has one plan for each micro-batch, which
only one driver can create. With the marker in the same commit that is enough. The driver reads the
marker from the newest version, decides, and commits as the very next version. Another driver of the
query (a copy of the checkpoint, or a start that was frozen and wakes) has either committed before,
so this driver reads its marker, or commits too late, and decides again.

After a commit without an answer the driver decides again as well. If that commit becomes visible
later, it does so as the next version, and then the commit sent after it is refused.
"""

from __future__ import annotations

import enum
import time
from typing import Protocol

from dedup.errors import SinkError
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import (
    Aborted,
    Indefinite,
    StagedBatch,
    content_of_slices,
    refuse_other_content,
)

#: Largest number of attempts of the driver. Each one that fails lets another writer through.
ATTEMPTS = 40
#: Number of attempts that may have no answer, or an error that no other commit explains.
UNANSWERED = 3
_LONGEST_WAIT_S = 1.0


class Publication(enum.Enum):
    """What became of a micro-batch."""

    #: This call has committed the micro-batch.
    COMMITTED = "committed"
    #: The micro-batch was published already, or another driver has just committed it.
    FOUND = "found"
    #: The micro-batch has no rows, so nothing was committed.
    NOTHING = "nothing"


class TablePort(Protocol):
    """A table, as one driver holds it."""

    def newest(self) -> Marker | None:
        """Read the table afresh, and return this sink's marker in its newest version."""

    def commit(self, marker: Marker) -> None:
        """Make rows and marker visible, as the version that follows the one that was read last.

        Raises Aborted if another commit has become that version, and Indefinite if the outcome is
        unknown. `newest` then shows the outcome.
        """

    def is_own(self, marker: Marker) -> bool:
        """Return whether this port has sent the marker that was read."""


def commit_batch(
    staged: StagedBatch, port: TablePort, *, tasks: int | None = None, even_empty: bool = False
) -> Publication:
    """Publish a micro-batch in one commit, unless it is published, or empty without `even_empty`.

    Raises SinkError if what is published contradicts this micro-batch, or if no attempt succeeds.
    """
    batch, content = staged.batch, content_of_slices(staged.slices)
    reason: Exception | None = None
    unanswered = 0
    for attempt in range(ATTEMPTS):
        newest = port.newest()
        staged.check_markers({} if newest is None else {BATCH_SLOT: newest})
        if newest is not None and newest.batch_id == batch.batch_id:
            if port.is_own(newest):
                return Publication.COMMITTED
            if not staged.accept_difference:
                refuse_other_content(newest, content)
            return Publication.FOUND
        if not content.rows and not even_empty:
            return Publication.NOTHING
        try:
            port.commit(batch.marker(BATCH_SLOT, content, tasks))
        except (Aborted, Indefinite) as error:
            reason = error
            unanswered += isinstance(error, Indefinite)
            if unanswered == UNANSWERED:
                break
            time.sleep(min(0.01 * 2**attempt, _LONGEST_WAIT_S))
            continue
        return Publication.COMMITTED
    raise SinkError(
        f"Micro-batch {batch.batch_id} could not be committed in {attempt + 1} attempts, the last "
        f"one because: {reason}. Start the query again. If it becomes visible until then, the "
        "start finds it."
    )
