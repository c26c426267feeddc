"""The public function `custom_sink`, which makes a user's sink a function for ``foreachBatch``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from dedup.errors import ConfigError
from dedup.sinks.columns import refuse_twins
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.inspection import SinkInspection, inspection_of
from dedup.sinks.kind import SinkKind
from dedup.sinks.kit.slots import TransactionalWork
from dedup.sinks.kit.transactional import TransactionalSink
from dedup.sinks.kit.write_ahead import WriteAheadSink, WriteAheadWork, inspect_write_ahead
from dedup.sinks.options import ACCEPT, STAGING, SinkOptions, named, sink_values
from dedup.sinks.work import SinkWork
from dedup.spark.driver.checkpoint_log import Progress

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NAME = "custom"
OPTIONS = (STAGING, named(_NAME), *ACCEPT)


def custom_sink(
    sink: TransactionalSink[Any] | WriteAheadSink,
    *,
    checkpoint: str,
    name: str = _NAME,
    options: Mapping[str, str] | None = None,
) -> SinkFunction:
    """Return a function for ``foreachBatch`` that publishes each micro-batch in your own sink.

    Parameters
    ----------
    sink : TransactionalSink or WriteAheadSink
        An object of your own class. A `TransactionalSink` must pickle, because Spark sends it to
        the tasks.
    checkpoint : str
        The query's checkpoint location.
    name : str
        The sink's name, 1 to 100 letters, digits, dots, hyphens or underscores. It becomes part of
        the sink's markers and keys. Two sinks of one query need two names.
    options : mapping of str to str, optional
        ``accept.difference``, ``accept.lost.markers`` and ``staging``, as in other sinks.

    Raises
    ------
    ConfigError
        If `sink` is of another class or does not pickle, or if an option is unknown or invalid.

    Notes
    -----
    `inspect` of a `TransactionalSink` may be called while the query runs. It calls `read_marker`
    once in each of its transactions and then `rollback`, so it holds one lock at a time, for one
    read. If a transaction of the query holds the lock, `inspect` waits for its end as `read_marker`
    does, and raises the error of `read_marker` or `begin` if that gives up.
    """
    return SinkFunction.of(kind_of(sink, checkpoint), checkpoint, {"name": name}, options)


def kind_of(
    sink: TransactionalSink[Any] | WriteAheadSink, checkpoint: str
) -> SinkKind[SinkOptions]:
    work: Callable[[SinkOptions], SinkWork]
    inspect: Callable[[SinkOptions, Progress | None], SinkInspection]
    if isinstance(sink, TransactionalSink):
        sent = pickled(sink, "Spark has to send it to its tasks", "begin")
        identity = hashlib.blake2b(sent, digest_size=16).digest()
        work = transactional = partial(TransactionalWork, custom=sink, identity=identity)
        inspect = partial(_inspect, transactional)
    elif isinstance(sink, WriteAheadSink):
        work = partial(WriteAheadWork, sink=sink, checkpoint=checkpoint)
        inspect = inspect_write_ahead
    else:
        raise ConfigError(
            f"sink={sink!r:.80} must be an object of a subclass of TransactionalSink or "
            "WriteAheadSink."
        )

    def ready(options: SinkOptions, schema: StructType) -> SinkWork:
        refuse_twins(schema.names)
        sink.check(schema)
        return work(options)

    return SinkKind(
        format_name=_NAME,
        function_name="custom_sink",
        parse=lambda texts: SinkOptions(**sink_values(_NAME, texts, OPTIONS)),
        ready=ready,
        inspect=inspect,
    )


def pickled(sink: object, need: str, opens_in: str) -> bytes:
    try:
        return cloudpickle.dumps(sink)  # type: ignore[no-any-return, no-untyped-call]
    except Exception as error:
        raise ConfigError(
            f"{type(sink).__name__} does not pickle, and {need}: {error}. "
            f"Keep addresses in the object, and open connections in {opens_in}."
        ) from None


def _inspect(
    work: Callable[[SinkOptions], TransactionalWork],
    options: SinkOptions,
    progress: Progress | None,
) -> SinkInspection:
    if progress is None:
        raise ConfigError("A custom sink is inspected with the checkpoint of its query.")
    stored = work(options).slots(progress.query_id).all().values()
    return inspection_of((each.marker for each in stored), progress)
