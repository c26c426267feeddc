"""A kind of sink, such as Kafka: what its format and its function for ``foreachBatch`` share."""

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
    """What a sink has published."""

    def to_json(self) -> dict[str, Any]:
        """Return the inspection as plain values, with times in ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkKind(Generic[O]):
    """One kind of sink: its format, and the public function that returns it for ``foreachBatch``.

    `parse` turns what the user gave into options, `prepare` checks options, columns and output and
    returns the work, and `inspect` returns what such a sink has published. `takes_complete` returns
    whether a sink of these options takes outputMode ``complete``, in which each micro-batch holds
    the query's whole result. A sink does if its readers can distinguish the newest result from
    older ones.
    """

    format_name: str
    function_name: str
    parse: Callable[[Mapping[str, str]], O]
    prepare: Callable[[O, StructType], SinkWork]
    inspect: Callable[[O, Progress | None], OutputInspection]
    takes_complete: Callable[[Mapping[str, str]], bool] = lambda options: False
