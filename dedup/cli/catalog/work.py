"""The checkpoint of a command that looks into a catalog, read in a Spark session of its own."""

from __future__ import annotations

from dedup.catalog.root import Root
from dedup.cli.run.output_folder import catalog_of
from dedup.cli.session import reading_session
from dedup.tools import read_checkpoint
from dedup.tools.repair.opening import Snapshot, checkpoint_place, open_root


def opened(where: str, checkpoint: str | None) -> tuple[Root, Snapshot | None]:
    """Return a catalog, and what its query remembers, if a checkpoint or a run is given."""
    where, checkpoint = catalog_of(where, checkpoint)
    root = open_root(where)
    return root, None if checkpoint is None else snapshot(root, checkpoint)


def snapshot(root: Root, checkpoint: str) -> Snapshot:
    """Return the memory of a query; errors as `read_checkpoint`."""
    place = checkpoint_place(checkpoint)
    with reading_session() as session:
        return read_checkpoint(root, place, session)
