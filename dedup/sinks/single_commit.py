"""Publish each micro-batch exactly once with one compare-and-set commit.

A table format such as Delta Lake or Iceberg commits everything at once. The commit fails if another
writer has committed since the table was read. A folder of files has one plan for each micro-batch,
and only one driver can create a plan. If that commit contains the marker, the sink needs nothing
more. The driver reads the marker from the newest version, decides, and commits the very next
version. A second driver of the query may run from a copy of the checkpoint, or after a freeze. If
it has committed first, this driver reads its marker. Otherwise its commit fails, and it decides
again.

After a commit without an answer the driver also decides again. If the unanswered commit becomes the
next version later, the table rejects the commit that the driver sent afterwards.
"""

from __future__ import annotations

import enum
import time
from typing import Protocol

from dedup.errors import SinkError
from dedup.sinks.figures import note_retry
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import (
    Aborted,
    Indefinite,
    StagedBatch,
    content_of_slices,
    refuse_other_content,
)

#: Largest number of the driver's attempts to commit. Most attempts fail because another writer
#: committed first.
ATTEMPTS = 40
#: Largest number of attempts that may fail without another writer's commit, for example because no
#: answer came.
UNANSWERED = 3
_LONGEST_WAIT_S = 1.0


class Publication(enum.Enum):
    """The outcome of publishing a micro-batch."""

    #: This call has committed the micro-batch.
    COMMITTED = "committed"
    #: The micro-batch was published already, or another driver has just committed it.
    FOUND = "found"
    #: The micro-batch has no rows, so nothing was committed.
    NOTHING = "nothing"


class TablePort(Protocol):
    """A handle with which one driver uses a table, or a folder of files."""

    def newest(self) -> Marker | None:
        """Read the table's newest version, and return this sink's marker in it."""

    def commit(self, marker: Marker) -> None:
        """Commit rows and marker as the version that follows the version that `newest` read.

        Raises Aborted if another commit has become that version. Raises Indefinite if the outcome
        is unknown. `newest` then shows the outcome.
        """

    def is_own(self, marker: Marker) -> bool:
        """Return whether this port has itself committed the marker that `newest` returned."""


def commit_batch(
    staged: StagedBatch, port: TablePort, *, tasks: int | None = None, even_empty: bool = False
) -> Publication:
    """Publish a micro-batch in one commit, unless it is published already.

    A micro-batch without rows is committed only if `even_empty` is true. Raises SinkError if
    published rows differ or are of a later micro-batch, or if no attempt succeeds.
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
            note_retry()
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
