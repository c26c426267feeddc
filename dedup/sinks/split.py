"""The verdicts of a query, each to a sink of its own, within one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dedup.core.admission import EVERY_VERDICT, GOES_ON
from dedup.errors import ConfigError
from dedup.sinks.foreach_batch import NamedSink, same_name
from dedup.sinks.options import located

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
    """Return the writer of a query that sends the rows of each verdict to a sink of their own.

    ``split(marked, unique=orders, duplicate=copies).start()``, where `marked` is a stream behind
    ``dedup_by_id(..., verdict="verdict")``, or `dedup_by_sequence` so, and `orders` and `copies`
    are such as `kafka_sink` and `postgres_sink` return. The operator runs once for a micro-batch,
    whatever the number of sinks.

    Parameters
    ----------
    df : DataFrame
        A stream with the verdict column, which other columns may have been added to or dropped
        beside.
    unique : callable of (DataFrame, int)
        Takes the rows that the operator would let pass without a verdict column, but for those
        that have a function of their own here; without the verdict column.
    duplicate, late, null_id, untimed, conflict : callable of (DataFrame, int), optional
    gap, fenced, unknown, unnumbered : the same, of `dedup_by_sequence`
        Takes the rows of that verdict, with the verdict column. Without it they go to `unique` if
        the operator's options say that they go on, and nowhere if not. One function may be given
        for several verdicts, and is called once then; so may that of `unique`.

    Returns
    -------
    DataStreamWriter
        To be given trigger and name, and started. Where the functions are sinks of this package,
        it has their ``checkpointLocation`` already.

    Raises
    ------
    ConfigError
        If `df` has no verdict column, or its operator no such verdict, or if it is no stream or one
        of Spark Connect, or if two sinks of this package have one name or several checkpoints.

    Notes
    -----
    Each sink of this package has each micro-batch once, whatever is killed between two of them.
    `unique` comes last: where a row of it is visible, the other sinks have their part of the
    micro-batch. Any other function runs at least once, as with ``foreachBatch`` itself.
    """
    given = {
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
    for option, function in {"unique": unique, **given}.items():
        if function is not None and not callable(function):
            raise ConfigError(
                f"{option}={function!r} is no function of a DataFrame and a micro-batch's number, "
                "such as kafka_sink(...) or postgres_sink(...) returns."
            )
    if not df.isStreaming:
        raise ConfigError("split sends the micro-batches of a stream; this DataFrame is a batch.")
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            "split works on classic Spark alone: under Spark Connect a foreachBatch function does "
            "not know its query, which the operator refuses. Write the marked stream with a format "
            "(dedup_kafka, dedup_postgres, dedup_files, dedup_delta, dedup_iceberg), and read the "
            "verdicts apart from there.",
            remedy="foreach-batch-threads",
        )
    column, goes_on, every = _verdict_column(df)
    if strange := [name for name, function in given.items() if function and name not in every]:
        raise ConfigError(
            f"{strange[0]}=: the operator of this stream gives no such verdict. Its verdicts are "
            f"{', '.join(every)}."
        )
    default = dict.fromkeys(goes_on, unique)
    functions = default | {name: f for name, f in given.items() if f is not None}
    passing = tuple(name for name in every if functions.get(name) == unique)
    own = {name: function for name, function in functions.items() if function != unique}
    routes = _Routes(column, passing, own, unique)
    writer = df.writeStream.foreachBatch(routes)
    checkpoint = _checkpoint([unique, *own.values()])
    return writer if checkpoint is None else writer.option("checkpointLocation", checkpoint)


@dataclass(frozen=True, slots=True)
class _Routes:
    """Function for ``foreachBatch``; the parameters are those of `split`, settled."""

    column: str
    passing: tuple[str, ...]
    own: Mapping[str, BatchFunction]
    unique: BatchFunction

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        from dedup.spark.driver.columns import named_column

        kept = rows.persist()
        try:
            # To its end before any sink begins, and also where a sink reads nothing: Spark commits
            # the operator's state only then.
            kept.count()
            verdict = named_column(self.column)
            taken: list[BatchFunction] = []
            for function in self.own.values():
                if function not in taken:
                    taken.append(function)
                    which = [name for name, other in self.own.items() if other == function]
                    function(kept.where(verdict.isin(which)), batch_id)
            self.unique(kept.where(verdict.isin(*self.passing)).drop(self.column), batch_id)
        finally:
            kept.unpersist()


def _verdict_column(df: DataFrame) -> tuple[str, frozenset[str], list[str]]:
    """Return the verdict column's name, the verdicts whose rows go on, and all that there are."""
    found = [field for field in df.schema.fields if GOES_ON in field.metadata]
    if len(found) != 1:
        raise ConfigError(
            f"The stream has {'several' if found else 'no'} columns that an operator made "
            "for verdicts: give it the option verdict, such as verdict='verdict', and let split "
            "follow it; columns may be added and dropped between them, this one only renamed."
        )
    told = found[0].metadata
    return found[0].name, frozenset(told[GOES_ON]), list(told[EVERY_VERDICT])


def _checkpoint(functions: list[BatchFunction]) -> str | None:
    sinks = {id(f): f for f in functions if isinstance(f, NamedSink)}.values()
    names = [sink.sink for sink in sinks]
    if twice := {name for name in names if names.count(name) > 1}:
        raise same_name(min(twice))
    # One folder may be written in several ways.
    checkpoints = {located(sink.checkpoint): sink.checkpoint for sink in sinks}
    if len(checkpoints) > 1:
        several = " and ".join(sorted(checkpoints.values()))
        raise ConfigError(f"The sinks of one query have one checkpoint; these have {several}.")
    return next(iter(checkpoints.values()), None)
