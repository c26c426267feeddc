"""Makes the golden data that later versions must be able to read.

    PYSPARK_PYTHON=.venv/bin/python .venv/bin/python -m tests.golden.make_golden tests/golden/v2

Run it before a format changes, into a new folder; the old ones stay. ``checkpoint`` and ``catalog``
are of a query that continues from there; ``objects`` has a catalog with every kind of object in
it, and the state rows that belong to it. With ``--objects`` behind the folder that is all: where
the state row has not changed. With ``--sequences`` it is the checkpoint of a query with
`dedup_by_sequence` alone, and its state rows (``tests/golden/sequences-v1``). With ``--capped`` it
is the state row and the backup of a shard that forgets IDs early (``tests/golden/capped-v2``).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from dedup import dedup_by_id, dedup_by_sequence
from dedup.catalog.backup import write_backup
from dedup.core.sequence_state import SequenceState
from dedup.storage.root import Root
from tests.damage.world import World
from tests.support.shard_driver import EVENT, Rec, drive

ROWS, BATCHES = 1500, 6
HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000
OPTIONS: dict[str, Any] = {
    "horizon": "3 hours",
    "lateness": "10 minutes",
    "bucket_length": "1 hour",
}


def new_ids(first_batch: int, last_batch: int) -> list[str]:
    """IDs that these micro-batches let through: all but the tenths that repeat the last hour's."""
    values = range(first_batch * ROWS, (last_batch + 1) * ROWS)
    return [f"golden-{v}" for v in values if v < ROWS or v % 10]


def run(spark: SparkSession, target: Path, output: str, until_batch: int) -> int:
    """Continue from the checkpoint until a micro-batch is done; the last one that was."""
    v = F.col("value")
    number = F.when((v % 10 == 0) & (v >= ROWS), v - ROWS + 1).otherwise(v)
    events = ticks(spark).select(F.concat(F.lit("golden-"), number).alias("id"), "timestamp")
    unique = events.transform(
        dedup_by_id(
            "id",
            timestamp="timestamp",
            catalog=str(target / "catalog"),
            state_budget_bytes=32 << 10,
            **OPTIONS,
        )
    )
    return go_on(unique, target, output, until_batch)


def ticks(spark: SparkSession) -> DataFrame:
    """Numbers from 0 on, so many a micro-batch, each an hour later."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", 2)
        .option("startTimestamp", START_MS)
        .option("advanceMillisPerBatch", HOUR_MS)
        .load()
    )


def go_on(rows: DataFrame, target: Path, output: str, until_batch: int) -> int:
    """Run a query until a micro-batch is done; return the last one that was."""
    query = (
        rows.writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", str(target / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )
    while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < until_batch:
        time.sleep(0.1)
    query.stop()
    if (failed := query.exception()) is not None:
        raise failed
    return max(int(path.name) for path in (target / "checkpoint" / "commits").glob("[0-9]*"))


def numbered_records(batch: int) -> list[tuple[str, int, int]]:
    """Producer, epoch and number of a micro-batch's records: a tenth are copies of the last hour's.

    Copies come from another producer than their originals. So one has a hole at every second
    number, more than are remembered.
    """
    values = range(batch * ROWS, (batch + 1) * ROWS)
    numbers = [v - ROWS + 1 if v % 10 == 0 and v >= ROWS else v for v in values]
    return [(f"golden-{v % 5}", 0, v // 5) for v in numbers]


def run_sequences(spark: SparkSession, target: Path, output: str, until_batch: int) -> int:
    """The same as `run` for numbered records, all of which pass with their verdicts."""
    v = F.col("value")
    number = F.when((v % 10 == 0) & (v >= ROWS), v - ROWS + 1).otherwise(v)
    records = ticks(spark).select(
        F.concat(F.lit("golden-"), number % 5).alias("producer"),
        F.floor(number / 5).alias("number"),
        "timestamp",
    )
    judged = records.transform(
        dedup_by_sequence(
            "producer", "number", timestamp="timestamp", expire_after="3 hours", verdict="verdict"
        )
    )
    return go_on(judged, target, output, until_batch)


def write_objects(target: Path) -> None:
    """A catalog with one of every kind of object that we write, and its state rows."""
    world = World(target, digested_shards=frozenset({1}))
    for shard, state in world.states.items():
        (target / f"state-{shard}.bin").write_bytes(state.to_bytes())


def write_capped(target: Path) -> None:
    """The state row and the backup of a shard with more IDs than `max_live_ids`."""
    driver = drive(EVENT, max_live_ids=5, lateness_ms=10, state_budget_bytes=200)
    for batch in range(6):
        driver.feed(
            [Rec(b"%d" % n, 10 * batch + n % 10) for n in range(20 * batch, 20 * batch + 8)]
        )
    write_backup(Root(target), "capped", 0, driver.state)
    (target / "state-0.bin").write_bytes(driver.state.to_bytes())


def main() -> None:
    target = Path(sys.argv[1]).resolve()
    shutil.rmtree(target, ignore_errors=True)
    if "--capped" in sys.argv:
        write_capped(target)
        return
    sequences = "--sequences" in sys.argv
    if not sequences:
        write_objects(target / "objects")
    if "--objects" in sys.argv:
        return
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as output:
        made = run_sequences if sequences else run
        last_batch = made(spark, target, output, BATCHES - 1)
    if sequences:
        table = spark.read.format("statestore").load(str(target / "checkpoint"))
        for (row,) in table.select("value.groupState.shard_state").collect():
            shard, _ = SequenceState.from_bytes(bytes(row)).shard
            (target / f"state-{shard}.bin").write_bytes(row)
    (target / "made.json").write_text(
        json.dumps({"last_batch": last_batch, "pyspark": spark.version}) + "\n"
    )
    spark.stop()


if __name__ == "__main__":
    main()
