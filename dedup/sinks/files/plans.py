"""What a micro-batch of an output consists of, decided once: a *plan*.

A plan is a JSON document ``_batches/<id>.plan`` that whoever comes first creates, and nobody
changes or deletes. So of two starts of a query that publish the same micro-batch at the same time,
however long one of them stood still, one decides, and both carry out the same. The plan is the
marker of the micro-batch as well: what is planned counts as published, for it can be carried out by
anybody at any time.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from dedup.catalog.document import from_document, to_document
from dedup.catalog.root import Root
from dedup.core.parse import NAME, OtherVersion, array, integer, path_below, text
from dedup.errors import ObjectMissing, SinkError
from dedup.sinks.batch_folders import STAGING
from dedup.sinks.files.slice_files import batch_of_staged
from dedup.sinks.marker import Marker

FOLDER = "_batches"
_FORMAT = 1
_STAGED = re.compile(rf"{STAGING}/(?:[0-9]{{12}}-[0-9a-f]{{32}}|files-[0-9]{{12}}-{NAME.pattern})")


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of a micro-batch.

    Parameters
    ----------
    staged : str
        Where it waits, below the output.
    name : str
        Below the folder of the micro-batch, folders of partitions included.
    nbytes : int
    """

    staged: str
    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """All of a micro-batch.

    Parameters
    ----------
    marker : Marker
    folder : str
        Which folder below the output becomes that of the micro-batch, where one is renamed.
    files : tuple of PlannedFile
        None for a micro-batch without rows, which has no folder.
    """

    marker: Marker
    folder: str
    files: tuple[PlannedFile, ...]


class BatchPlans:
    """The plans of an output."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def create(self, plan: BatchPlan) -> bool:
        """Decide what a micro-batch consists of; return False where that is decided already."""
        body = {
            "marker": asdict(plan.marker),
            "folder": plan.folder,
            "files": [[file.staged, file.name, file.nbytes] for file in plan.files],
        }
        data = to_document(body, version=_FORMAT)
        return self._root.create_bytes(_name(plan.marker.batch_id), data)

    def read(self, batch_id: int) -> BatchPlan | None:
        """Return the plan of a micro-batch, None where nothing is decided.

        Raises
        ------
        SinkError
            When it is damaged, or of another release.
        """
        name = _name(batch_id)
        try:
            _, body = from_document(self._root.read_bytes(name), version=_FORMAT)
            return _plan(body, batch_id, is_local=self._root.local_path(name) is not None)
        except ObjectMissing:
            return None
        except OtherVersion as error:
            raise SinkError(
                f"{self._root.url(name)} was written by another release: {error}. Nothing was "
                "published. Install the release that wrote it, or a newer one.",
                remedy="other-version",
            ) from None
        except (ValueError, KeyError) as error:
            raise SinkError(
                f"{self._root.url(name)} is damaged: {error}. Without it nobody can tell what of "
                "the micro-batch is published, so nothing was.",
                remedy="sink-markers",
            ) from None

    def newest(self, batch_id: int, known_batch_id: int | None = None) -> BatchPlan | None:
        """Return the plan that says most to the driver of a micro-batch; None for a new output.

        Every micro-batch has one, also one without rows, but not one of which Spark made no task.
        So the next one's tells that the output is ahead, its own that it is published, and where
        the one before has none, all are looked through.

        Parameters
        ----------
        batch_id : int
        known_batch_id : int, optional
            One that is known to have a plan, maybe a later one.
        """
        ahead = max(batch_id + 1, -1 if known_batch_id is None else known_batch_id)
        for number in (ahead, batch_id + 1, batch_id, batch_id - 1):
            plan = self.read(number)
            if plan is not None:
                return plan
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def numbers(self) -> list[int]:
        """Return the micro-batches that have a plan, ascending."""
        names = (found.name.removeprefix(f"{FOLDER}/") for found in self._root.list(FOLDER))
        stems = (name.removesuffix(".plan") for name in names)
        return sorted(int(stem) for stem in stems if re.fullmatch("[0-9]{12,}", stem))


def _plan(body: dict[str, Any], batch_id: int, *, is_local: bool) -> BatchPlan:
    """Return the plan of a micro-batch; ValueError if it names what was not staged for it."""
    marker = Marker.from_json(body["marker"])
    if marker.batch_id != batch_id:
        raise ValueError(f"it is the plan of micro-batch {marker.batch_id}")
    folder = text(body["folder"])
    listed = (array(file, 3) for file in array(body["files"]))
    files = tuple(
        PlannedFile(path_below(staged), path_below(name), integer(nbytes, 0))
        for staged, name, nbytes in listed
    )
    # On a local disk one folder is renamed; in a store each file is copied from where it waits.
    waiting = [folder] if is_local else [file.staged.rpartition("/")[0] for file in files]
    for each in waiting if files else []:
        staged_for = batch_of_staged(each.rpartition("/")[2])
        if not _STAGED.fullmatch(each) or staged_for != batch_id:
            raise ValueError(f"{each!r:.80} is no folder that was staged for this micro-batch")
    return BatchPlan(marker, folder, files)


def _name(batch_id: int) -> str:
    return f"{FOLDER}/{batch_id:012d}.plan"
