"""The checkpoint of a command that looks into a catalog, read in a Spark session of its own."""

from __future__ import annotations

from dedup.catalog.repair.contents import Snapshot
from dedup.catalog.repair.inspection import open_root
from dedup.catalog.root import Root
from dedup.cli.run.output_folder import catalog_of
from dedup.cli.session import reading_session
from dedup.spark.driver.state_reader import checkpoint_place
from dedup.tools import read_checkpoint


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
