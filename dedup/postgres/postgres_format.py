"""``format("dedup_postgres")``: the sink as a data source of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dedup.errors import ConfigError
from dedup.postgres.postgres_options import FORMAT, postgres_options
from dedup.postgres.postgres_work import ready
from dedup.sinks.foreach_batch import columns_of
from dedup.sinks.stream_writer import SinkStreamWriter


class PostgresSinkSource(DataSource):
    """The format ``dedup_postgres``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> Any:
        """Refuse to be read."""
        raise ConfigError(f'Format {FORMAT} is a sink. To read a table, use format("jdbc").')

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Refuse a batch."""
        raise ConfigError(
            f"Format {FORMAT} publishes the micro-batches of a stream, which have numbers: use "
            'df.writeStream. For a batch use df.write.format("jdbc").'
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; Spark calls it on the driver."""
        return SinkStreamWriter(ready(postgres_options(self.options), columns_of(schema)))
