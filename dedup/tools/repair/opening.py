"""Open a catalog, and read the operator's state from a checkpoint without running the query."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from dedup.catalog.certificate import certificate_of, load_certificate
from dedup.catalog.layout import CatalogFile, catalog_files
from dedup.core.sharding import filter_key_id
from dedup.core.state import ShardState
from dedup.core.state_row import refuse_before_release
from dedup.errors import ConfigError
from dedup.spark.driver.checkpoint_log import OPERATOR
from dedup.spark.machine import home_path, wall_clock_ms
from dedup.storage.location import FileSystemFactory
from dedup.storage.root import Root
from dedup.storage.timeouts import reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A query's state after its last committed micro-batch."""

    query_id: str
    #: State of each shard.
    states: dict[int, ShardState]
    #: Time on this machine when the read began. Files that `states` does not name may be newer.
    read_ms: int


#: The location of a catalog, or the open catalog.
Where = str | os.PathLike[str] | FileSystemFactory | Root
#: The folder of a checkpoint, or the snapshot read from it.
Checkpoint = str | os.PathLike[str] | Snapshot
#: The format of Spark's checkpoints of a state. Spark takes it from the session.
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_OPERATOR_COLUMNS = ("operatorId", "operatorName")
#: Spark 4 encodes them twice in the path of a state that it reads outside of a query.
_ENCODED = frozenset(' %#?[]{}<>|\\^`"')
#: Kinds of catalog files whose names carry the ID of a query.
_QUERY_FILES = (
    "certificate", "old_certificate", "segment", "sidecar", "backup", "adopted", "pending_list",
)  # fmt: skip


def open_root(where: Where) -> Root:
    """Open a catalog. Raises ConfigError if it is missing, CatalogError if the storage fails."""
    if isinstance(where, Root):
        return where
    root = Root(where)
    # Ask for one object first, because to list a large catalog may exceed the limit of `reach`.
    reach(root, lambda: root.exists("certificate.json"))
    if not queries_in(catalog_files(root)):
        raise ConfigError(
            f"{root.url()} holds no catalog of dedup_by_id. Give the value of the option `catalog` "
            "(for `dedup run`: OUTPUT/_catalog).",
            remedy="missing-catalog",
        )
    return root


def queries_in(files: Sequence[CatalogFile]) -> list[str]:
    """Return the IDs of the queries that own these files. A query may lack its certificate."""
    return sorted({f.parsed.query_id or "" for f in files if f.parsed.kind in _QUERY_FILES})


def only_query(root: Root) -> str:
    """Return the ID of a catalog's only query. Raises ConfigError, which lists all IDs."""
    queries = sorted(
        {
            f.parsed.query_id or ""
            for f in catalog_files(root)
            if f.parsed.kind.endswith("certificate")
        }
    )
    if len(queries) != 1:
        raise ConfigError(
            f"{root.url()} holds {len(queries)} queries. Choose one with --query: "
            f"{', '.join(queries)}",
            remedy="missing-catalog",
        )
    return queries[0]


def checkpoint_place(checkpoint: str) -> str:
    """Return the URI or absolute path of a checkpoint, or raise ConfigError if it is missing."""
    if "://" in checkpoint:
        return checkpoint
    local = home_path(checkpoint).resolve()
    if not (local / "metadata").is_file():
        raise ConfigError(f"{local} is not a checkpoint of a streaming query.")
    return str(local)


def read_checkpoint(
    root: Where, checkpoint: Checkpoint, spark: SparkSession | None = None
) -> Snapshot:
    """Return the state of every shard from a query's checkpoint.

    Parameters
    ----------
    root
        The query's catalog.
    checkpoint
        Folder of the checkpoint. If it is a snapshot, the function returns it unchanged.
    spark : SparkSession, optional
        Default: the active session, or a new session, which stays open. With PySpark 3.5 not one of
        Spark Connect.

    Raises
    ------
    ConfigError
        If the folder is not the checkpoint of a query with `dedup_by_id`, or the catalog does not
        exist.
    CatalogError
        If the query's certificate is damaged.
    StateError
        If a state row is damaged.
    """
    if isinstance(checkpoint, Snapshot):
        return checkpoint
    place, root = checkpoint_place(os.fspath(checkpoint)), open_root(root)
    spark = spark or open_session()
    read_ms = wall_clock_ms()
    with reading(place):
        text = spark.read.text(f"{place}/metadata", wholetext=True).first()
        query_id: str = json.loads(text[0])["id"] if text else ""
        rows = rows_of_state(spark, place)
    for _, row in rows:
        refuse_before_release(row)
    if not rows and load_certificate(root, query_id) is None:
        raise ConfigError(
            f"checkpoint={place}: query {query_id} has no state and no catalog, because none of "
            "its micro-batches has had a record yet. Start the query first."
        )
    certificate = certificate_of(root, query_id)
    key_id = filter_key_id(query_id, certificate.secret)
    if not {key for key, _ in rows} <= set(certificate.slot_keys):
        raise ConfigError(
            f"checkpoint={place} does not belong to the catalog {root.url()}, which has other "
            "shards. Give the catalog that its query uses.",
            remedy="missing-catalog",
        )
    states = {
        certificate.slot_keys.index(key): ShardState.from_bytes(state, hash_key_id=key_id)
        for key, state in rows
    }
    return Snapshot(query_id, dict(sorted(states.items())), read_ms)


def open_session() -> SparkSession:
    """Return the active session, or a new one, which stays open."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def snapshot_of(root: Root, checkpoint: Checkpoint | None) -> Snapshot | None:
    return None if checkpoint is None else read_checkpoint(root, checkpoint)


def has_state(spark: SparkSession, checkpoint: str) -> bool:
    """Return whether a query has state.

    Raises ConfigError if Spark cannot read it, and StateError if it is from before the first
    release.
    """
    with reading(checkpoint):
        rows = rows_of_state(spark, checkpoint, limit=1)
    for _, row in rows:
        refuse_before_release(row)
    return bool(rows)


def rows_of_state(
    spark: SparkSession, checkpoint: str, limit: int | None = None
) -> list[tuple[int, bytes]]:
    """Return slot key and state of shards after the last committed micro-batch."""
    from dedup.spark.versions import IS_SPARK_3

    if IS_SPARK_3:
        from dedup.tools.repair import spark_3_state

        return list(islice(spark_3_state.rows_of_state(spark, checkpoint), limit))
    number = operator_number(spark, checkpoint)
    with in_format_of(spark, checkpoint):
        table = spark.read.format("statestore").option("operatorId", number or 0).load(checkpoint)
        table = table.select("key.shard", "value.groupState.shard_state")
        rows = table.collect() if limit is None else table.head(limit)
    return [(key, bytes(state)) for key, state in rows]


def unfinished(checkpoint: str, batch_id: int) -> ConfigError:
    return ConfigError(
        f"Micro-batch {batch_id} of {checkpoint} is unfinished. Start the query, let it commit "
        "this micro-batch (trigger availableNow), stop it, and call again. Nothing has changed."
    )


def operators_with_state(spark: SparkSession, checkpoint: str) -> int:
    """Return how many operators of the query have a state."""
    with reading(checkpoint):
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        paths = files.load(f"{checkpoint}/state").select("path").collect()
    # Spark 3.5 writes no metadata, only a folder for each operator.
    return len({path.rpartition("/state/")[2].partition("/")[0] for (path,) in paths})


def operator_number(spark: SparkSession, checkpoint: str) -> int | None:
    """Return Spark's number of the operator, or None if Spark 3.5 wrote the state."""
    # A window behind the operator also has a state, with the lower number.
    own = (number for number, name in named_operators(spark, checkpoint) if name == OPERATOR)
    return next(own, None)


def named_operators(spark: SparkSession, checkpoint: str) -> list[tuple[int, str]]:
    """Return number and name of the operators whose state Spark 4 wrote."""
    # This starts a service without which PySpark 4.2 reads no RocksDB state store.
    _ = spark.streams.active
    operators = spark.read.format("state-metadata").load(checkpoint)
    return [(int(number), name) for number, name in operators.select(*_OPERATOR_COLUMNS).collect()]


@contextmanager
def in_format_of(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Let a session read and write state in the format of a checkpoint, for a while."""
    from dedup.spark.driver.checks import changed_setting

    commits = log_entries(spark, checkpoint, "commits")
    # Without a commit there is no state in any format.
    version, _, _ = commits.get(max(commits, default=-1), "v1").partition("\n")
    with changed_setting(spark, _FORMAT, version.removeprefix("v")):
        yield


def log_entries(spark: SparkSession, checkpoint: str, log: str) -> dict[int, str]:
    """Return the entries of one of Spark's logs by micro-batch."""
    files = spark.read.format("binaryFile").load(f"{checkpoint}/{log}").select("path", "content")
    return {
        int(number): bytes(content).decode()
        for path, content in files.collect()
        if (number := path.rpartition("/")[2]).isdigit()
    }


def planned_and_committed(
    spark: SparkSession, checkpoint: str, function: str = "dedup_by_id"
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the entries of Spark's logs of planned and of committed micro-batches."""
    with reading(checkpoint, function):
        # In this order each committed micro-batch is among the planned ones.
        commits = log_entries(spark, checkpoint, "commits")
        return log_entries(spark, checkpoint, "offsets"), commits


@contextmanager
def reading(checkpoint: str, function: str = "dedup_by_id") -> Iterator[None]:
    try:
        yield
    except Exception as error:
        encoded = "".join(sorted(_ENCODED.intersection(checkpoint)))
        advice = " If the query has never run, start it first."
        if encoded:
            advice = (
                f" Spark 4 cannot read a state under a path that contains {encoded!r}. Stop the "
                "query, move the checkpoint to another path or copy it, and give that path."
            )
        raise ConfigError(
            f"checkpoint={checkpoint}: cannot read the state of a query with {function} there "
            f"({type(error).__name__}: {str(error).splitlines()[0]}).{advice}",
            remedy=None if encoded else "damaged-state",
        ) from error
