"""Gives a stopped query another number of state partitions, with Spark's own call."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dedup.core.state_row import operator_of
from dedup.errors import ConfigError
from dedup.errors.cause import cause_of
from dedup.spark.driver.checkpoint_log import offsets_in
from dedup.spark.driver.checks import PARTITIONS
from dedup.tools.repair.opening import (
    checkpoint_place,
    in_format_of,
    log_entries,
    open_session,
    operator_number,
    planned_and_committed,
    reading,
    rows_of_state,
    unfinished,
)
from dedup.values.option import whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORE = "spark.sql.streaming.stateStore.providerClass"
#: Spark plans a number that it cannot reach, and the query then never starts again.
_MOST = 10_000
_NEW_CHECKPOINT = (
    "Another way is dedup catalog rebuild, which writes the memory of dedup_by_id for a new "
    "checkpoint."
)


@dataclass(frozen=True, slots=True)
class Rescaling:
    """The new number of state partitions."""

    checkpoint: str
    #: Micro-batch that Spark used up for it. No sink sees this micro-batch.
    batch_id: int
    partitions_before: int
    partitions: int
    #: The operator and its shards. More partitions than shards bring no parallelism.
    operator: str
    shards: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rescale(
    checkpoint: str | os.PathLike[str], partitions: int, spark: SparkSession | None = None
) -> Rescaling:
    """Give a stopped query another number of state partitions.

    The query continues from the same checkpoint, with the same catalog, positions of its sources
    and sinks. Stop it first: a running query fails at its next micro-batch. If the call is cut off,
    the query does not start until the call is repeated with the same number.

    Parameters
    ----------
    checkpoint
        Folder of the query's checkpoint. The query uses RocksDB as its state store.
    partitions : int
        1 to 10,000. The operator's shards are divided among them.
    spark : SparkSession, optional
        A classic session of PySpark 4.2 or newer. Default: the active session, or a new session,
        which stays open.

    Raises
    ------
    ConfigError
        If PySpark is older or the session one of Spark Connect; if the folder is not the checkpoint
        of a query of this package, or its state is in another state store; if a micro-batch is
        unfinished, or the number unchanged. The error says if something has changed.
    StateError
        If the state is from before the first release.

    Notes
    -----
    Give `dedup_by_sequence` the number in the result as `shards`, before the query starts. Without
    it the query stops in its first micro-batch, and a sink that publishes rows one by one may
    already have duplicates.

    The call is Spark's own and experimental (SPARK-54346). Spark's own file sink does not survive
    the micro-batch that it uses up.
    """
    whole(1, _MOST).check(partitions, "partitions")
    place = checkpoint_place(os.fspath(checkpoint))
    spark = spark or open_session()
    if not hasattr(spark, "_streamingCheckpointManager"):
        raise ConfigError(
            "Only PySpark 4.2 and newer can give a state other partitions, and not through Spark "
            "Connect. Nothing has changed. Stop the query, and use a classic session of PySpark "
            f"4.2 or newer. {_NEW_CHECKPOINT}"
        )
    planned, commits = planned_and_committed(spark, place)
    if not commits:
        raise ConfigError(f"The query of {place} has committed no micro-batch. Start it once.")
    with reading(place):
        last, newest = max(commits), max(planned)
        rows, number = rows_of_state(spark, place), operator_number(spark, place)
        pinned, next_one = (offsets_in(planned[batch])[0] for batch in (last, newest))
        store, before = pinned[_STORE].rpartition(".")[2], int(pinned[PARTITIONS])
        next_partitions = int(next_one[PARTITIONS])
    operator = operator_of(rows[0][1]) if rows else None
    if operator is None:
        raise ConfigError(f"{place} holds no state of this package's operators.")
    if number is None:
        raise ConfigError(
            f"The state in {place} is from Spark 3.5. Start the query with this PySpark, let it "
            "commit a micro-batch, stop it, and call again. Nothing has changed."
        )
    if store != "RocksDBStateStoreProvider":
        raise ConfigError(
            f"The state in {place} is in {store}, and Spark can only give a RocksDB state store "
            f"other partitions. Nothing has changed. {_NEW_CHECKPOINT}"
        )
    if newest > last and next_partitions == before:
        raise unfinished(place, newest)
    if newest > last and next_partitions != partitions:
        raise ConfigError(
            f"An earlier call for {next_partitions} partitions was cut off at {place}. Repeat it "
            f"with {next_partitions}; then another number is possible."
        )
    if before == partitions:
        raise ConfigError(f"The state in {place} has {before} partitions already.")
    try:
        with in_format_of(spark, place):
            spark._streamingCheckpointManager.repartition(place, partitions)
    except Exception as error:
        change = (
            "The query does not start before you have repeated the call with this number."
            if last + 1 in log_entries(spark, place, "offsets")
            else "Nothing has changed."
        )
        cause = cause_of(str(error)).rstrip(".")
        raise ConfigError(
            f"Spark could not give {place} {partitions} partitions: {cause}. {change}"
        ) from error
    return Rescaling(place, last + 1, before, partitions, operator, len(rows))
