"""What sinks have published according to their markers, and what the next start of a query does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dedup.core.duration import iso
from dedup.sinks.marker import BATCH_SLOT, NO_RUN, Marker
from dedup.sinks.restart import next_start
from dedup.spark.driver.checkpoint_log import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One slot of a sink.

    Parameters
    ----------
    marker : Marker
        The newest one that is committed.
    attempted : int or None
        A later micro-batch that a task or driver began to publish here.
    open : bool
        Whether the transaction of that attempt may still be open. Otherwise it was aborted.
    """

    marker: Marker
    attempted: int | None = None
    open: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values, times as ISO 8601."""
        marker = self.marker
        return {
            "slot": None if marker.slot == BATCH_SLOT else marker.slot,
            "batch_id": marker.batch_id,
            "rows": marker.rows,
            "content": marker.content,
            "run_id": marker.run_id if marker.run_id != NO_RUN else None,
            "writer": marker.writer,
            "time": iso(marker.time_ms),
            "attempted": self.attempted,
            "open": self.open,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """One sink of one query.

    Parameters
    ----------
    query_id, sink : str
    batch_id : int
        The newest micro-batch of which something is published.
    slots : tuple of SlotState
        In the order of their numbers.
    restart : str
        What the next start of the query does, as sentences.
    """

    query_id: str
    sink: str
    batch_id: int
    slots: tuple[SlotState, ...]
    restart: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values, times as ISO 8601."""
        return {
            "query_id": self.query_id,
            "sink": self.sink,
            "batch_id": self.batch_id,
            "restart": self.restart,
            "slots": [slot.to_json() for slot in self.slots],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkInspection:
    """What an output holds of each query and sink."""

    sinks: tuple[SinkState, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values, times as ISO 8601."""
        return {"sinks": [sink.to_json() for sink in self.sinks]}


def sink_states(slots: Iterable[SlotState], progress: Progress | None) -> tuple[SinkState, ...]:
    """Return the states of sinks from the states of their slots.

    Parameters
    ----------
    slots : iterable of SlotState
    progress : Progress or None
        From the checkpoint of one of the queries, for its next start.
    """
    by_sink: defaultdict[tuple[str, str], list[SlotState]] = defaultdict(list)
    for slot in slots:
        by_sink[slot.marker.query_id, slot.marker.sink].append(slot)
    states = []
    for (query_id, name), found in sorted(by_sink.items()):
        markers = [slot.marker for slot in found]
        is_known = progress is not None and progress.query_id == query_id
        states.append(
            SinkState(
                query_id=query_id,
                sink=name,
                batch_id=max(marker.batch_id for marker in markers),
                slots=tuple(sorted(found, key=lambda slot: slot.marker.slot)),
                restart=next_start(markers, progress if is_known else None),
            )
        )
    return tuple(states)
