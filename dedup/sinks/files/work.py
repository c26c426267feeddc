"""The work of a files sink. Tasks stage files, and the driver plans and publishes a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from dedup.errors import SinkError, faults
from dedup.sinks.batch import Batch
from dedup.sinks.batch_folders import folder_of
from dedup.sinks.content import Content, content_of
from dedup.sinks.files.options import FilesOptions
from dedup.sinks.files.outputs import Output, output_of
from dedup.sinks.files.plans import FOLDER as PLANS
from dedup.sinks.files.plans import BatchPlan, BatchPlans
from dedup.sinks.files.slice_files import FileShape, SliceFiles, WrittenFile
from dedup.sinks.ledger import Ledger
from dedup.sinks.marker import Marker
from dedup.sinks.output_owner import own_output, owner_of
from dedup.sinks.protocol import Fenced, StagedBatch, StagedSlice, content_of_slices
from dedup.sinks.single_commit import commit_batch
from dedup.sinks.utf8 import only_utf8
from dedup.sinks.work import SinkWork, TaskResult


@dataclass(frozen=True, slots=True)
class WrittenSlice(StagedSlice):
    """A slice whose rows are in staged files."""

    files: tuple[WrittenFile, ...] = ()


@dataclass(frozen=True)
class FilesWork(SinkWork):
    """The work of a files sink. The function `dedup.sinks.files.function.ready` makes it."""

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
        """Make this sink the output's owner, and record the output's path in the ledger."""
        output, owner = output_of(self.options).root, (staged.batch.query_id, self.name)
        setting = {"path": output.url()}
        if ledger.differs(setting):
            # Check the path before the query becomes the owner of an output without an owner.
            ledger.settle(setting, is_moved=owner_of(output) == owner)
        own_output(output, *owner)
        ledger.settle(setting)

    def publish(self, staged: StagedBatch) -> Callable[[], None]:
        output = output_of(self.options)
        port = FilesPort(output, staged)
        commit_batch(staged, port, tasks=len(staged.slices), even_empty=True)
        return lambda: output.clean(staged.batch.batch_id)


class FilesPort:
    """A handle with which the driver uses an output. Implements `single_commit.TablePort`.

    If two drivers publish the same micro-batch, the second driver finds the plan of the first
    (`dedup.sinks.files.plans`).
    """

    def __init__(self, output: Output, staged: StagedBatch) -> None:
        self._output, self._staged, self._plans = output, staged, BatchPlans(output.root)

    def newest(self) -> Marker | None:
        """Return the marker of the newest plan. If this micro-batch has the plan, carry it out."""
        batch_id = self._staged.batch.batch_id
        newest = self._plans.newest(batch_id, self._staged.known_batch_id)
        if newest is None:
            return None
        if newest.marker.batch_id == batch_id:
            # The driver that created the plan may be dead or frozen, so carry out its plan.
            self._output.carry_out(newest, self._staged_again(newest.marker))
        return newest.marker

    def _staged_again(self, planned: Marker) -> list[WrittenFile] | None:
        """Return the newly staged files if they may replace the plan's files, or None.

        They may if they hold the planned rows, and the micro-batch was never completely published.
        After a complete publication somebody must have removed its files on purpose.
        """
        known, content = self._staged.known_batch_id, content_of_slices(self._staged.slices)
        was_published = known is not None and known >= planned.batch_id
        if was_published or (planned.rows, planned.content) != (content.rows, content.hash):
            return None
        return self._files()

    def commit(self, marker: Marker) -> None:
        """Create the micro-batch's plan, and carry it out to make the micro-batch visible."""
        number, root = marker.batch_id, self._output.root
        # If there is a plan, another start has created it first, and the next try finds it.
        if self._output.has_folder(number) and self._plans.read(number) is None:
            raise SinkError(
                f"{root.url(folder_of(number))} exists already, and {root.url(PLANS)} has no plan "
                f"of it. Either the plan of micro-batch {number} is lost, or somebody else has "
                "made the folder. Rows of the micro-batch could be there twice, or be lost. "
                "Nothing was published.",
                remedy="sink-markers",
            )
        folder, files = self._output.plan_files(number, self._files())
        plan = BatchPlan(marker, folder, tuple(files))
        faults.point("files.laid.out")
        if not self._plans.create(plan):
            raise Fenced("it has decided already what the micro-batch consists of")
        faults.point("files.planned")
        self._output.carry_out(plan)
        faults.point("files.published")

    def is_own(self, marker: Marker) -> bool:
        return False

    def _files(self) -> list[WrittenFile]:
        written = (each for each in self._staged.slices if isinstance(each, WrittenSlice))
        return [file for each in written for file in each.files]
