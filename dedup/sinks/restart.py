"""What the next start of a query does, in words, given what its sink has published."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.spark.driver.checkpoint_log import Progress


def next_start(slots: Collection[Marker], progress: Progress | None) -> str:
    """Return, as sentences, what the next start of a query does.

    Parameters
    ----------
    slots : collection of Marker
        The newest marker of each slot.
    progress : Progress or None
        From the query's checkpoint, if it is known.
    """
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
