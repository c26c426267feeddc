"""The *plan* of a micro-batch: a list of the files that the micro-batch consists of.

A plan is a JSON document ``_batches/<id>.plan``. The first start of the query that publishes the
micro-batch creates the plan. The plan never changes. So if two starts publish the same micro-batch,
even long after one another, both carry out the same plan. The plan holds the micro-batch's marker
(`dedup.sinks.marker`). A planned micro-batch counts as published, because any start of the query
can carry out the plan.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dedup.errors import ObjectMissing
from dedup.sinks.batch_folders import STAGING, data_files, folder_of, published_batches
from dedup.sinks.files.output_root import OutputRoot
from dedup.sinks.files.slice_files import WrittenFile, batch_of_staged
from dedup.sinks.marker import Marker, reading
from dedup.sinks.options import located
from dedup.storage.document import from_document, to_document
from dedup.storage.root import Root
from dedup.values.parse import NAME, array, integer, path_below, text

FOLDER = "_batches"
_FORMAT = 1
_STAGED = re.compile(rf"{STAGING}/(?:[0-9]{{12}}-[0-9a-f]{{32}}|files-[0-9]{{12}}-{NAME.pattern})")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of one micro-batch. The paths of its files are below the output.

    On a local disk `folder` is the staged folder, which the sink renames to the micro-batch's
    folder. A micro-batch without rows has no files and no folder.
    """

    marker: Marker
    folder: str
    files: tuple[WrittenFile, ...]


class BatchPlans:
    """The plans of all micro-batches of one output."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def create(self, plan: BatchPlan) -> bool:
        """Create the plan of a micro-batch, or return False if the micro-batch has one already."""
        body = {
            "marker": asdict(plan.marker),
            "folder": plan.folder,
            "files": [[file.path, file.name, file.nbytes] for file in plan.files],
        }
        data = to_document(body, version=_FORMAT)
        return self._root.create_bytes(_name(plan.marker.batch_id), data)

    def read(self, batch_id: int) -> BatchPlan | None:
        name = _name(batch_id)
        try:
            data = self._root.read_bytes(name)
        except ObjectMissing:
            return None
        with reading(self._root.url(name)):
            body = from_document(data, version=_FORMAT)
            return _plan(body, batch_id, is_local=self._root.local_path(name) is not None)

    def newest(self, batch_id: int, known_batch_id: int | None = None) -> BatchPlan | None:
        """Return the plan that the driver of micro-batch `batch_id` must read before it decides.

        This is a plan of a later micro-batch if there is one, else the micro-batch's own plan, else
        the newest earlier plan. Returns None for an output without plans. To find an earlier plan
        this may list all plans, because a micro-batch has no plan if Spark ran no task for it. The
        micro-batch `known_batch_id` certainly has a plan.
        """
        ahead = max(batch_id + 1, -1 if known_batch_id is None else known_batch_id)
        for number in (ahead, batch_id + 1, batch_id, batch_id - 1):
            plan = self.read(number)
            if plan is not None:
                return plan
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def numbers(self) -> list[int]:
        names = (file.name.removeprefix(f"{FOLDER}/") for file in self._root.list(FOLDER))
        stems = (name.removesuffix(".plan") for name in names)
        return sorted(int(stem) for stem in stems if re.fullmatch("[0-9]{12,}", stem))


def _plan(body: dict[str, Any], batch_id: int, *, is_local: bool) -> BatchPlan:
    """Return the plan in a document, or raise ValueError if it is not of this micro-batch."""
    marker = Marker.from_json(body["marker"])
    if marker.batch_id != batch_id:
        raise ValueError(f"it is the plan of micro-batch {marker.batch_id}")
    folder = text(body["folder"])
    listed = (array(file, 3) for file in array(body["files"]))
    files = tuple(
        WrittenFile(path_below(path), path_below(name), integer(nbytes, 0))
        for path, name, nbytes in listed
    )
    # On a local disk the sink renames one folder. In a store it copies each staged file.
    waiting = [folder] if is_local else [file.path.rpartition("/")[0] for file in files]
    for each in waiting if files else []:
        staged_for = batch_of_staged(each.rpartition("/")[2])
        if not _STAGED.fullmatch(each) or staged_for != batch_id:
            raise ValueError(f"{each!r:.80} is not a folder that was staged for this micro-batch")
    return BatchPlan(marker, folder, files)


def _name(batch_id: int) -> str:
    return f"{FOLDER}/{batch_id:012d}.plan"


def published_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the files of all micro-batches that are completely published, oldest first.

    Parameters
    ----------
    path : path or str
        The output of a `files_sink`, of ``format("dedup_files")``, or of `dedup run`.

    Returns
    -------
    list of str
        Paths, or ``s3://bucket/key`` without credentials and without percent-encoding.

    Raises
    ------
    CatalogError
        If the storage cannot be reached.
    SinkError
        If a plan on S3 is damaged.
    """
    where = located(os.fspath(path))
    root = OutputRoot(where)
    if root.local_path("x") is not None:
        place = Path(where)
        folders = (place / folder_of(number) for number in published_batches(place))
        return [str(file) for folder in folders for file in data_files(folder)]
    plans = BatchPlans(root)
    published = [plan for number in plans.numbers() if (plan := plans.read(number)) is not None]
    # A micro-batch begins once the previous one is complete, so only the last may lack files.
    if published and not is_whole(root, published[-1]):
        published.pop()
    return [root.uri(name) for plan in published for name, _ in _objects(plan)]


def is_whole(root: OutputRoot, plan: BatchPlan) -> bool:
    folder = root.local_path(folder_of(plan.marker.batch_id))
    if folder is not None:
        # One rename shows all files. Do not look for each, because an old release may have merged
        # them.
        return not plan.files or folder.exists()
    return all(root.size(name) == nbytes for name, nbytes in _objects(plan))


def _objects(plan: BatchPlan) -> list[tuple[str, int]]:
    folder = folder_of(plan.marker.batch_id)
    return [(f"{folder}/{file.name}", file.nbytes) for file in plan.files]
