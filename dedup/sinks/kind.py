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
        """Return plain values, times as ISO 8601."""


def _never(options: Mapping[str, str]) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkKind(Generic[O]):
    """One kind of sink.

    Parameters
    ----------
    format_name : str
        For ``writeStream.format``.
    function_name : str
        The public function that returns a sink of this kind for ``foreachBatch``.
    parse : callable
        Turns what the user gave into the sink's options, or raises ConfigError.
    prepare : callable
        Checks options, columns and output, and returns the sink's work, or raises ConfigError.
    inspect : callable
        Returns what a sink with these options has published.
    to_read, for_batches : str
        What to use instead of this format, as the end of a sentence.
    takes_complete : callable
        Whether a sink of these options takes outputMode ``complete``, in which each micro-batch has
        the whole result of the query. Only if readers can distinguish the newest result from older
        ones.
    """

    format_name: str
    function_name: str
    parse: Callable[[Mapping[str, str]], O]
    prepare: Callable[[O, StructType], SinkWork]
    inspect: Callable[[O, Progress | None], OutputInspection]
    to_read: str
    for_batches: str
    takes_complete: Callable[[Mapping[str, str]], bool] = _never
