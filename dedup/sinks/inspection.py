"""Report what sinks have published, by their markers, and what a query's next start will do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dedup.sinks.marker import BATCH_SLOT, NO_RUN, Marker
from dedup.spark.driver.checkpoint_log import Progress
from dedup.values.duration import iso


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One slot of a sink, with its newest committed marker.

    `attempted` is a later micro-batch that a task or driver has begun to publish in this slot, or
    None. If `open` is true, the transaction of that attempt may still be open. Otherwise it was
    aborted.
    """

    marker: Marker
    attempted: int | None = None
    open: bool = False

    def to_json(self) -> dict[str, Any]:
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
    """The state of one sink of one query.

    `batch_id` is the newest micro-batch that the sink has published at least in part. `restart`
    says in sentences what the next start of the query will do.
    """

    query_id: str
    sink: str
    batch_id: int
    restart: str
    slots: tuple[SlotState, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"slots": [slot.to_json() for slot in self.slots]}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkInspection:
    """What an output holds, listed by query and sink."""

    sinks: tuple[SinkState, ...]

    def to_json(self) -> dict[str, Any]:
        return {"sinks": [sink.to_json() for sink in self.sinks]}


def inspection_of(markers: Iterable[Marker | None], progress: Progress | None) -> SinkInspection:
    """Return what the newest marker of each slot says. Slots without a marker count for nothing."""
    slots = (SlotState(marker=marker) for marker in markers if marker is not None)
    return SinkInspection(sinks=sink_states(slots, progress))


def sink_states(slots: Iterable[SlotState], progress: Progress | None) -> tuple[SinkState, ...]:
    """Group slots by query and sink, and return the state of each sink.

    `progress` comes from the checkpoint of one query. The states of that query's sinks say exactly
    what the next start will do.
    """
    by_sink: defaultdict[tuple[str, str], list[SlotState]] = defaultdict(list)
    for slot in slots:
        by_sink[slot.marker.query_id, slot.marker.sink].append(slot)
    known = None if progress is None else progress.query_id
    return tuple(
        SinkState(
            query_id=query_id,
            sink=name,
            batch_id=max(slot.marker.batch_id for slot in sink_slots),
            slots=tuple(sorted(sink_slots, key=lambda slot: slot.marker.slot)),
            restart=next_start(
                [slot.marker for slot in sink_slots], progress if query_id == known else None
            ),
        )
        for (query_id, name), sink_slots in sorted(by_sink.items())
    )


def next_start(slots: Collection[Marker], progress: Progress | None) -> str:
    """Say in sentences what the next start will do. `slots` has the newest marker of each slot."""
    newest = max((marker.batch_id for marker in slots), default=-1)
    published = sorted(marker.slot for marker in slots if marker.batch_id == newest)
    if BATCH_SLOT in published:
        again = "it is published whole, so the start writes nothing of it"
    else:
        again = (
            f"{_slices(published)} published. If their rows are the same, the start publishes "
            "what is missing; if rows differ, the query stops and writes nothing"
        )
    if progress is None:
        return (
            f"A checkpoint whose next micro-batch is {newest + 1} publishes it. If it runs "
            f"micro-batch {newest} again: {again}. An older checkpoint is refused. Give the "
            "checkpoint to see what its next start does."
        )
    next_id = progress.next_batch_id
    runs = f"runs micro-batch {next_id}" + (" again" if progress.again else "")
    if next_id > newest:
        return f"The next start {runs}, of which nothing is published yet."
    if next_id == newest:
        return f"The next start {runs}: {again}."
    return (
        f"The next start is refused: its checkpoint is at micro-batch {next_id}, and micro-batch "
        f"{newest} is published already. The checkpoint is older than the sink."
    )


def _slices(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"slice {numbers[0]} is"
    return f"slices {', '.join(map(str, numbers))} are"
