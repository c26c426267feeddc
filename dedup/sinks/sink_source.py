"""A sink as a data source of Spark: it takes streams, and is neither read nor given batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dedup.errors import ConfigError
from dedup.sinks.stream_writer import SinkStreamWriter
from dedup.sinks.work import SinkWork


class SinkSource(DataSource):
    """A format of this package.

    Attributes
    ----------
    format_name : str
    to_read, for_batches : str
        What to use in its place, as the end of a sentence.
    """

    format_name: ClassVar[str]
    to_read: ClassVar[str]
    for_batches: ClassVar[str]

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @property
    def takes_complete(self) -> bool:
        """Whether the whole result of a query may come anew in each micro-batch.

        As outputMode ``complete`` has it: readers of Kafka, or a key of PostgreSQL, put the newest
        in its place.
        """
        return False

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format_name

    def schema(self) -> Any:
        """Refuse to be read."""
        raise ConfigError(f"Format {self.format_name} is a sink. To read {self.to_read}.")

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Refuse a batch."""
        raise ConfigError(
            f"Format {self.format_name} publishes the micro-batches of a stream, which have "
            f"numbers: use df.writeStream. For a batch use {self.for_batches}."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkStreamWriter:  # noqa: N802
        """Return the writer of a streaming query; Spark calls it on the driver."""
        if overwrite and not self.takes_complete:
            raise ConfigError(
                f"Format {self.format_name} adds the rows of each micro-batch to those before, and "
                "outputMode('complete') gives the whole result again each time, so that its rows "
                "would be there many times. Use outputMode('append'), with a watermark; or put the "
                "newest result in place of the one before, by a function for foreachBatch, or by "
                'format("dedup_postgres") in mode upsert.'
            )
        return SinkStreamWriter(self.work(schema))

    @abstractmethod
    def work(self, schema: StructType) -> SinkWork:
        """Return the work of the sink, when it is known to be able to do it.

        Raises
        ------
        ConfigError
            Saying what to change.
        """
