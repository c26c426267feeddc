"""Send the rows of each verdict to a separate sink, within one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from dedup.core.admission import EVERY_VERDICT, GOES_ON
from dedup.errors import ConfigError
from dedup.sinks.foreach_batch import NamedSink, running_query, same_name
from dedup.sinks.options import located
from dedup.spark.job_tag import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: A function for ``foreachBatch``.
BatchFunction: TypeAlias = "Callable[[DataFrame, int], None]"


def split(
    df: DataFrame,
    *,
    unique: BatchFunction,
    duplicate: BatchFunction | None = None,
    late: BatchFunction | None = None,
    null_id: BatchFunction | None = None,
    untimed: BatchFunction | None = None,
    conflict: BatchFunction | None = None,
    gap: BatchFunction | None = None,
    fenced: BatchFunction | None = None,
    unknown: BatchFunction | None = None,
    unnumbered: BatchFunction | None = None,
) -> DataStreamWriter:
    """Return the writer of a query that sends the rows of each verdict to a separate sink.

    In ``split(marked, unique=orders, duplicate=copies).start()``, `marked` is a stream behind
    ``dedup_by_id(..., verdict="verdict")`` or `dedup_by_sequence`. `kafka_sink`, `postgres_sink`
    and the like return sinks such as `orders` and `copies`. The operator runs only once for each
    micro-batch, for any number of sinks.

    Parameters
    ----------
    df : DataFrame
        A stream with the verdict column. Other columns may differ from the operator's columns.
    unique : callable of (DataFrame, int)
        Gets the rows that the operator would emit if the option ``verdict`` were not set, except
        rows for whose verdict another parameter has a function. The rows lack the verdict column.
    duplicate, late, null_id, untimed, conflict : callable of (DataFrame, int), optional
    gap, fenced, unknown, unnumbered : the same, for verdicts of `dedup_by_sequence`
        Gets the rows of the verdict that the parameter names, with the verdict column. If there is
        no function for a verdict, the operator's options decide whether its rows go to `unique` or
        are dropped. You may give one function for several verdicts, including `unique`. It is then
        called once per micro-batch.

    Returns
    -------
    DataStreamWriter
        Set its trigger and name, and start it. If the functions are sinks of this package, the
        writer already has their ``checkpointLocation``.

    Raises
    ------
    ConfigError
        If `df` has no verdict column, if its operator never gives one of the verdicts, if two sinks
        of this package have the same name or different checkpoints, or if `df` is of Spark Connect
        and no function is a sink of this package.

    Notes
    -----
    Each sink of this package publishes each micro-batch once, even if the query is killed between
    two sinks. The sink `unique` publishes last. So if one of its rows is visible, the other sinks
    have published their part of the micro-batch. A function that is not a sink of this package runs
    at least once, as with ``foreachBatch``.
    """
    by_verdict = {
        "duplicate": duplicate,
        "late": late,
        "null_id": null_id,
        "untimed": untimed,
        "conflict": conflict,
        "gap": gap,
        "fenced": fenced,
        "unknown": unknown,
        "unnumbered": unnumbered,
    }
    column, goes_on, every = _verdict_column(df)
    if strange := [name for name, function in by_verdict.items() if function and name not in every]:
        raise ConfigError(
            f"{strange[0]}=: the operator of this stream has no such verdict. Its verdicts are "
            f"{', '.join(every)}."
        )
    functions = dict.fromkeys(goes_on, unique) | {
        name: f for name, f in by_verdict.items() if f is not None
    }
    passing = [name for name in every if functions.get(name) == unique]
    own = {name: function for name, function in functions.items() if function != unique}
    checkpoint = _checkpoint([unique, *own.values()])
    if is_connect(df) and checkpoint is None:
        raise ConfigError(
            "Under Spark Connect split finds its query by the checkpoint of a sink: give it at "
            "least one sink of this package.",
            remedy="foreach-batch-threads",
        )

    def route(rows: DataFrame, batch_id: int) -> None:
        from dedup.spark.driver.columns import named_column

        kept = rows.persist()
        try:
            # Read all rows before any sink begins, even if no sink reads anything. Spark commits
            # the operator's state only once all rows are read.
            kept.count()
            verdict = named_column(column)
            called: list[BatchFunction] = []
            for function in own.values():
                if function not in called:
                    called.append(function)
                    which = [name for name, other in own.items() if other == function]
                    function(kept.where(verdict.isin(which)), batch_id)
            unique(kept.where(verdict.isin(passing)).drop(column), batch_id)
        finally:
            kept.unpersist()

    def route_tagged(rows: DataFrame, batch_id: int) -> None:
        assert checkpoint is not None, "checked above"
        with running_query(rows, batch_id, located(checkpoint), "split"):
            route(rows, batch_id)

    writer = df.writeStream.foreachBatch(route_tagged if is_connect(df) else route)
    return writer if checkpoint is None else writer.option("checkpointLocation", checkpoint)


def _verdict_column(df: DataFrame) -> tuple[str, frozenset[str], list[str]]:
    """Return the verdict column's name, the verdicts whose rows pass, and all verdicts."""
    fields = [field for field in df.schema.fields if GOES_ON in field.metadata]
    if len(fields) != 1:
        raise ConfigError(
            f"The stream has {'several' if fields else 'no'} columns that an operator made "
            "for verdicts. Give the operator the option verdict, such as verdict='verdict', and "
            "call split on its result. Between them you may add and drop other columns, and rename "
            "this one."
        )
    metadata = fields[0].metadata
    return fields[0].name, frozenset(metadata[GOES_ON]), list(metadata[EVERY_VERDICT])


def _checkpoint(functions: Iterable[object]) -> str | None:
    sinks = {id(f): f for f in functions if isinstance(f, NamedSink)}.values()
    names = [sink.sink for sink in sinks]
    if twice := {name for name in names if names.count(name) > 1}:
        raise same_name(min(twice))
    # One folder can be spelled in several ways.
    checkpoints = {located(sink.checkpoint): sink.checkpoint for sink in sinks}
    if len(checkpoints) > 1:
        several = " and ".join(sorted(checkpoints.values()))
        raise ConfigError(f"The sinks of one query have one checkpoint; these have {several}.")
    return next(iter(checkpoints.values()), None)
