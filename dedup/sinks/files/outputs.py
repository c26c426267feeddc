"""Where files go: how tasks stage them there, and how a planned micro-batch becomes visible."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from dedup.catalog.localfile import sync
from dedup.errors import CatalogError, SinkError, faults
from dedup.sinks.batch_folders import STAGING, flush, folder_of, publish_folder
from dedup.sinks.files.options import FilesOptions
from dedup.sinks.files.output_root import OutputRoot
from dedup.sinks.files.plans import BatchPlan, PlannedFile
from dedup.sinks.files.slice_files import WrittenFile, batch_of_staged, staging_folder
from dedup.sinks.files.task_files import gather
from dedup.sinks.protocol import Batch

_COPIES_AT_ONCE = 8


class Output(Protocol):
    """A folder of files, local or in an object store."""

    root: OutputRoot

    @contextmanager
    def folder_to_write(self, batch: Batch) -> Iterator[Path]:
        """Give a task the local folder of its files."""

    def stage(self, batch: Batch, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Bring files to where the driver finds them, durably; return them with their places."""

    def lay_out(self, batch_id: int, files: Sequence[WrittenFile]) -> tuple[str, list[PlannedFile]]:
        """Bring what the tasks staged into the shape that a plan names; return what is planned."""

    def carry_out(self, plan: BatchPlan, anew: Sequence[WrittenFile] | None = None) -> None:
        """Make a planned micro-batch visible; again and again, by anybody, with one result.

        Parameters
        ----------
        plan : BatchPlan
        anew : sequence of WrittenFile, optional
            The same rows as the tasks have just staged them, to be shown where what the plan names
            is gone.

        Raises
        ------
        SinkError
            When files that it names are neither in their place nor staged.
        """

    def unplanned(self, batch_id: int) -> Sequence[str]:
        """Return what is in the place of a micro-batch already, which is yet to be planned."""

    def clean(self, batch_id: int) -> None:
        """Remove what was staged for a micro-batch that is published, and for those before it."""


class LocalOutput:
    """A folder on a file system that tasks and driver share: one rename shows a micro-batch."""

    def __init__(self, path: str) -> None:
        self.root, self._path = OutputRoot(path), Path(path)

    @contextmanager
    def folder_to_write(self, batch: Batch) -> Iterator[Path]:
        """Give a task the local folder of its files."""
        yield self._path / STAGING / staging_folder(batch.batch_id, batch.run_id)

    def stage(self, batch: Batch, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Return the files, which are in their places."""
        return list(files)

    def lay_out(self, batch_id: int, files: Sequence[WrittenFile]) -> tuple[str, list[PlannedFile]]:
        """Move the files to a folder of this attempt's own."""
        folder = f"{STAGING}/{batch_id:012d}-{uuid.uuid4().hex}"
        if files:
            gather(files, self._path / folder)
            # A plan is durable at once, and so has to be what it names.
            flush(self._path / folder)
            sync(self._path / STAGING)
            sync(self._path)
        names = [(f"{file.folder}/" if file.folder else "") + Path(file.path).name
                 for file in files]  # fmt: skip
        found = zip(names, files, strict=True)
        return folder, [PlannedFile(f"{folder}/{n}", n, file.nbytes) for n, file in found]

    def carry_out(self, plan: BatchPlan, anew: Sequence[WrittenFile] | None = None) -> None:
        """Rename the folder that the plan names, or one of files that are staged anew."""
        if not plan.files:
            return
        source, number = self._path / plan.folder, plan.marker.batch_id
        self._refuse_foreign(plan)
        if source.is_symlink():
            raise SinkError(
                f"{source} is a link, and a folder of staged files belongs there: somebody else "
                "has made it. Nothing was published. Look where it leads, remove the link, and "
                "start the query again.",
                remedy="sink-markers",
            )
        if not source.exists() and not (self._path / folder_of(number)).exists():
            # Looked up in this order, another start may have renamed it in between.
            if anew is None:
                raise _gone(self.root, plan, plan.folder)
            source = self._path / self.lay_out(number, anew)[0]
        publish_folder(source, self._path, number)

    def _refuse_foreign(self, plan: BatchPlan) -> None:
        """Refuse a folder in the place of a micro-batch that is still staged.

        It would be taken for the micro-batch, and what is staged be deleted. Where the last step
        was no rename, but a copy (`publish_folder`), it has the files of the plan.
        """
        target = self._path / folder_of(plan.marker.batch_id)
        # In this order: a start that renames it in between takes the other away.
        if not target.exists() or not (self._path / plan.folder).exists():
            return
        if not all((target / file.name).exists() for file in plan.files):
            raise SinkError(
                f"{target} was made by somebody else while micro-batch {plan.marker.batch_id} was "
                f"on its way there: what belongs there still waits as {plan.folder}. Nothing was "
                "published, and nothing is lost. Move that folder elsewhere, and start the query "
                "again.",
                remedy="sink-markers",
            )

    def unplanned(self, batch_id: int) -> Sequence[str]:
        """Return the files in the folder of the micro-batch, its own name if it has none."""
        folder = self._path / folder_of(batch_id)
        if not folder.exists():
            return ()
        # Such a folder would be taken for the micro-batch, and what was staged be deleted.
        files = sorted(str(p.relative_to(self._path)) for p in folder.rglob("*") if p.is_file())
        return files or (folder.name,)

    def clean(self, batch_id: int) -> None:
        """Remove what was staged for a micro-batch that is published, and for those before it."""
        staging = self._path / STAGING
        for entry in list(staging.iterdir()) if staging.is_dir() else []:
            number = batch_of_staged(entry.name)
            if number is not None and number <= batch_id:
                shutil.rmtree(entry, ignore_errors=True)


class StoreOutput:
    """A folder of an object store, which has no rename: staged files are copied, one by one."""

    def __init__(self, path: str) -> None:
        self.root = OutputRoot(path)

    @contextmanager
    def folder_to_write(self, batch: Batch) -> Iterator[Path]:
        """Give a task a folder on its own disk."""
        with tempfile.TemporaryDirectory(prefix="dedup-files-") as folder:
            yield Path(folder)

    def stage(self, batch: Batch, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Upload the files; each appears whole."""
        staged = []
        for file in files:
            folder = staging_folder(batch.batch_id, batch.run_id)
            name = f"{STAGING}/{folder}/{Path(file.path).name}"
            self.root.put_file(name, file.path)
            staged.append(replace(file, path=name))
        faults.point("files.uploaded")
        return staged

    def lay_out(self, batch_id: int, files: Sequence[WrittenFile]) -> tuple[str, list[PlannedFile]]:
        """Leave the files where they are, and say where they belong."""
        names = [(f"{file.folder}/" if file.folder else "") + Path(file.path).name
                 for file in files]  # fmt: skip
        found = zip(names, files, strict=True)
        return "", [PlannedFile(file.path, name, file.nbytes) for name, file in found]

    def carry_out(self, plan: BatchPlan, anew: Sequence[WrittenFile] | None = None) -> None:
        """Copy each file that is not in its place yet; names and contents are the plan's.

        Files that are staged anew cannot take their place: some may have been copied and read.
        """

        def place(file: PlannedFile) -> None:
            name = f"{folder_of(plan.marker.batch_id)}/{file.name}"
            if self.root.size(name) == file.nbytes:
                return
            try:
                self.root.copy(file.staged, name)
            except CatalogError:
                if self.root.exists(file.staged):
                    raise
                # Another start has copied it, and cleaned up behind itself.
            # A store may answer a copy with success and an error in one; the original goes next.
            size = self.root.size(name)
            if size != file.nbytes:
                if not self.root.exists(file.staged):
                    raise _gone(self.root, plan, file.staged)
                raise CatalogError(
                    f"{self.root.url(name)} has {size} bytes after a copy that the store has "
                    f"confirmed, in place of {file.nbytes}. What was staged is still there: start "
                    "the query again, and it is copied anew.",
                    remedy="storage",
                )
            faults.point("files.copied")

        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            list(pool.map(place, plan.files))

    def unplanned(self, batch_id: int) -> Sequence[str]:
        """Return the objects in the folder of the micro-batch."""
        return [found.name for found in self.root.list(folder_of(batch_id))]

    def clean(self, batch_id: int) -> None:
        """Remove what was staged for a micro-batch that is published, and for those before it."""
        names = {found.name.split("/")[1] for found in self.root.list(STAGING)}
        for name in sorted(names):
            number = batch_of_staged(name)
            if number is not None and number <= batch_id:
                self.root.delete_folder(f"{STAGING}/{name}")


def output_of(options: FilesOptions) -> Output:
    """Return where a sink writes."""
    return StoreOutput(options.path) if options.is_on_s3 else LocalOutput(options.path)


def _gone(root: OutputRoot, plan: BatchPlan, what: str) -> SinkError:
    number = plan.marker.batch_id
    return SinkError(
        f"Micro-batch {number} of {root.url()} is to consist of what was staged as {what}, which "
        f"is gone, and so is {folder_of(number)}: somebody has removed or moved them. Its rows "
        "cannot be made visible again from there. Nothing was published.",
        remedy="files-gone",
    )
