"""``format("dedup_files")``: the sink as a data source of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dedup.errors import ConfigError
from dedup.files.sink.files_options import FORMAT, files_options
from dedup.files.sink.files_ready import ready
from dedup.sinks.stream_writer import SinkStreamWriter


class FilesSinkSource(DataSource):
    """The format ``dedup_files``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> Any:
        """Refuse to be read."""
        raise ConfigError(
            f"Format {FORMAT} is a sink. To read its output, use spark.read.parquet, json or csv."
        )

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Refuse a batch."""
        raise ConfigError(
            f"Format {FORMAT} publishes the micro-batches of a stream, which have numbers: use "
            "df.writeStream. For a batch use df.write.parquet."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; Spark calls it on the driver."""
        return SinkStreamWriter(ready(files_options(self.options), schema))
