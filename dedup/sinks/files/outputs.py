"""Stage the files of tasks in an output, and make a planned micro-batch visible.

`dedup.sinks.files.plans` explains plans.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from dedup.errors import CatalogError, SinkError, faults
from dedup.sinks.batch import Batch
from dedup.sinks.batch_folders import STAGING, flush, folder_of, publish_folder
from dedup.sinks.files.options import FilesOptions
from dedup.sinks.files.output_root import OutputRoot
from dedup.sinks.files.plans import BatchPlan
from dedup.sinks.files.slice_files import WrittenFile, batch_of_staged, gather, staging_folder
from dedup.storage.localfile import sync

_COPIES_AT_ONCE = 8


class LocalOutput:
    """A folder on a file system that tasks and driver share. One rename publishes a micro-batch."""

    def __init__(self, path: str) -> None:
        self.root, self._path = OutputRoot(path), Path(path)

    @contextmanager
    def folder_to_write(self, batch: Batch) -> Iterator[Path]:
        """Yield the local folder in which a task writes its files. Readers skip this folder."""
        yield self._path / STAGING / staging_folder(batch.batch_id, batch.run_id)

    def stage(self, batch: Batch, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Return a task's files in a durable place that the driver sees, as this folder is."""
        return list(files)

    def plan_files(
        self, batch_id: int, files: Sequence[WrittenFile]
    ) -> tuple[str, list[WrittenFile]]:
        """Arrange staged files for a new plan, and return the plan's folder and files."""
        folder = f"{STAGING}/{batch_id:012d}-{uuid.uuid4().hex}"
        if files:
            gather(files, self._path / folder)
            # The plan will be durable at once, so make the files that it names durable first.
            flush(self._path / folder)
            sync(self._path / STAGING)
            sync(self._path)
        return folder, [replace(file, path=f"{folder}/{file.name}") for file in files]

    def carry_out(self, plan: BatchPlan, again: Sequence[WrittenFile] | None = None) -> None:
        """Make a planned micro-batch visible. A repeated call has the same result.

        If the plan's folder is gone, this publishes the files in `again`, which hold the same rows.
        Raises SinkError if a file is neither in its final place nor staged.
        """
        if not plan.files:
            return
        number = plan.marker.batch_id
        source, target = self._path / plan.folder, self._path / folder_of(number)
        # The sink would take a folder of another writer for the published micro-batch, and delete
        # the staged files. A folder with the plan's files is the sink's own: `publish_folder` may
        # copy files instead of renaming the folder. Look for `target` first, because a start that
        # publishes in between renames `source`.
        is_there_too = target.exists() and source.exists()
        if is_there_too and not all((target / file.name).exists() for file in plan.files):
            raise SinkError(
                f"Somebody else made {target} while micro-batch {number} was on its way there. Its "
                f"files are still in {plan.folder}. Nothing was published, and nothing is lost. "
                f"Move {target} elsewhere, and start the query again.",
                remedy="sink-markers",
            )
        if source.is_symlink():
            raise SinkError(
                f"{source} is a link that somebody else has made, and a folder of staged files "
                "belongs there. Nothing was published. Look where it leads, remove the link, and "
                "start the query again.",
                remedy="sink-markers",
            )
        if not source.exists() and not target.exists():
            # Keep this order: another start may rename the folder in between.
            if again is None:
                raise _gone(self.root, plan, plan.folder)
            source = self._path / self.plan_files(number, again)[0]
        publish_folder(source, self._path, number)

    def has_folder(self, batch_id: int) -> bool:
        """Return whether a micro-batch has a folder, even an empty one."""
        return (self._path / folder_of(batch_id)).exists()

    def clean(self, batch_id: int) -> None:
        """Remove the staged files of a published micro-batch and of all earlier micro-batches."""
        staging = self._path / STAGING
        for entry in list(staging.iterdir()) if staging.is_dir() else []:
            number = batch_of_staged(entry.name)
            if number is not None and number <= batch_id:
                shutil.rmtree(entry, ignore_errors=True)


class StoreOutput:
    """An object store, with the methods of `LocalOutput`. It copies files, as it cannot rename."""

    def __init__(self, path: str) -> None:
        self.root = OutputRoot(path)

    @contextmanager
    def folder_to_write(self, batch: Batch) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="dedup-files-") as folder:
            yield Path(folder)

    def stage(self, batch: Batch, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        staged, folder = [], staging_folder(batch.batch_id, batch.run_id)
        for file in files:
            name = f"{STAGING}/{folder}/{Path(file.path).name}"
            self.root.put_file(name, file.path)
            staged.append(replace(file, path=name))
        faults.point("files.uploaded")
        return staged

    def plan_files(
        self, batch_id: int, files: Sequence[WrittenFile]
    ) -> tuple[str, list[WrittenFile]]:
        return "", list(files)

    def carry_out(self, plan: BatchPlan, again: Sequence[WrittenFile] | None = None) -> None:
        """Copy each file of the plan that is not in its final place yet.

        This ignores `again`, because readers may have seen some of the plan's files.
        """

        def place(file: WrittenFile) -> None:
            name = f"{folder_of(plan.marker.batch_id)}/{file.name}"
            if self.root.size(name) == file.nbytes:
                return
            try:
                self.root.copy(file.path, name)
            except CatalogError:
                if self.root.exists(file.path):
                    raise
                # Another start has copied the object, and removed the staged file.
            # A store may answer "success" with an error inside. The original is deleted next.
            size = self.root.size(name)
            if size != file.nbytes:
                if not self.root.exists(file.path):
                    raise _gone(self.root, plan, file.path)
                raise CatalogError(
                    f"{self.root.url(name)} has {size} bytes instead of {file.nbytes}, after a "
                    "copy that the store has confirmed. The staged file is still there. Start the "
                    "query again to copy it again.",
                    remedy="storage",
                )
            faults.point("files.copied")

        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            list(pool.map(place, plan.files))

    def has_folder(self, batch_id: int) -> bool:
        return bool(self.root.list(folder_of(batch_id)))

    def clean(self, batch_id: int) -> None:
        names = {file.name.split("/")[1] for file in self.root.list(STAGING)}
        for name in sorted(names):
            number = batch_of_staged(name)
            if number is not None and number <= batch_id:
                self.root.delete_folder(f"{STAGING}/{name}")


Output: TypeAlias = LocalOutput | StoreOutput


def output_of(options: FilesOptions) -> Output:
    return StoreOutput(options.path) if options.is_on_s3 else LocalOutput(options.path)


def _gone(root: OutputRoot, plan: BatchPlan, what: str) -> SinkError:
    number = plan.marker.batch_id
    return SinkError(
        f"The plan of micro-batch {number} of {root.url()} needs {what}, which is gone, and so is "
        f"{folder_of(number)}: somebody has removed or moved them. The sink cannot show the rows "
        "of this micro-batch without them. Nothing was published.",
        remedy="files-gone",
    )
