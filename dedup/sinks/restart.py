"""What the next start of a query does with what its sink has published, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.spark.driver.checkpoint_log import Progress


def next_start(slots: Iterable[Marker], progress: Progress | None) -> str:
    """Return what the next start of a query does with what its sink has published, as sentences.

    Parameters
    ----------
    slots : iterable of Marker
        The newest of each slot.
    progress : Progress or None
        Of the query's checkpoint, where it is known.
    """
    newest = max(marker.batch_id for marker in slots)
    published = sorted(marker.slot for marker in slots if marker.batch_id == newest)
    if BATCH_SLOT in published:
        again = "it is published whole, so nothing of it is written again"
    else:
        again = (
            f"{_slices(published)} published, and stays so if the rows are the same; what is "
            "missing is published, and if rows differ, the query stops with nothing written"
        )
    if progress is None:
        return (
            f"A checkpoint that goes on with micro-batch {newest + 1} publishes it. One that runs "
            f"micro-batch {newest} again: {again}. An older checkpoint is refused. Give the "
            "checkpoint, and its next start is told."
        )
    next_id = progress.next_batch_id
    if next_id > newest:
        verb = "runs again" if progress.again else "goes on with"
        return f"The next start {verb} micro-batch {next_id}, of which nothing is published yet."
    if next_id == newest:
        verb = "runs again" if progress.again else "goes on with"
        return f"The next start {verb} micro-batch {next_id}: {again}."
    return (
        f"The next start is refused: its checkpoint goes on with micro-batch {next_id}, and "
        f"micro-batch {newest} is published already. The checkpoint is older than the sink."
    )


def _slices(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"slice {numbers[0]} is"
    return f"slices {', '.join(map(str, numbers))} are"
