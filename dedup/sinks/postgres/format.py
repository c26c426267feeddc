"""``format("dedup_postgres")``: the sink as a data source of Spark."""

from __future__ import annotations

from pyspark.sql.types import StructType

from dedup.sinks.foreach_batch import columns_of
from dedup.sinks.postgres.options import FORMAT, postgres_options
from dedup.sinks.postgres.work import PostgresWork, ready
from dedup.sinks.sink_source import SinkSource


class PostgresSinkSource(SinkSource):
    """The format ``dedup_postgres``."""

    format_name = FORMAT
    to_read = 'a table, use format("jdbc")'
    for_batches = 'df.write.format("jdbc")'

    @property
    def takes_complete(self) -> bool:
        """Whether a key tells which rows a new result takes the place of."""
        return "key" in self.options

    def work(self, schema: StructType) -> PostgresWork:
        """Return the work, when table and columns have been looked at."""
        return ready(postgres_options(self.options), columns_of(schema))
