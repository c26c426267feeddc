"""``format("dedup_delta")`` and ``format("dedup_iceberg")``: the sinks as data sources of Spark."""

from __future__ import annotations

from pyspark.sql.types import StructType

from dedup.sinks.foreach_batch import columns_of
from dedup.sinks.lakehouse.function import ready
from dedup.sinks.lakehouse.options import DELTA, ICEBERG, lake_options
from dedup.sinks.lakehouse.work import LakeWork
from dedup.sinks.sink_source import SinkSource


class _LakeSource(SinkSource):
    """A format whose micro-batches go to a table."""

    to_read = (
        "its tables, use any reader of the table's format, such as deltalake, pyiceberg, DuckDB or "
        "Spark's own connector"
    )
    for_batches = "the libraries of the table's format"

    def work(self, schema: StructType) -> LakeWork:
        """Return the work, when table and columns have been looked at."""
        return ready(lake_options(self.format_name, self.options), columns_of(schema))


class DeltaSinkSource(_LakeSource):
    """The format ``dedup_delta``."""

    format_name = DELTA


class IcebergSinkSource(_LakeSource):
    """The format ``dedup_iceberg``."""

    format_name = ICEBERG
