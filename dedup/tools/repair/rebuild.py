"""Writes what a stopped query remembers into a new catalog, for a new checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dedup.catalog.cache import LocalCache
from dedup.catalog.certificate import Certificate, certificate_of, load_certificate
from dedup.catalog.layout import catalog_files, successor_path
from dedup.catalog.open_views import OpenViews
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.catalog.successor import (
    Successor,
    closed,
    read_successor,
    refuse_closed,
    write_successor,
)
from dedup.core.resharding import Resharding
from dedup.core.sharding import derive_keys, slot_keys
from dedup.core.state import ShardState
from dedup.errors import ConfigError, DedupError, StateError, faults
from dedup.spark.driver.checkpoint_log import last_offsets, offsets_in
from dedup.storage.location import FileSystemFactory
from dedup.storage.root import Root
from dedup.storage.timeouts import reach
from dedup.tools.repair.adopt import check_complete
from dedup.tools.repair.id_text import id_keys
from dedup.tools.repair.new_checkpoint import check_place, clear, give_up, name_query, write_first
from dedup.tools.repair.opening import (
    Where,
    checkpoint_place,
    only_query,
    open_root,
    open_session,
    operators_with_state,
    planned_and_committed,
    read_checkpoint,
    reading,
    unfinished,
)
from dedup.values.option import whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """The new catalog and checkpoint, and what the query remembers there."""

    root: str
    checkpoint: str
    query_id: str
    #: Last micro-batch of the old query.
    epoch: int
    #: Last offset of each source, as Spark wrote it.
    offsets: tuple[str, ...]
    shards: int
    ids: int
    segments: int
    #: IDs that were to be left out: those that the query remembered, and all others.
    left_out: int
    unknown: int
    #: Folders that the old query alone used.
    obsolete: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rebuild(
    root: Where,
    checkpoint: str | os.PathLike[str],
    new_root: str | os.PathLike[str] | FileSystemFactory,
    new_checkpoint: str | os.PathLike[str],
    *,
    shards: int | None = None,
    without: str | os.PathLike[str] | None = None,
    spark: SparkSession | None = None,
) -> Rebuilding:
    """Write what a stopped query remembers into a new catalog, for a new checkpoint.

    The new query judges the next record as the old one would have. It may have another number of
    shards and of state partitions, another state store, and another PySpark. The old query does not
    start again; `reopen` undoes that. If the call is cut off, repeat it.

    Parameters
    ----------
    root, checkpoint
        The catalog and the checkpoint of the query. Stop it first.
    new_root
        Place of the new catalog, which may hold other queries.
    new_checkpoint
        Empty or new folder for the new checkpoint.
    shards : int, optional
        At least 1. Default: the number of the old query.
    without : path, optional
        File with IDs to leave out, one a line, as `explain` takes them. An ID of several
        columns is a JSON array of texts.
    spark : SparkSession, optional
        Session that reads the checkpoint, as in `read_checkpoint`.

    Raises
    ------
    ConfigError
        If a micro-batch is unfinished or the query runs, another operator of the query has a
        state, the new folders are in use, or an ID in the file does not fit the ID columns.
        Nothing has changed then.
    CatalogError
        If a segment is missing or damaged, or storage fails. Nothing has changed for the query.
    StateError
        If a state row is missing or damaged.
    """
    if shards is not None:
        whole(1).check(shards, "shards")
    check_place(new_checkpoint)
    root, place = open_root(root), checkpoint_place(os.fspath(checkpoint))
    new, target = Root(new_root), Root(new_checkpoint)
    spark = spark or open_session()
    if (operators := operators_with_state(spark, place)) > 1:
        raise ConfigError(
            f"The query of {place} has {operators} operators with a state, and a new checkpoint "
            "would forget the state of the others. Nothing has changed. Only dedup catalog rescale "
            "changes such a query."
        )
    # Read the logs before the state, so that a later micro-batch shows.
    logs = planned_and_committed(spark, place)
    snapshot = read_checkpoint(root, place, spark)
    query_id = snapshot.query_id
    old, earlier = certificate_of(root, query_id), read_successor(root, query_id)
    successor = Successor(query_id, new.url(), target.url(), place, rebuilt=True)
    opening = Successor(query_id, root.url(), place, target.url(), rebuilt=False)
    left = reach(new, lambda: read_successor(new, query_id))
    was_cut_off = left == opening
    if left is not None and not left.rebuilt and not was_cut_off:
        raise ConfigError(
            f"{new.url()} holds what an earlier call left. Repeat that call, with checkpoint "
            f"{left.checkpoint} and new checkpoint {left.closed_checkpoint} spelt as here, "
            "or give another place for the new catalog."
        )
    if earlier is not None and not (was_cut_off and replace(earlier, epoch=-1) == successor):
        raise closed(root, earlier)
    epoch, offsets = _last_commit(place, logs, earlier)
    states = [replace(state, filters={}) for state in snapshot.states.values()]
    if len(states) != old.shards:
        raise StateError.damaged(f"{len(states)} of {old.shards} shards have a state in {place}")
    keys = set() if without is None else set(id_keys(old.id_columns, Path(without)))
    if catalog_files(new, query_id) and not was_cut_off:
        raise ConfigError(
            f"{new.url()} already holds query {query_id}. Give another place for the new catalog."
        )
    if f"{target.url()}/".startswith(f"{place.rstrip('/')}/"):
        raise ConfigError(f"{target.url()} is inside {place}, which you will delete. Move it out.")
    in_target = reach(target, target.list)
    if any(not was_cut_off or file.name.startswith("commits/") for file in in_target):
        raise ConfigError(f"{target.url()} is not empty. Give a new folder for the checkpoint.")
    check_complete(root, query_id, catalog_files(root, query_id), dict(enumerate(states)))
    count = shards or old.shards
    # With none of the old keys, the old checkpoint has no state for any shard of the new catalog.
    # They spread evenly over as many partitions, a quarter, half, twice and four times as many.
    keys_of_slots = slot_keys(count, 4 * count, frozenset(old.slot_keys))
    certificate = replace(old, shards=count, slot_keys=keys_of_slots, birth_batch=0)
    # Until all is written, a start with the new checkpoint finds the query, and this document.
    clear(new, target, query_id)
    write_successor(new, opening)
    name_query(target, query_id)
    faults.point("rebuild.begun")
    try:
        made, work = _written(root, new, old, certificate, states, keys)
    except DedupError:
        give_up(new, target, query_id, closed=earlier is not None)
        raise
    write_first(new, certificate, made)
    faults.point("rebuild.written")
    if not write_successor(root, successor, new=earlier is None):
        refuse_closed(root, query_id)  # by another call
    faults.point("rebuild.closed")
    if earlier is None or earlier.epoch < 0:
        try:
            _last_commit(place, planned_and_committed(spark, place), None, epoch)
        except ConfigError:
            root.delete([successor_path(query_id)])
            raise
    write_successor(root, replace(successor, epoch=epoch))
    faults.point("rebuild.checked")
    new.delete([successor_path(query_id)])
    faults.point("rebuild.opened")
    return Rebuilding(
        root=new.url(),
        checkpoint=target.url(),
        query_id=query_id,
        epoch=epoch,
        offsets=offsets,
        shards=count,
        ids=sum(state.manifest.ids for state in made),
        segments=sum(1 for state in made for _ in state.manifest.segments()),
        left_out=len(work.left_out),
        unknown=len(keys - work.left_out),
        obsolete=(root.url(query_id), place),
    )


def reopen(
    root: Where,
    query: str | None = None,
    new_root: str | os.PathLike[str] | FileSystemFactory | None = None,
) -> Successor:
    """Give a rebuilt query up, so that the old one may start again. Return what was given up.

    Parameters
    ----------
    root
        The catalog of the old query.
    query : str, optional
        ID of the query. Needed if the catalog holds several queries.
    new_root : optional
        The rebuilt catalog. Needed if its URI has credentials or options, if a function opens it,
        or if it was moved.

    Raises
    ------
    ConfigError
        If the query is not closed, or the rebuilt one is not there, or was rebuilt once more.
    CatalogError
        If one of both catalogs cannot be reached.
    """
    root = open_root(root)
    query_id = query or only_query(root)
    given_up = read_successor(root, query_id)
    if given_up is None or not given_up.rebuilt:
        raise ConfigError(f"Query {query_id} at {root.url()} was not rebuilt elsewhere.")
    new = Root(given_up.root if new_root is None else new_root)
    if load_certificate(new, query_id) is None:
        raise ConfigError(
            f"{new.url()} does not hold the rebuilt query. If you moved its catalog, give the new "
            "place (--to). If you deleted it with its checkpoint, delete "
            f"{root.url(successor_path(query_id))}; then the old query starts."
        )
    further = read_successor(new, query_id)
    if further is not None and further.rebuilt:
        raise ConfigError(
            f"Query {query_id} was rebuilt once more, from {new.url()} at {further.root}. Reopen "
            "that catalog first."
        )
    here = given_up.closed_checkpoint
    # Close the new folder first: at no moment may both queries start.
    back = Successor(query_id, root.url(), here, given_up.checkpoint, rebuilt=False)
    write_successor(new, back)
    faults.point("reopen.closed")
    root.delete([successor_path(query_id)])
    return given_up


def _last_commit(
    place: str,
    logs: tuple[dict[int, str], dict[int, str]],
    earlier: Successor | None,
    expected: int | None = None,
) -> tuple[int, tuple[str, ...]]:
    """Return the last committed micro-batch, and the offset of each source at its end.

    Raises ConfigError if another one is planned, unless it was planned after an ``earlier`` call
    had closed the query, or if the last one is not the expected one.
    """
    planned, commits = logs
    last, newest = max(commits, default=-1), max(planned, default=-1)
    if expected not in (None, newest):
        raise ConfigError(f"The query of {place} ran while it was read. Stop it, and call again.")
    if newest > last and earlier is None:
        raise unfinished(place, newest)
    if newest > last and earlier is not None and earlier.epoch < 0:
        raise ConfigError(
            f"An earlier call was cut off, and micro-batch {newest} of {place} was planned. Call "
            "dedup catalog rebuild --reopen, let the query commit it, stop it, and call again."
        )
    if last < 1:
        raise ConfigError(
            f"The query of {place} has committed {last + 1} micro-batches. Let it commit two, so "
            "that sinks notice that the numbers of micro-batches begin again."
        )
    with reading(place):
        batches = sorted((batch for batch in planned if batch <= last), reverse=True)
        return last, tuple(last_offsets([offsets_in(planned[batch])[1] for batch in batches]))


def _written(
    root: Root,
    new: Root,
    old: Certificate,
    certificate: Certificate,
    states: Sequence[ShardState],
    without: set[bytes],
) -> tuple[list[ShardState], Resharding]:
    """Write all segments, and return the state that each shard starts with."""
    query_id, secret = old.query_id, old.secret
    attempt = Attempt(0, f"rebuild-{uuid4()}", 0)
    with TemporaryDirectory(prefix="dedup-rebuild-") as folder:
        cache, views = LocalCache(query_id, folder), OpenViews()

        def stores(at: Root, shards: int) -> list[ShardStore]:
            files = (ShardFiles(at, cache, query_id, shard, secret) for shard in range(shards))
            return [ShardStore(one, attempt, views) for one in files]

        work = Resharding(
            states,
            stores(root, old.shards),
            stores(new, certificate.shards),
            *derive_keys(query_id, secret),
            without,
        )
        made = work.run()
        views.close_all()
    return made, work
