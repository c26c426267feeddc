"""The checkpoint of a command that looks into a catalog, read in a Spark session of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dedup.catalog.repair.contents import Snapshot
from dedup.catalog.repair.inspection import open_root
from dedup.catalog.root import Root
from dedup.cli.session import spark_session
from dedup.spark.driver.state_reader import checkpoint_place
from dedup.tools import read_checkpoint


def opened(where: str, checkpoint: str | None) -> tuple[Root, Snapshot | None]:
    """Return a catalog, and the memory of a query where its checkpoint is given."""
    root = open_root(where)
    return root, None if checkpoint is None else snapshot(root, checkpoint)


def snapshot(root: Root, checkpoint: str) -> Snapshot:
    """Return the memory of a query; errors as `read_checkpoint`."""
    place = checkpoint_place(checkpoint)
    with (
        tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch,
        spark_session(
            master="local[1]", driver_memory="1g", shards=1, log=Path(scratch) / "spark.log"
        ) as session,
    ):
        return read_checkpoint(root, place, session)
