"""Makes a new checkpoint whose query remembers the IDs of history."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dedup.catalog.layout import catalog_files
from dedup.catalog.successor import Successor, read_successor
from dedup.errors import ConfigError, DataError, faults
from dedup.spark.options import Options
from dedup.storage.root import Root
from dedup.storage.timeouts import reach
from dedup.tools.repair.adopt import check_complete
from dedup.tools.repair.new_checkpoint import begin, give_up, open_both, write_first

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dedup.spark.driver.build import Operator


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The new checkpoint, and what its query remembers at the start."""

    root: str
    checkpoint: str
    query_id: str
    shards: int
    #: Rows of the history, without heartbeats.
    rows: int
    #: Remembered IDs, and the segments that hold them.
    ids: int
    segments: int
    #: Rows further back than horizon and lateness before the newest, which were left out.
    too_old: int
    #: Rows with a time further ahead than `max_future`. They count as seen now.
    future: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bootstrap(
    operator: Operator[Any], history: DataFrame, checkpoint: str | os.PathLike[str]
) -> Bootstrap:
    """Make a new checkpoint, whose query remembers the IDs of `history` at its first start.

    The query then drops copies of these records, as if it had received them in order of their time.
    But its clocks begin with its own first record, so history makes no record late. If the call
    fails or is cut off, repeat it; until it is done, no query starts with the checkpoint.

    Parameters
    ----------
    operator
        The query's operator, as `dedup_by_id` returns it, with its `catalog`.
    history : DataFrame
        A batch DataFrame with the columns that the operator's ID, timestamp and payload need. Rows
        further back than horizon and lateness before the newest are left out. Without the option
        `timestamp` all rows count as seen now.
    checkpoint : path
        Empty or new folder, or the folder of a call that was cut off. Start the query with it.

    Raises
    ------
    ConfigError
        If the operator, the session or `history` cannot work, or the folder is in use.
    DataError
        If rows have no ID or no time.
    CatalogError
        If the storage fails.
    """
    from dedup.spark.driver.history import learn, prepare_history

    options = operator.options
    if not isinstance(options, Options):
        raise ConfigError("bootstrap needs the operator that dedup_by_id returns.")
    frame, plan = prepare_history(history, options)
    root, target = plan.root, Root(checkpoint)
    assert root is not None, "prepare_history has checked it"
    query_id = _unfinished(root, target) or str(uuid4())
    place = target.url()
    begin(root, target, Successor(query_id, root.url(), place, place, rebuilt=False))
    faults.point("bootstrap.begun")
    try:
        learned = learn(frame, plan, query_id)
    except DataError:
        give_up(root, target, query_id)
        raise
    states = learned.states
    files = catalog_files(root, query_id)
    check_complete(root, query_id, files, dict(enumerate(states)))
    # Tasks that failed or ran twice have left others. No lineage would ever hold their run.
    named = {(shard, name) for shard, state in enumerate(states) for name in state.manifest.names()}
    left = (
        f for f in files if f.parsed.segment and (f.parsed.shard, f.parsed.segment) not in named
    )
    root.delete(file.name for file in left)
    faults.point("bootstrap.learned")
    write_first(root, learned.certificate, states)
    faults.point("bootstrap.written")
    open_both(root, query_id)
    faults.point("bootstrap.opened")
    return Bootstrap(
        root=root.url(),
        checkpoint=place,
        query_id=query_id,
        shards=len(states),
        rows=learned.rows,
        ids=sum(state.manifest.ids for state in states),
        segments=sum(1 for state in states for _ in state.manifest.segments()),
        too_old=learned.too_old,
        future=learned.future,
    )


def _unfinished(root: Root, checkpoint: Root) -> str | None:
    """Return the query ID of an earlier call for this checkpoint that was cut off, or None.

    Raises ConfigError if the checkpoint is in use.
    """
    files = reach(checkpoint, checkpoint.list)
    for query_id in root.folders():
        left = read_successor(root, query_id)
        if left is not None and left.is_bootstrap and left.checkpoint == checkpoint.url():
            return query_id
    if files:
        raise ConfigError(
            f"{checkpoint.url()} is not empty. Give a new folder for the checkpoint. If an earlier "
            "call has made it, start the query."
        )
    return None
