"""New IDs merged into a Delta table, micro-batch by micro-batch: the table is memory and output.

The recipe of Delta's manual ("Data deduplication when writing into Delta tables"): a micro-batch,
freed of repeats of its own, is merged by ID, inserts alone, with a condition on the partition
column so that days beyond the horizon are not looked at. delta-rs merges: of Delta's own jars none
runs on PySpark 4.3.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.harness import HORIZON_MS

_TABLE = "table"


def with_day(events: DataFrame, folder: Path) -> DataFrame:
    """The rows, and the column that the table is partitioned by."""
    return events.withColumn("day", fn.to_date("ts"))


def into_delta(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    """Each micro-batch is merged; the merge runs in the driver, on all cores."""
    from deltalake import DeltaTable  # of the extra "bench", which tests do without

    path = str(folder / _TABLE)

    def merge(rows: DataFrame, number: int) -> None:
        source = rows.dropDuplicates(["event_id"]).toArrow()
        if not DeltaTable.is_deltatable(path):
            DeltaTable.create(path, source.schema, partition_by=["day"])
        (
            DeltaTable(path)
            .merge(source, condition(source), source_alias="new", target_alias="known")
            .when_not_matched_insert_all()
            .execute()
        )

    return writer.foreachBatch(merge)


def condition(source: pa.Table) -> str:
    """Which row of the table is a copy of one of these."""
    oldest = pc.min(source["day"]).as_py() - timedelta(milliseconds=HORIZON_MS)
    return f"known.event_id = new.event_id AND known.day >= DATE '{oldest}'"


def rows_of(folder: Path) -> int:
    """How many rows the table has."""
    from deltalake import DeltaTable

    files = pa.table(DeltaTable(folder / _TABLE).get_add_actions())
    return int(pc.sum(files["num_records"]).as_py())
