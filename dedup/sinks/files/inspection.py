"""Report which micro-batches a folder of files shows, and which files are staged in the folder.

`inspect_folder` only reads, so users may call it while a query writes to the folder.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from dedup.errors import ConfigError
from dedup.sinks.batch_folders import STAGING, published_batches
from dedup.sinks.files.output_root import OutputRoot
from dedup.sinks.files.plans import BatchPlan, BatchPlans, is_whole
from dedup.sinks.files.slice_files import batch_of_staged
from dedup.sinks.inspection import next_start
from dedup.sinks.options import located
from dedup.sinks.output_owner import foreign_to_all, owner_of
from dedup.spark.driver.checkpoint_log import Progress
from dedup.values.duration import iso


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFolder:
    """A folder of staged files. Readers of the output skip this folder.

    Parameters
    ----------
    folder : str
        The folder's name below the output.
    batch_id : int or None
        The micro-batch of the files, or None if the folder does not have a name of the sink's form.
    files, nbytes : int
        The number of files, and their size in bytes.
    role : str
        Why the files are there. ``"planned"``: they belong to the newest micro-batch, which readers
        do not see completely yet. ``"left over"``: their micro-batch is published, and the next
        micro-batch removes them. ``"not planned"``: they belong to a running micro-batch, or to a
        start that has ended. ``"foreign"``: an unknown writer made them.
    """

    folder: str
    batch_id: int | None
    files: int
    nbytes: int
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesInspection:
    """The report on an output that `inspect_folder` returns.

    Parameters
    ----------
    path : str
    query_id, sink : str
        The owner of the output.
    batch_id : int or None
        The newest micro-batch that is published or planned, or None if there is no micro-batch.
    whole : bool
        Whether readers see all of this micro-batch.
    rows, files, nbytes : int or None
        Figures from the micro-batch's plan. None in an output without plans, such as an output of
        `dedup_folder`.
    run_id, writer : str or None
        The start of the query that planned the micro-batch, and the host and process of that start.
    time_ms : int or None
        The time at which the micro-batch was planned, in milliseconds since 1970.
    staged : tuple of StagedFolder
    restart : str
        Sentences that say what the next start of the query will do.
    """

    path: str
    query_id: str
    sink: str
    batch_id: int | None
    whole: bool
    rows: int | None
    files: int | None
    nbytes: int | None
    run_id: str | None
    writer: str | None
    time_ms: int | None
    staged: tuple[StagedFolder, ...]
    restart: str

    @property
    def status(self) -> str:
        """Either ``ok``, or ``unfinished`` if the newest micro-batch is planned but incomplete."""
        return "ok" if self.whole else "unfinished"

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, **asdict(self), "time": iso(self.time_ms)}


def inspect_folder(path: str, progress: Progress | None) -> FilesInspection:
    """Return which micro-batches a folder holds, published or staged, and what a restart does.

    Raises ConfigError if the folder is not the output of a file sink or of `dedup_folder`, or if
    the checkpoint belongs to another query, and SinkError if a file of the output's log is damaged.
    """
    root = OutputRoot(located(path))
    owner = owner_of(root)
    if owner is None:
        other = foreign_to_all(root)
        what = "nothing is published there" if other is None else f"it was made by {other}"
        raise ConfigError(
            f"{root.url()} is not an output of a query of format('dedup_files'), files_sink or "
            f"dedup_folder: {what}. Give the folder that its option path names."
        )
    if progress is not None and progress.query_id != owner[0]:
        raise ConfigError(
            f"The checkpoint is of query {progress.query_id}, but {root.url()} belongs to query "
            f"{owner[0]}, so a start with this checkpoint is refused."
        )
    plans = BatchPlans(root)
    numbers = plans.numbers()
    plan = plans.read(numbers[-1]) if numbers else None
    local = root.local_path("x")
    shown = [] if local is None else published_batches(local.parent)
    batch_id = plan.marker.batch_id if plan else max(shown, default=None)
    whole = plan is None or is_whole(root, plan)
    marker = plan.marker if plan else None
    if plan is None:
        restart = "The output has no plan of a micro-batch, so the next start is unknown here."
    else:
        restart = next_start([plan.marker], progress)
    if not whole:
        restart = (
            f"Micro-batch {batch_id} is decided and not whole yet: its query, or its next start, "
            f"publishes the rest. {restart}"
        )
    return FilesInspection(
        path=root.url(),
        query_id=owner[0],
        sink=owner[1],
        batch_id=batch_id,
        whole=whole,
        rows=marker.rows if marker else None,
        files=len(plan.files) if plan else None,
        nbytes=sum(file.nbytes for file in plan.files) if plan else None,
        run_id=marker.run_id if marker else None,
        writer=marker.writer if marker else None,
        time_ms=marker.time_ms if marker else None,
        staged=_staged(root, batch_id, None if whole else plan),
        restart=restart,
    )


def _staged(
    root: OutputRoot, batch_id: int | None, unfinished: BatchPlan | None
) -> tuple[StagedFolder, ...]:
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for entry in root.list(STAGING):
        sizes[entry.name.split("/")[1]].append(entry.size_bytes)
    planned = set()
    if unfinished is not None:
        planned = {file.path.split("/")[1] for file in unfinished.files}
    staged = []
    for name, each in sorted(sizes.items()):
        number = batch_of_staged(name)
        if number is None:
            role = "foreign"
        elif name in planned:
            role = "planned"
        elif batch_id is not None and number <= batch_id:
            role = "left over"
        else:
            role = "not planned"
        staged.append(
            StagedFolder(
                folder=f"{STAGING}/{name}",
                batch_id=number,
                files=len(each),
                nbytes=sum(each),
                role=role,
            )
        )
    return tuple(staged)
