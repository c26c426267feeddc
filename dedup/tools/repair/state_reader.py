"""Reading the operator's state out of a checkpoint, offline, with Spark's state data source."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dedup.catalog.certificate import certificate_of, load_certificate
from dedup.catalog.root import Root
from dedup.core.sharding import filter_key_id
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.spark.machine import home_path, wall_clock_ms
from dedup.tools.repair.contents import Snapshot
from dedup.tools.repair.inspection import Where, open_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The folder of a checkpoint, or what was read there before.
Checkpoint = str | os.PathLike[str] | Snapshot


def checkpoint_place(checkpoint: str) -> str:
    """Return where a checkpoint is, a local one as an absolute path.

    Raises
    ------
    ConfigError
        If there is none on this machine.
    """
    if "://" in checkpoint:
        return checkpoint
    local = home_path(checkpoint).resolve()
    if not (local / "metadata").is_file():
        raise ConfigError(f"--checkpoint {local} holds no checkpoint of a streaming query.")
    return str(local)


def read_checkpoint(
    root: Where, checkpoint: Checkpoint, spark: SparkSession | None = None
) -> Snapshot:
    """Return what a query's checkpoint holds: the memory of every shard.

    Parameters
    ----------
    root
        The query's catalog.
    checkpoint
        Its folder; what was read before is returned as it is.
    spark : SparkSession, optional
        Default: the active one, or one that is started, and left running.

    Raises
    ------
    ConfigError
        If there is no such checkpoint, or no catalog of its query.
    CatalogError, StateError
        If the certificate, or a state, is damaged.
    """
    if isinstance(checkpoint, Snapshot):
        return checkpoint
    from pyspark.sql import SparkSession

    place = checkpoint_place(os.fspath(checkpoint))
    return read_snapshot(spark or SparkSession.builder.getOrCreate(), place, open_root(root))


def read_snapshot(spark: SparkSession, checkpoint: str, root: Root) -> Snapshot:
    """The state of every shard, from a checkpoint and the catalog it belongs to.

    Parameters
    ----------
    spark : SparkSession
        PySpark 4.0 or newer.
    checkpoint : str
        The query's checkpoint location.
    root : Root
        The operator's `catalog`.

    Raises
    ------
    ConfigError
        If there is no checkpoint of a query with this operator, or no catalog of it.
    CatalogError
        If the catalog's certificate is damaged.
    StateError
        If a state row is damaged.
    """
    read_ms = wall_clock_ms()
    with _reading(checkpoint):
        text = spark.read.text(f"{checkpoint}/metadata", wholetext=True).first()
        query_id: str = json.loads(text[0])["id"] if text else ""
        table = spark.read.format("statestore").load(checkpoint)
        rows = table.select("key.shard", "value.groupState.shard_state").collect()
    if not rows and load_certificate(root, query_id) is None:
        raise ConfigError(
            f"checkpoint={checkpoint}: query {query_id} has no state and no catalog yet, because "
            "none of its micro-batches has had a record. There is nothing to look at; start the "
            "query."
        )
    certificate = certificate_of(root, query_id)
    key_id = filter_key_id(query_id, certificate.secret)
    states = {
        certificate.slot_keys.index(row[0]): ShardState.from_bytes(
            bytes(row[1]), hash_key_id=key_id
        )
        for row in rows
    }
    return Snapshot(query_id, dict(sorted(states.items())), read_ms)


def has_state(spark: SparkSession, checkpoint: str) -> bool:
    """Return whether a query keeps a state; it has none until a micro-batch has had records.

    Raises
    ------
    ConfigError
        If Spark cannot read the state there.
    """
    with _reading(checkpoint):
        return bool(spark.read.format("statestore").load(checkpoint).head(1))


@contextmanager
def _reading(checkpoint: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"checkpoint={checkpoint}: cannot read the state of a query with dedup_by_id there "
            f"({type(error).__name__}: {str(error).splitlines()[0]}).",
            remedy="damaged-state",
        ) from error
