"""The sink as Spark runs it: what each task does with its rows, and then the driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dedup.errors import SinkError, faults
from dedup.sinks.batch_folders import folder_of
from dedup.sinks.content import Content, content_of
from dedup.sinks.files.options import FilesOptions
from dedup.sinks.files.outputs import Output, output_of
from dedup.sinks.files.plans import FOLDER as PLANS
from dedup.sinks.files.plans import BatchPlan, BatchPlans
from dedup.sinks.files.slice_files import FileShape, SliceFiles, WrittenFile
from dedup.sinks.ledger import Ledger
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.output_owner import own_output, owner_of
from dedup.sinks.protocol import Batch, Fenced, PublishedSlice, StagedSlice, publish_staged
from dedup.sinks.utf8 import only_utf8
from dedup.sinks.work import SinkWork, TaskResult


@dataclass(frozen=True, slots=True)
class WrittenSlice(StagedSlice):
    """A slice that waits in files.

    Parameters
    ----------
    files : tuple of WrittenFile
    """

    files: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True)
class FilesWork(SinkWork):
    """The work of a files sink; `dedup.sinks.files.ready.ready` makes it."""

    options: FilesOptions
    shape: FileShape
    room = "files"

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Stage the rows of a task.

        Raises
        ------
        DataError
            If the format cannot hold a value.
        DedupError
            If a disk is full, or storage fails.
        """
        faults.point("files.task.begin")
        output, content = output_of(self.options), Content()
        where = f"a folder of {self.options.file_format} files with these options"
        with output.folder_to_write(batch) as folder:
            with only_utf8(where), SliceFiles(folder, self.shape, slot) as files:
                for part in rows:
                    if part.num_rows:
                        content += content_of(part)
                        files.add(part)
                written = files.finish()
            staged = output.stage(batch, written)
        faults.point("files.task.end")
        return TaskResult(batch, WrittenSlice(slot, content, "", tuple(staged)))

    def settle(self, ledger: Ledger, batch: Batch, slices: Sequence[StagedSlice]) -> None:
        """Make the output this sink's, and fix its path in the ledger."""
        output, owner = output_of(self.options).root, (batch.query_id, self.name)
        setting = {"path": output.url()}
        if ledger.differs(setting):
            # Checked before the query takes possession of an output that nobody owns.
            ledger.settle(setting, is_moved=owner_of(output) == owner)
        own_output(output, *owner)
        ledger.settle(setting)

    def publish(
        self,
        batch: Batch,
        slices: Sequence[PublishedSlice | StagedSlice],
        *,
        known_batch_id: int | None,
        accept_difference: bool,
    ) -> Callable[[], None]:
        """Publish all slices as one folder."""
        output = output_of(self.options)
        staged = [each for each in slices if isinstance(each, WrittenSlice)]
        publish_staged(
            batch,
            FilesSink(output, batch, known_batch_id, staged),
            slices,
            atomic=lambda: staged,
            compare_atomic=True,
            known_batch_id=known_batch_id,
            accept_difference=accept_difference,
        )
        return lambda: output.clean(batch.batch_id)


class FilesSink:
    """An output in the hands of the driver; implements `dedup.sinks.protocol.SinkPort`.

    It has one slot, that of whole micro-batches. Nothing is fenced: who comes later finds that
    the micro-batch is decided (`dedup.sinks.files.plans`).
    """

    def __init__(
        self,
        output: Output,
        batch: Batch,
        known_batch_id: int | None = None,
        staged: Sequence[WrittenSlice] = (),
    ) -> None:
        self.output, self.batch, self.plans = output, batch, BatchPlans(output.root)
        self._known_batch_id, self._staged = known_batch_id, staged
        self._slot = WholeSlot(self)

    def slots(self) -> Collection[int]:
        """Return nothing: no slice is published by itself."""
        return ()

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        """Read the newest plan, and carry it out if it is this micro-batch's."""
        newest = self.plans.newest(self.batch.batch_id, self._known_batch_id)
        if newest is None:
            return {}
        if newest.marker.batch_id == self.batch.batch_id:
            # Who decided it may have been killed since, or stand still.
            self.output.carry_out(newest, self._anew(newest.marker))
        return {BATCH_SLOT: newest.marker}

    def _anew(self, planned: Marker) -> list[WrittenFile] | None:
        """Return what is staged now, where it holds what is planned, and that was never whole.

        What is known to have been published was seen: who took it away meant to.
        """
        known = self._known_batch_id
        was_seen = known is not None and known >= planned.batch_id
        content = sum((piece.content for piece in self._staged), Content())
        if was_seen or (planned.rows, planned.content) != (content.rows, content.hash):
            return None
        return [file for piece in self._staged for file in piece.files]

    def slot(self, number: int) -> WholeSlot:
        """Return the only one."""
        return self._slot

    def rows(self, slices: Sequence[StagedSlice]) -> StagedFilesRows:
        """Return the files of staged slices."""
        return StagedFilesRows([piece for piece in slices if isinstance(piece, WrittenSlice)])


class WholeSlot:
    """The slot of whole micro-batches; implements `dedup.sinks.protocol.SlotPort`."""

    last: Marker | None = None

    def __init__(self, sink: FilesSink) -> None:
        self._sink = sink
        self.files: list[WrittenFile] = []
        self._plan: BatchPlan | None = None

    def acquire(self) -> Marker | None:
        """Return the newest marker, and carry out what was decided."""
        return self._sink.acquire([BATCH_SLOT]).get(BATCH_SLOT)

    def begin(self) -> None:
        """Do nothing: nobody sees what is staged."""

    def pre_commit(self, marker: Marker) -> None:
        """Bring all files into their shape, where nobody sees them yet."""
        number = self._sink.batch.batch_id
        self._refuse_unplanned(number)
        folder, files = self._sink.output.lay_out(number, self.files)
        self._plan = BatchPlan(marker, folder, tuple(files))
        faults.point("files.laid.out")

    def _refuse_unplanned(self, number: int) -> None:
        root, shown = self._sink.output.root, self._sink.output.unplanned(number)
        # With a plan it is another start's, which has just been quicker: `commit` finds it.
        if shown and self._sink.plans.read(number) is None:
            raise SinkError(
                f"{root.url(folder_of(number))} is there already (with {shown[0]}), and no plan in "
                f"{root.url(PLANS)} says what belongs there: the plan of micro-batch {number} is "
                "lost, or somebody else has made the folder. The micro-batch would be there twice, "
                "or not at all. Nothing was published.",
                remedy="sink-markers",
            )

    def commit(self) -> None:
        """Decide what the micro-batch consists of, and make it visible."""
        assert self._plan is not None
        if not self._sink.plans.create(self._plan):
            raise Fenced("it has decided already what the micro-batch consists of")
        faults.point("files.planned")
        self._sink.output.carry_out(self._plan)
        faults.point("files.published")

    def abort(self) -> None:
        """Do nothing: what is staged goes with the next micro-batch."""


class StagedFilesRows:
    """Rows that wait in files; implements `dedup.sinks.protocol.RowsToSend`."""

    def __init__(self, slices: Sequence[WrittenSlice]) -> None:
        self._slices = slices

    def send_first(self, slot: WholeSlot) -> None:
        """Hand over the files."""
        slot.files = [file for piece in self._slices for file in piece.files]

    def send_rest(self, slot: WholeSlot) -> Content:
        """Return what they hold."""
        return sum((piece.content for piece in self._slices), Content())
