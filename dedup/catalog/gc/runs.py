"""Objects at the catalog root that record each run's lineage and its last known commit.

The first micro-batch of a run writes ``runs/<began>-<run ID>.json`` once, with the run's lineage.
The *mark* of a run is an empty object ``runs/<began>-<run ID>.through-<epoch>``. Its name states
that the run committed that micro-batch. So one listing shows whether the query's history has
branched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dedup.catalog.gc.lineage import Lineage, Run
from dedup.catalog.layout import RUNS_FOLDER, ObjectName, catalog_files, checked_query_id, run_path
from dedup.core.state import ShardState
from dedup.storage.document import from_document, to_document
from dedup.storage.root import ObjectMissing, Root
from dedup.values.parse import count, name, record, row, tuple_of

RUN_FORMAT = 1


def list_runs(root: Root, query_id: str) -> list[Run]:
    """Return every run that has an object at the root, in order of the first micro-batches."""
    marks: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for trace in _traces(root, query_id):
        assert trace.run_id is not None
        assert trace.epoch is not None
        marked = [] if trace.through_epoch is None else [trace.through_epoch]
        marks[trace.epoch, trace.run_id] += marked
    return [
        Run(run_id, began, max(through, default=None))
        for (began, run_id), through in sorted(marks.items())
    ]


def write_lineage(root: Root, query_id: str, lineage: Lineage) -> None:
    """Write the lineage as the object of its last run. Every attempt writes the same bytes."""
    run = lineage.runs[-1]
    listed = [[one.run_id, one.began_epoch] for one in lineage.runs]
    root.create_bytes(
        run_path(query_id, run.run_id, run.began_epoch),
        to_document({"runs": listed}, version=RUN_FORMAT),
    )


def read_lineage(root: Root, query_id: str, run: Run) -> Lineage | None:
    """Return the lineage that ends with a run, or None if the run's object is missing or damaged.

    Without a lineage no orphan counts as the query's own, so a sweep deletes less. Nothing is lost.

    Raises CatalogError if the root cannot be read, or another release wrote the object.
    """
    try:
        return check_lineage(root, query_id, run)
    except (ObjectMissing, ValueError):
        return None


def check_lineage(root: Root, query_id: str, run: Run) -> Lineage:
    """Return the lineage that ends with a run. Raises ObjectMissing, or ValueError if damaged."""
    path = run_path(query_id, run.run_id, run.began_epoch)
    return root.read(path, lambda data: _lineage(data, run))


def lineage_from(root: Root, query_id: str, base: ShardState, run: Run) -> Lineage:
    """Return the lineage of ``run``, which made the state ``base`` or begins from it."""
    if not base.clocks.run_id:
        return Lineage((run,))
    last = Run(base.clocks.run_id, base.run_began)
    lineage = read_lineage(root, query_id, last) or Lineage((last,))
    return lineage if run.run_id == last.run_id else lineage.followed_by(run)


def _lineage(data: bytes, run: Run) -> Lineage:
    fields = from_document(data, version=RUN_FORMAT)
    listed = record(fields, {"runs": tuple_of(row(name, count))})["runs"]
    runs = tuple(Run(*entry) for entry in listed)
    if runs[-1:] != (Run(run.run_id, run.began_epoch),):
        raise ValueError("it is another run's")
    return Lineage(runs)


def mark_through(root: Root, query_id: str, run: Run, epoch: int) -> None:
    """Record that a run committed a micro-batch, and delete the previous mark."""
    root.create_bytes(run_path(query_id, run.run_id, run.began_epoch, epoch), b"")
    root.delete(
        run_path(query_id, run.run_id, run.began_epoch, trace.through_epoch)
        for trace in _traces(root, query_id)
        if trace.run_id == run.run_id
        and trace.through_epoch is not None
        and trace.through_epoch < epoch
    )


def drop_runs(root: Root, query_id: str, runs: Iterable[Run], lineage: Lineage) -> None:
    """Delete the objects of runs from which no checkpoint in use descends.

    If a run is part of ``lineage``, only its mark is deleted.
    """
    run_ids = {run.run_id for run in runs}
    root.delete(
        file.name
        for file in catalog_files(root, _folder(query_id))
        if (trace := file.parsed).run_id is not None
        and trace.run_id in run_ids
        and (trace.through_epoch is not None or not lineage.holds(trace.run_id))
    )


def _traces(root: Root, query_id: str) -> list[ObjectName]:
    files = catalog_files(root, _folder(query_id))
    return [file.parsed for file in files if file.parsed.kind == "run"]


def _folder(query_id: str) -> str:
    return f"{checked_query_id(query_id)}/{RUNS_FOLDER}"
