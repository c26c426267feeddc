"""Report what a `WriteAheadSink` has sent, from the files in its query's checkpoint."""

from __future__ import annotations

from dataclasses import replace

from dedup.catalog.root import Root
from dedup.sinks.inspection import SinkInspection, SinkState, SlotState, next_start, sink_states
from dedup.sinks.kit.write_ahead import SentMarkers
from dedup.sinks.marker import BATCH_SLOT, NO_RUN, Marker
from dedup.sinks.options import SinkOptions
from dedup.sinks.slice_store import SliceStore
from dedup.spark.driver.checkpoint_log import Progress


def inspect_write_ahead(options: SinkOptions, progress: Progress | None) -> SinkInspection:
    """Return what the sink has sent, for each query whose ledger is in the folder of the options.

    The system itself holds no markers, so the report cannot show what was sent from another
    checkpoint.
    """
    assert options.ledger is not None, "the options of the kit always name one"
    sinks: list[SinkState] = []
    for query_id in Root(options.ledger).folders():
        marker = SentMarkers(options.ledger, query_id).newest()
        decided = max(SliceStore(options.ledger, query_id, "kit").decided(), default=-1)
        if marker is None and decided < 0:
            continue
        known = marker or Marker(
            query_id=query_id, sink=options.name, slot=BATCH_SLOT, batch_id=-1, rows=0, content="",
            run_id=NO_RUN,
        )  # fmt: skip
        attempted = decided if decided > known.batch_id else None
        slot = SlotState(marker=known, attempted=attempted)
        own = progress if progress is not None and progress.query_id == query_id else None
        sinks += sink_states([slot], own)
        if attempted is not None:
            sinks[-1] = replace(sinks[-1], restart=_sent_again(attempted, known, own))
    return SinkInspection(sinks=tuple(sinks))


def _sent_again(attempted: int, sent: Marker, progress: Progress | None) -> str:
    """Describe the next start if a micro-batch is decided, and perhaps sent in part."""
    again = (
        "Its rows are decided, and some or all of them may be sent. If the rows are the same, the "
        "start sends all of them again; if rows differ, the query stops and sends nothing."
    )
    if progress is None:
        return f"A checkpoint whose next micro-batch is {attempted} runs it again. {again}"
    if progress.next_batch_id == attempted:
        return f"The next start runs micro-batch {attempted} again. {again}"
    return next_start([sent], progress)
