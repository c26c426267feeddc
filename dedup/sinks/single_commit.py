"""How a micro-batch reaches a table whole and once: the rule for commits that compare and set.

A table format such as Delta Lake or Iceberg commits everything at once, and only if nobody else has
committed since the table was read. With the marker in the same commit that is all it takes. The
driver reads the marker from the newest version, decides, and commits as the very next version:
another driver of the query (a copy of the checkpoint, a start that was frozen and wakes) either has
committed before, and its marker is read, or finds that the table has moved and decides again.

A commit without an answer is decided again as well. Should it become visible later, then either as
that next version, and the commit that was sent after it is refused, or not at all.
"""

from __future__ import annotations

import enum
import time
from typing import Protocol

from dedup.errors import SinkError
from dedup.sinks.content import Content
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import (
    Aborted,
    Batch,
    Indefinite,
    refuse_lost_markers,
    refuse_older_checkpoint,
    refuse_other_content,
)

#: Of the driver. Each one that fails lets another writer of the table through.
ATTEMPTS = 40
#: Attempts that may end without an answer, or with an error that nobody else's commit explains.
UNANSWERED = 3
_LONGEST_WAIT_S = 1.0


class Publication(enum.Enum):
    """What became of a micro-batch."""

    #: This call has committed it.
    COMMITTED = "committed"
    #: It was there already, or came from another driver meanwhile.
    FOUND = "found"
    #: It has no rows, and nothing was committed.
    NOTHING = "nothing"


class TablePort(Protocol):
    """A table in the hands of one driver; a sink implements this to be exactly-once."""

    def newest(self) -> Marker | None:
        """Read the table afresh; return the marker that its newest version holds of this sink."""

    def commit(self, marker: Marker) -> None:
        """Make rows and marker visible, as the version right behind the one that was read last.

        Raises
        ------
        Aborted
            Where that version is another one by now.
        Indefinite
            Where nobody knows: `newest` tells.
        """

    def is_own(self, marker: Marker) -> bool:
        """Return whether a marker that was read is the one that this port sent."""


def commit_batch(
    batch: Batch,
    port: TablePort,
    content: Content,
    *,
    known_batch_id: int | None = None,
    accept_difference: bool = False,
) -> Publication:
    """Publish a micro-batch whole, unless it is published.

    Parameters
    ----------
    batch : Batch
    port : TablePort
    content : Content
        What all slices hold together.
    known_batch_id : int, optional
        A micro-batch that this sink is known to have published, so that a marker of it or of a
        later one must be there.
    accept_difference : bool, optional
        Take the micro-batch for published although other rows of it are there.

    Raises
    ------
    SinkError
        When what is published contradicts this micro-batch; nothing is published then.
    """
    reason: Exception | None = None
    unanswered = 0
    for attempt in range(ATTEMPTS):
        newest = port.newest()
        refuse_lost_markers(batch, {} if newest is None else {BATCH_SLOT: newest}, known_batch_id)
        refuse_older_checkpoint(batch, newest)
        if newest is not None and newest.batch_id == batch.batch_id:
            if port.is_own(newest):
                return Publication.COMMITTED
            if not accept_difference:
                refuse_other_content(newest, content)
            return Publication.FOUND
        if not content.rows:
            return Publication.NOTHING
        try:
            port.commit(batch.marker(BATCH_SLOT, content))
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
        f"one because: {reason}. Start the query again; should it have become visible meanwhile, "
        "it is found then."
    )
