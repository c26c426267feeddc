"""``format("dedup_delta")`` and ``format("dedup_iceberg")``: the sinks as data sources of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dedup.errors import ConfigError
from dedup.lakehouse.lake_function import ready
from dedup.lakehouse.lake_options import DELTA, ICEBERG, lake_options
from dedup.sinks.stream_writer import SinkStreamWriter


class _LakeSource(DataSource):
    """A format whose micro-batches go to a table."""

    FORMAT: ClassVar[str]

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.FORMAT

    def schema(self) -> Any:
        """Refuse to be read."""
        raise ConfigError(
            f"Format {self.FORMAT} is a sink. Read its tables with any reader of the format, such "
            "as deltalake, pyiceberg, DuckDB or Spark's own connector."
        )

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Refuse a batch."""
        raise ConfigError(
            f"Format {self.FORMAT} publishes the micro-batches of a stream, which have numbers: "
            "use df.writeStream. Batches are for the libraries of the format."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; Spark calls it on the driver."""
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        return SinkStreamWriter(ready(lake_options(self.FORMAT, self.options), columns))


class DeltaSinkSource(_LakeSource):
    """The format ``dedup_delta``."""

    FORMAT = DELTA


class IcebergSinkSource(_LakeSource):
    """The format ``dedup_iceberg``."""

    FORMAT = ICEBERG
