"""Makes a new checkpoint whose query remembers the IDs of history."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from dedup.catalog.certificate import has_learned, load_certificate
from dedup.catalog.layout import catalog_files
from dedup.errors import ConfigError, DataError, faults
from dedup.spark.options import Options
from dedup.storage.root import ObjectMissing, Root
from dedup.storage.timeouts import reach
from dedup.tools.repair.adopt import check_complete
from dedup.tools.repair.new_checkpoint import check_place, clear, give_up, name_query, write_first
from dedup.values.parse import name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dedup.spark.driver.build import Operator


#: Files of a checkpoint whose query has run a micro-batch.
_USED = re.compile(r"commits/|state/\d+/\d+/\d")


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
    check_place(checkpoint)
    root, target = options.root, Root(checkpoint)
    if root is not None and f"{root.url()}/".startswith(f"{target.url().rstrip('/')}/"):
        raise ConfigError(f"catalog={root.url()} is inside the checkpoint {target.url()}.")
    frame, plan = prepare_history(history, options)
    assert root is not None, "prepare_history has checked it"
    earlier = _unfinished(root, target)
    # Each call has its own ID, so that two calls at once share no file of the catalog.
    query_id = str(UUID(int=uuid4().int & ~(0xF << 76) | 8 << 76))
    # From now on a start with the checkpoint needs the certificate, which is written last.
    name_query(target, query_id, is_new=earlier is None)
    _check_named(root, target, query_id)
    if earlier is not None:
        if load_certificate(root, earlier) is not None:
            # That call has ended just now. Its query keeps the checkpoint, which is in use now.
            name_query(target, earlier)
            _unfinished(root, target)
        clear(root, target, earlier)
        root.delete_folder(earlier)
    faults.point("bootstrap.begun")
    try:
        _check_seen(frame, checkpoint)
        learned = learn(frame, plan, query_id)
    except (ConfigError, DataError):
        if earlier is None and _named_query(target) == query_id:
            give_up(root, target, query_id)
        raise
    files = catalog_files(root, query_id)
    _check_named(root, target, query_id)
    check_complete(root, query_id, files, dict(enumerate(learned.states)))
    # Tasks that failed or ran twice have left others. No lineage would ever hold their run.
    named = {
        (shard, name)
        for shard, state in enumerate(learned.states)
        for name in state.manifest.names()
    }
    root.delete(
        file.name
        for file in files
        if file.parsed.segment and (file.parsed.shard, file.parsed.segment) not in named
    )
    faults.point("bootstrap.learned")
    write_first(root, learned.certificate, learned.states)
    faults.point("bootstrap.written")
    _check_named(root, target, query_id)
    return Bootstrap(
        root=root.url(),
        checkpoint=target.url(),
        query_id=query_id,
        shards=len(learned.states),
        rows=learned.rows,
        ids=sum(state.manifest.ids for state in learned.states),
        segments=sum(1 for state in learned.states for _ in state.manifest.segments()),
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
    # A start that was refused has planned a micro-batch, and has written no state.
    if not any(_USED.match(file.name) for file in files):
        query_id = _named_query(checkpoint)
        if has_learned(query_id) and load_certificate(root, query_id) is None:
            return query_id
    raise ConfigError(
        f"{checkpoint.url()} is not empty. Give a new folder for the checkpoint. If an earlier "
        "call has made it, start the query."
    )


def _named_query(checkpoint: Root) -> str:
    """Return the ID of the checkpoint's query, or nothing if it has none."""
    with suppress(ObjectMissing, ValueError, KeyError, TypeError):
        return checkpoint.read("metadata", lambda data: name(json.loads(data)["id"]))
    return ""


def _check_named(root: Root, checkpoint: Root, query_id: str) -> None:
    """Raise ConfigError if another call has named the checkpoint's query since."""
    if _named_query(checkpoint) != query_id:
        root.delete_folder(query_id)
        raise ConfigError(
            f"A later call for {checkpoint.url()} has begun, and this one has ended. If the later "
            "call succeeds, start the query. Otherwise repeat the call."
        )


def _check_seen(frame: DataFrame, checkpoint: str | os.PathLike[str]) -> None:
    """Raise ConfigError if a query with this path would have its checkpoint elsewhere."""
    place = os.fspath(checkpoint)
    if "://" in place:
        return
    try:
        # Spark takes these characters for patterns.
        literal = re.sub(r"([][{}*?\\])", r"\\\1", f"{place}/metadata")
        frame.sparkSession.read.text(literal).first()
    except Exception as error:
        raise ConfigError(
            f"Spark does not see {place}/metadata on this machine. Give the checkpoint as an "
            "absolute path, or as a URI with the scheme of its file system, such as hdfs://."
        ) from error
