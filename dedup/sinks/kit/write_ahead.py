"""The sink kit's write-ahead log, for systems without transactions.

    tasks     stage all rows       staged/<micro-batch>-<task>-<random>.arrow
    driver    1 decides            manifests/<micro-batch>.json, which only one start can create
              2 records that       dedup-begun/ in the checkpoint, apart from these folders
              3 sends all rows     in the manifest's order, each with its key and version
              4 writes a marker    sent/<micro-batch>.json
              5 deletes what was staged

A start that finds the manifest of a micro-batch, and no marker, sends the manifest's rows again and
reports that. Only the start that has created the manifest sends without a report. After it has
created the manifest, a start looks for a marker once more: if it was frozen before, its successor
may have sent the micro-batch and deleted the manifest. So each row reaches the system once, and at
most once more for each report. If the folders lose manifest and marker, the record shows it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dedup.errors import ConfigError, ObjectMissing, SinkError, faults
from dedup.sinks.batch import Batch
from dedup.sinks.begun import FOLDER
from dedup.sinks.figures import note_retry
from dedup.sinks.inspection import SinkInspection, SinkState, SlotState, next_start, sink_states
from dedup.sinks.ledger import Ledger
from dedup.sinks.marker import BATCH_SLOT, NO_RUN, Marker
from dedup.sinks.options import SinkOptions, located
from dedup.sinks.protocol import (
    Fenced,
    StagedBatch,
    StagedSlice,
    content_of_slices,
    refuse_other_content,
)
from dedup.sinks.slice_store import SliceStore, batch_ids, clean
from dedup.sinks.work import SinkWork, TaskResult
from dedup.spark.driver.checkpoint_log import Progress
from dedup.storage.root import Root

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger("dedup")

#: A version is the micro-batch, shifted by so many bits, and the row's number in the micro-batch.
_ROW_BITS = 32


class WriteAheadSink(ABC):
    """Base class of a sink for a system without transactions, such as a key-value store.

    A subclass implements `send`. Spark's tasks stage the rows of a micro-batch in files in the
    checkpoint. The driver then decides durably which rows the micro-batch has, and in which order,
    and passes them to `send`. After a failure it passes the same rows again, with the same keys and
    versions. So readers see each row at least once. They see it exactly once if the system ignores
    a key that it has, or a version that is not greater than the one that it has.

    Attributes
    ----------
    rows_sent_again : int
        Number of rows that this process has passed to `send` although an earlier attempt may have
        sent them. The logger ``dedup`` warns each time, with micro-batch and rows.

    Notes
    -----
    The object stays on the driver, so it may hold a connection. In Spark Connect and in
    `check_sink` it must pickle.
    """

    rows_sent_again: int = 0

    def check(self, schema: StructType) -> None:  # noqa: B027 - most sinks take all columns
        """Check columns and system before the first micro-batch. By default do nothing.

        Parameters
        ----------
        schema : StructType
            The columns of the stream.

        Raises
        ------
        ConfigError
            If the sink cannot store these columns, or the system is not set up for them.
        """

    @abstractmethod
    def send(self, rows: pa.RecordBatch, keys: Sequence[str], versions: Sequence[int]) -> None:
        """Send some rows of a micro-batch. Return when the system has stored them durably.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            The rows, with the columns of the stream. A micro-batch may take several calls. All
            calls of a micro-batch come from one thread of the driver, in a fixed order.
        keys : sequence of str
            A key for each row, as ``<query ID>/<sink>/<micro-batch>/<slice>/<row>``. No other row
            of any micro-batch, query or sink has the same key.
        versions : sequence of int
            A version for each row, from 0 to 2^63 - 1. The row that comes later in the query has
            the greater version. The upper 31 bits are the micro-batch, the lower 32 bits are the
            row's number in it.

        Raises
        ------
        Exception
            Any error stops the query. Some of the rows may be stored. The next start sends the
            whole micro-batch again.

        Notes
        -----
        A process that was frozen in `send` may finish this one call after its successor has sent
        the micro-batch, and later ones.
        """


class SentMarkers:
    """The markers of the micro-batches that a sink has sent, beside its staged slices."""

    def __init__(self, where: str, query_id: str) -> None:
        self._root = Root(f"{where}/{query_id}")

    def newest_id(self) -> int:
        """Return the newest micro-batch that the sink has sent, or -1 for a new sink."""
        return max(batch_ids(self._root, "sent"), default=-1)

    def newest(self) -> Marker | None:
        while (batch_id := self.newest_id()) >= 0:
            name = _sent(batch_id)
            try:
                return Marker.from_bytes(self._root.read_bytes(name), self._root.url(name))
            except ObjectMissing:  # another start has written a newer marker
                continue
        return None

    def write(self, marker: Marker) -> None:
        self._root.create_bytes(_sent(marker.batch_id), marker.to_bytes())

    def clean(self, batch_id: int) -> None:
        clean(self._root, ("sent",), batch_id)


@dataclass(frozen=True)
class WriteAheadWork(SinkWork):
    """The work of a `WriteAheadSink`."""

    options: SinkOptions
    sink: WriteAheadSink
    checkpoint: str
    room = "kit"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only stage rows, and the user's object may hold a connection.
        return self.__dict__ | {"sink": None}

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        faults.point("kit.task.begin")
        staged = self.stage(batch, slot, rows)
        faults.point("kit.task.end")
        return TaskResult(batch, staged)

    def ledger(self, where: str, query_id: str) -> Ledger:
        """Return a ledger in another folder than slices, manifests and markers, if possible."""
        apart = Ledger(f"{located(self.checkpoint)}/{FOLDER}/{self.name}", query_id)
        with suppress(ConfigError):  # pyarrow does not know every file system of checkpoints
            apart.differs({})
            return apart
        return Ledger(where, query_id)

    def settle(self, ledger: Ledger, staged: StagedBatch) -> None:
        """Do nothing: if the markers are elsewhere, they lack the micro-batch of the ledger."""

    def publish(self, staged: StagedBatch) -> Callable[[], None]:
        batch, store = staged.batch, self.staging(staged.batch.query_id)
        markers = SentMarkers(str(self.options.ledger), batch.query_id)
        newest = markers.newest()
        staged.check_markers({} if newest is None else {BATCH_SLOT: newest}, store.decided())
        if newest is None or newest.batch_id < batch.batch_id:
            self._send(staged, store, markers)
        elif not staged.accept_difference:
            refuse_other_content(newest, content_of_slices(staged.slices))

        def clean() -> None:
            store.clean(batch.batch_id)
            markers.clean(batch.batch_id)

        return clean

    def _send(self, staged: StagedBatch, store: SliceStore, markers: SentMarkers) -> None:
        """Decide, unless an earlier start has, and send the rows that are decided."""
        batch = staged.batch
        slices = [each for each in staged.slices if isinstance(each, StagedSlice)]
        if content_of_slices(slices).rows > 1 << _ROW_BITS:
            raise SinkError(
                f"Micro-batch {batch.batch_id} has more than 2^{_ROW_BITS} rows, and their "
                "versions would reach into the next micro-batch. Nothing was sent. Limit the "
                "micro-batches at the source, and use a new checkpoint."
            )
        ledger = self.ledger("", batch.query_id)
        # If the manifest is gone, the user has accepted that.
        has_begun = ledger.published() == batch.batch_id or batch.batch_id in store.decided()
        decided = store.manifest(batch.batch_id, slices)
        _refuse_sent(markers, batch)
        marker = batch.marker(BATCH_SLOT, content_of_slices(decided), len(decided))
        if not staged.accept_difference:
            refuse_other_content(replace(marker, writer=""), content_of_slices(slices))
        store.verify(decided)
        ledger.note_published(batch.batch_id)
        if marker.rows and (has_begun or decided != slices):
            logger.warning(
                "Sink %r sends micro-batch %d again: an earlier attempt may have sent some of its "
                "%d rows, or all.", self.name, batch.batch_id, marker.rows,
            )  # fmt: skip
            # Also in a frozen dataclass.
            again = self.sink.rows_sent_again + marker.rows
            object.__setattr__(self.sink, "rows_sent_again", again)
            note_retry()
        faults.point("kit.send.before")
        version = batch.batch_id << _ROW_BITS
        for piece in decided:
            key, row = f"{batch.query_id}/{batch.sink}/{batch.batch_id}/{piece.slot}", 0
            for rows in store.read(piece):
                _refuse_sent(markers, batch)
                keys = [f"{key}/{n}" for n in range(row, row + rows.num_rows)]
                self.sink.send(rows, keys, range(version, version + rows.num_rows))
                row, version = row + rows.num_rows, version + rows.num_rows
                faults.point("kit.send.part")
        faults.point("kit.send.after")
        markers.write(marker)


def _refuse_sent(markers: SentMarkers, batch: Batch) -> None:
    if (newest := markers.newest_id()) >= batch.batch_id:
        raise Fenced(f"it has sent micro-batch {newest}")


def _sent(batch_id: int) -> str:
    return f"sent/{batch_id}.json"


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
