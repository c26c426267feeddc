"""The work of a files sink: tasks stage files, the driver plans and publishes a folder."""

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
from dedup.sinks.protocol import (
    Batch,
    Fenced,
    PublishedSlice,
    StagedBatch,
    StagedSlice,
    content_of_slices,
    publish_staged,
)
from dedup.sinks.utf8 import only_utf8
from dedup.sinks.work import SinkWork, TaskResult


@dataclass(frozen=True, slots=True)
class WrittenSlice(StagedSlice):
    """A slice in staged files."""

    files: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True)
class FilesWork(SinkWork):
    """The work of a files sink; `dedup.sinks.files.function.ready` makes it."""

    options: FilesOptions
    shape: FileShape
    room = "files"

    def write(self, batch: Batch, slot: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
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

    def settle(self, ledger: Ledger, staged: StagedBatch) -> None:
        """Make the output this sink's, and fix its path in the ledger."""
        output, owner = output_of(self.options).root, (staged.batch.query_id, self.name)
        setting = {"path": output.url()}
        if ledger.differs(setting):
            # Checked before the query takes possession of an unowned output.
            ledger.settle(setting, is_moved=owner_of(output) == owner)
        own_output(output, *owner)
        ledger.settle(setting)

    def publish(self, staged: StagedBatch) -> Callable[[], None]:
        output = output_of(self.options)
        written = [each for each in staged.slices if isinstance(each, WrittenSlice)]
        sink = FilesSink(output, staged)
        publish_staged(staged, sink, atomic=lambda: written, compare_atomic=True)
        return lambda: output.clean(staged.batch.batch_id)


class FilesSink:
    """An output, as the driver holds it; implements `dedup.sinks.protocol.SinkPort`.

    It has the batch slot alone. Nothing is fenced: a second driver finds that the micro-batch is
    decided (`dedup.sinks.files.plans`).
    """

    def __init__(self, output: Output, staged: StagedBatch) -> None:
        self.output, self.staged, self.plans = output, staged, BatchPlans(output.root)
        self._slot = BatchFolderSlot(self)

    def slots(self) -> Collection[int]:
        return ()

    def acquire(self, slots: Sequence[int]) -> Mapping[int, Marker]:
        """Read the newest plan, and carry it out if it is this micro-batch's."""
        batch_id = self.staged.batch.batch_id
        newest = self.plans.newest(batch_id, self.staged.known_batch_id)
        if newest is None:
            return {}
        if newest.marker.batch_id == batch_id:
            # The driver that decided it may be dead, or frozen.
            self.output.carry_out(newest, self._staged_again(newest.marker))
        return {BATCH_SLOT: newest.marker}

    def _staged_again(self, planned: Marker) -> list[WrittenFile] | None:
        """Return the files that are staged now, if they may replace the plan's.

        They hold the rows that were planned, and the micro-batch was never completely published: if
        it was, somebody has removed it on purpose.
        """
        known, slices = self.staged.known_batch_id, self.staged.slices
        was_published = known is not None and known >= planned.batch_id
        content = content_of_slices(slices)
        if was_published or (planned.rows, planned.content) != (content.rows, content.hash):
            return None
        return _files_of(slices)

    def slot(self, number: int) -> BatchFolderSlot:
        return self._slot

    def rows(self, slices: Sequence[StagedSlice]) -> StagedFilesRows:
        return StagedFilesRows(slices)


class BatchFolderSlot:
    """The batch slot of an output; implements `dedup.sinks.protocol.SlotPort`."""

    last: Marker | None = None

    def __init__(self, sink: FilesSink) -> None:
        self._sink = sink
        self.files: list[WrittenFile] = []
        self._plan: BatchPlan | None = None

    def acquire(self) -> Marker | None:
        return self._sink.acquire([BATCH_SLOT]).get(BATCH_SLOT)

    def begin(self) -> None:
        """Do nothing: readers skip what is staged."""

    def pre_commit(self, marker: Marker) -> None:
        """Arrange all files as the plan needs them, in a folder that readers skip."""
        self._refuse_unplanned(marker.batch_id)
        folder, files = self._sink.output.plan_files(marker.batch_id, self.files)
        self._plan = BatchPlan(marker, folder, tuple(files))
        faults.point("files.laid.out")

    def _refuse_unplanned(self, number: int) -> None:
        root, shown = self._sink.output.root, self._sink.output.unplanned(number)
        # If there is a plan, another start has just been quicker: `commit` finds it.
        if shown and self._sink.plans.read(number) is None:
            raise SinkError(
                f"{root.url(folder_of(number))} exists already (with {shown[0]}), and "
                f"{root.url(PLANS)} has no plan of it. Either the plan of micro-batch {number} is "
                "lost, or somebody else has made the folder. Rows of the micro-batch could be "
                "there twice, or be lost. Nothing was published.",
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
        """Do nothing: the next micro-batch removes what is staged."""


@dataclass(frozen=True, slots=True)
class StagedFilesRows:
    """Rows in staged files; implements `dedup.sinks.protocol.RowsToSend`."""

    slices: Sequence[StagedSlice]

    def send_first(self, slot: BatchFolderSlot) -> None:
        slot.files = _files_of(self.slices)

    def send_rest(self, slot: BatchFolderSlot) -> Content:
        return content_of_slices(self.slices)


def _files_of(slices: Sequence[PublishedSlice | StagedSlice]) -> list[WrittenFile]:
    return [file for each in slices if isinstance(each, WrittenSlice) for file in each.files]
