"""``format("dedup_files")``: the sink as a data source of Spark."""

from __future__ import annotations

from pyspark.sql.types import StructType

from dedup.sinks.files.options import FORMAT, files_options
from dedup.sinks.files.ready import ready
from dedup.sinks.files.work import FilesWork
from dedup.sinks.sink_source import SinkSource


class FilesSinkSource(SinkSource):
    """The format ``dedup_files``."""

    format_name = FORMAT
    to_read = "its output, use spark.read.parquet, json or csv"
    for_batches = "df.write.parquet"

    def work(self, schema: StructType) -> FilesWork:
        """Return the work, when columns and output have been looked at."""
        return ready(files_options(self.options), schema)
