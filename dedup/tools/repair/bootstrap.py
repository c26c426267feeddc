"""Makes a new checkpoint whose query remembers the IDs of history."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from dedup.catalog.certificate import has_learned, load_certificate
from dedup.catalog.layout import catalog_files
from dedup.errors import ConfigError, DataError, faults
from dedup.spark.options import Options
from dedup.storage.root import ObjectMissing, Root
from dedup.storage.timeouts import reach
from dedup.tools.repair.adopt import check_complete
from dedup.tools.repair.new_checkpoint import clear, give_up, name_query, write_first
from dedup.values.parse import name

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
    #: Rows further back than horizon and lateness before the newest. Their IDs are forgotten.
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
        A batch DataFrame with the columns that the operator's ID, timestamp and payload need.
        Without the option `timestamp` all rows count as seen now.
    checkpoint : path
        Empty or new folder, or the folder of a call that was cut off. Start the query with it.

    Raises
    ------
    ConfigError
        If the operator, the session or `history` cannot work, or the folder is in use.
    DataError
        If rows have no ID or no time. The folder is then empty again, unless an earlier call for
        it was cut off.
    CatalogError
        If the storage fails.
    """
    from dedup.spark.driver.history import learn, prepare_history

    options = getattr(operator, "options", None)
    if not isinstance(options, Options) or not hasattr(history, "sparkSession"):
        raise ConfigError("bootstrap needs the operator that dedup_by_id returns, and a DataFrame.")
    root, target = options.root, Root(checkpoint)
    if root is not None and f"{root.url()}/".startswith(f"{target.url().rstrip('/')}/"):
        raise ConfigError(f"catalog={root.url()} is inside the checkpoint {target.url()}.")
    frame, plan = prepare_history(history, options)
    assert root is not None, "prepare_history has checked it"
    earlier = _unfinished(root, target)
    query_id = earlier or str(UUID(int=uuid4().int & ~(0xF << 76) | 8 << 76))
    clear(root, target, query_id)
    # From now on a start with the checkpoint needs the certificate, which is written last.
    name_query(target, query_id)
    faults.point("bootstrap.begun")
    try:
        _check_seen(frame, target)
        learned = learn(frame, plan, query_id)
    except (ConfigError, DataError):
        if earlier is None and load_certificate(root, query_id) is None:
            give_up(root, target, query_id)
        raise
    states = learned.states
    files = catalog_files(root, query_id)
    if load_certificate(root, query_id) is not None:
        raise ConfigError(
            f"Another call has made {target.url()} at the same time. Start the query."
        )
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
    return Bootstrap(
        root=root.url(),
        checkpoint=target.url(),
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
    if not files:
        return None
    if not any(file.name.startswith("commits/") for file in files):
        with suppress(ObjectMissing, ValueError, KeyError, TypeError):
            query_id = checkpoint.read("metadata", lambda data: name(json.loads(data)["id"]))
            if has_learned(query_id) and load_certificate(root, query_id) is None:
                return query_id
    raise ConfigError(
        f"{checkpoint.url()} is not empty. Give a new folder for the checkpoint. If an earlier "
        "call has made it, start the query."
    )


def _check_seen(frame: DataFrame, checkpoint: Root) -> None:
    """Raise ConfigError if Spark looks for a local checkpoint in another file system."""
    place = checkpoint.url()
    if "://" in place:
        return
    try:
        frame.sparkSession.read.text(f"{place}/metadata").first()
    except Exception as error:
        raise ConfigError(
            f"Spark does not see {place}/metadata on this machine. Give the checkpoint as a URI "
            "with the scheme of its file system, such as file:// or hdfs://."
        ) from error
