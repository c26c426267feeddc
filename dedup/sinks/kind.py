"""Kinds of sinks, such as Kafka. A kind has a format and a function for ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dedup.sinks.options import SinkOptions
from dedup.sinks.work import SinkWork
from dedup.spark.driver.checkpoint_log import Progress

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

O = TypeVar("O", bound=SinkOptions)  # noqa: E741


class OutputInspection(Protocol):
    """A report of what a sink has published."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values, with times in ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkKind(Generic[O]):
    """One kind of sink.

    Users choose the kind by its format, or by the public function that returns a sink for
    ``foreachBatch``. `parse` turns the user's options into checked options. `prepare` checks
    columns and output, and returns the sink's work, as `ready` makes it. `inspect` returns what a
    sink of this kind has published.

    `takes_complete` returns whether a sink with these options supports outputMode ``complete``. In
    that mode each micro-batch holds the query's whole result, so the sink's readers must be able to
    distinguish the newest result from older results.
    """

    format_name: str
    function_name: str
    parse: Callable[[Mapping[str, str]], O]
    ready: Callable[[O, StructType], SinkWork]
    inspect: Callable[[O, Progress | None], OutputInspection]
    takes_complete: Callable[[Mapping[str, str]], bool] = lambda options: False

    def prepare(self, options: O, schema: StructType) -> SinkWork:
        """Return the work for a stream. Raises ConfigError if its columns do not fit the sink."""
        from dedup.spark.driver.columns import check_carried

        check_carried(schema)
        return self.ready(options, schema)
