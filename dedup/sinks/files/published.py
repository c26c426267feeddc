"""Which files an output shows, by whole micro-batches, also where a store shows them one by one."""

from __future__ import annotations

import os
from pathlib import Path

from dedup.sinks.batch_folders import data_files, folder_of, published_batches
from dedup.sinks.files.output_root import OutputRoot
from dedup.sinks.files.plans import BatchPlan, BatchPlans
from dedup.sinks.options import located


def published_files(path: str | os.PathLike[str]) -> list[str]:
    """Return the files of all micro-batches that are published whole, in their order.

    Parameters
    ----------
    path : path or str
        The output of a `files_sink`, of ``format("dedup_files")``, or of `dedup run`.

    Returns
    -------
    list of str
        Paths, or ``s3://bucket/key`` without credentials, the key as it is: nothing in it is
        percent-encoded but what is so in the store.

    Raises
    ------
    CatalogError
        If the storage cannot be reached.
    SinkError
        If what tells of the micro-batches on S3 is damaged.
    """
    where = located(os.fspath(path))
    root = OutputRoot(where)
    if root.local_path("x") is not None:
        place = Path(where)
        folders = (place / folder_of(number) for number in published_batches(place))
        return [str(file) for folder in folders for file in data_files(folder)]
    plans = BatchPlans(root)
    found = [plan for number in plans.numbers() if (plan := plans.read(number)) is not None]
    # A micro-batch begins when the one before it is whole: of the last alone files may be missing.
    if found and not is_whole(root, found[-1]):
        found.pop()
    return [root.uri(name) for plan in found for name, _ in _objects(plan)]


def is_whole(root: OutputRoot, plan: BatchPlan) -> bool:
    """Return whether readers see all of a micro-batch that is decided."""
    folder = root.local_path(folder_of(plan.marker.batch_id))
    if folder is not None:
        # It came by one rename; an earlier version may have merged its files since.
        return not plan.files or folder.exists()
    return all(root.size(name) == nbytes for name, nbytes in _objects(plan))


def _objects(plan: BatchPlan) -> list[tuple[str, int]]:
    folder = folder_of(plan.marker.batch_id)
    return [(f"{folder}/{file.name}", file.nbytes) for file in plan.files]
