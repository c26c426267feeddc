"""A Spark data source for a sink. It accepts streams, and rejects reads and batch writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from dedup.errors import ConfigError
from dedup.sinks.kind import SinkKind
from dedup.sinks.work import SinkWork, TaskResult, current_batch


class SinkSource(DataSource):
    """The format of one kind of sink. `source_of` makes a subclass for each kind."""

    kind: ClassVar[SinkKind[Any]]

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return cls.kind.format_name

    def schema(self) -> Any:
        raise self._only_streams()

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        raise self._only_streams()

    def _only_streams(self) -> ConfigError:
        return ConfigError(
            f"Format {self.name()} is a sink that publishes the micro-batches of a stream: use "
            "df.writeStream. To read the output, or to write a batch, use another format."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkStreamWriter:  # noqa: N802
        """Return the writer of a streaming query. Spark calls this method on the driver."""
        if overwrite and not self.kind.takes_complete(self.options):
            raise ConfigError(
                f"Format {self.name()} adds the rows of each micro-batch to those before, and "
                "outputMode('complete') gives the whole result again each time, so that its rows "
                "would be there many times. Use outputMode('append'), with a watermark. Or replace "
                "the result before by the newest one: in a function for foreachBatch, or with "
                'format("dedup_postgres") or format("dedup_mysql") in mode upsert.'
            )
        return SinkStreamWriter(self.kind.prepare(self.kind.parse(self.options), schema))


def source_of(kind: SinkKind[Any]) -> type[SinkSource]:
    return type(f"{kind.format_name}_source", (SinkSource,), {"kind": kind})


@dataclass(frozen=True, slots=True)
class _Done(WriterCommitMessage):
    """What a task sends to the driver through Spark."""

    result: TaskResult


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one query. It publishes the query's micro-batches."""

    def __init__(self, work: SinkWork) -> None:
        self._work = work

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batch, slot = current_batch(self._work.name)
        return _Done(self._work.run_task(batch, slot, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._work.run_driver([each.result for each in messages if isinstance(each, _Done)])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing. The sink deletes staged rows once the micro-batch is published.

        Spark also calls `abort` if `commit` failed halfway, so `abort` must not undo anything.
        """
