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
from dedup.tools.repair.opening import checkpoint_place, reading, rows_of_state
from dedup.values.option import whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORE = "spark.sql.streaming.stateStore.providerClass"
_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_NEW_CHECKPOINT = (
    "Its number of partitions changes only with a new checkpoint, such as dedup catalog adopt "
    "makes, which forgets the newest IDs."
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
    and sinks. If the call is cut off, the query does not start until the call is repeated with the
    same number.

    Parameters
    ----------
    checkpoint
        Folder of the query's checkpoint. The query uses RocksDB as its state store.
    partitions : int
        1 or more. The operator's shards are divided among them.
    spark : SparkSession, optional
        A classic session of PySpark 4.2 or newer. Default: the active session, or a new session,
        which stays open.

    Raises
    ------
    ConfigError
        If PySpark is older or the session one of Spark Connect; if the folder is not the checkpoint
        of a query of this package, or its state is in another state store; if a micro-batch is
        unfinished, or the number unchanged. Nothing has changed then, unless the error says so.
    StateError
        If the state is from before the first release.

    Notes
    -----
    A query of `dedup_by_sequence` must then be given `shards`, the number that the result has.

    The call is Spark's own and experimental (SPARK-54346). Spark's own file sink does not survive
    the micro-batch that it uses up.
    """
    whole().check(partitions, "partitions")
    place = checkpoint_place(os.fspath(checkpoint))
    if spark is None:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()
    if not hasattr(spark, "_streamingCheckpointManager"):
        raise ConfigError(
            "Only PySpark 4.2 and newer can give a state other partitions, and not through Spark "
            "Connect. Nothing has changed. Stop the query, and use a classic session of PySpark "
            f"4.2 or newer. {_NEW_CHECKPOINT}"
        )
    with reading(place):
        planned, commits = _log(spark, place, "offsets"), _log(spark, place, "commits")
        rows = rows_of_state(spark, place)
    operator = operator_of(rows[0][1]) if rows else None
    if operator is None:
        raise ConfigError(f"{place} holds no state of this package's operators.")
    last = max(commits)
    settings = [offsets_in(planned[number])[0] for number in (last, max(planned))]
    before, next_one = (int(each[PARTITIONS]) for each in settings)
    if not settings[0][_STORE].endswith("RocksDBStateStoreProvider"):
        raise ConfigError(
            f"The state in {place} is in {settings[0][_STORE].rpartition('.')[2]}, and Spark can "
            "only give a RocksDB state store other partitions. Nothing has changed. "
            f"{_NEW_CHECKPOINT}"
        )
    if max(planned) > last and next_one not in (before, partitions):
        raise ConfigError(
            f"An earlier call for {next_one} partitions was cut off at {place}. Repeat it with "
            f"{next_one}; then another number is possible."
        )
    if max(planned) > last and next_one == before:
        raise ConfigError(
            f"Micro-batch {max(planned)} of {place} is unfinished. Start the query, let it commit "
            "this micro-batch (trigger availableNow), stop it, and call again. Nothing has changed."
        )
    if before == partitions:
        raise ConfigError(f"The state in {place} has {before} partitions already.")
    session = spark.newSession()
    # Spark takes the state store from the checkpoint, and this from the session.
    session.conf.set(_FORMAT, commits[last].split("\n")[0].removeprefix("v"))
    try:
        session._streamingCheckpointManager.repartition(place, partitions)
    except Exception as error:
        raise ConfigError(
            f"Spark could not give {place} {partitions} partitions: {cause_of(str(error))} Before "
            "the query starts, repeat the call with the same number."
        ) from error
    return Rescaling(place, last + 1, before, partitions, operator, len(rows))


def _log(spark: SparkSession, place: str, name: str) -> dict[int, str]:
    """Return the entries of one of Spark's logs by micro-batch."""
    from pyspark.sql import functions as F  # noqa: N812

    files = spark.read.text(f"{place}/{name}", wholetext=True)
    entries = files.select(F.input_file_name(), "value").collect()
    names = ((file.rpartition("/")[2], text) for file, text in entries)
    return {int(number): text for number, text in names if number.isdigit()}
