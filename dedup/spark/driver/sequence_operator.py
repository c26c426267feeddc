"""`dedup_by_sequence`: the operator for producers that number their records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import DataFrame

from dedup.catalog.definition import Definition, encoded_kind
from dedup.core.sequence import RANGES, Handling
from dedup.spark.driver import build, checks, columns
from dedup.spark.driver.derived_id import ColumnOrName, ColumnsOption
from dedup.spark.driver.stream_sources import check_clusters
from dedup.spark.executor.sequence_group import (
    SEQUENCE_OUTPUT_SCHEMA,
    sequence_batch,
    sequence_stream,
)
from dedup.spark.observations import sequence_observations
from dedup.spark.options import Duration, SequenceOptions
from dedup.spark.plan import Numbering, Plan

_NOTHING = Definition(expression="", kind="")


def dedup_by_sequence(
    producer: ColumnsOption,
    sequence: ColumnOrName,
    *,
    expire_after: Duration,
    epoch: ColumnOrName | None = None,
    partition: ColumnsOption = (),
    timestamp: ColumnOrName | None = None,
    source_partition: ColumnsOption = (),
    gaps: Handling = "emit",
    unknown: Handling = "emit",
    fenced: Handling = "drop",
    unnumbered: Handling = "emit",
    null_timestamps: Literal["error", "now", "emit", "drop"] = "error",
    verdict: str | None = None,
    idle_timeout: Duration | None = "10 minutes",
    max_future: Duration = "10 minutes",
    ranges: int = RANGES,
    max_producers: int = 100_000,
    accept_clock_jump: bool = False,
    max_shard_batch_bytes: int = 1 << 30,
    metrics: str = "dedup_sequence",
) -> SequenceOperator:
    """Return a transformation that lets each numbered record of a producer pass once.

    Use it as ``events.transform(dedup_by_sequence("device", "n", expire_after="7 days"))``, on a
    stream or a batch DataFrame. The result has the same columns, types and rows, without
    duplicates. It needs no catalog: Spark state holds about 60 bytes per producer, however many
    records it has sent, and 16 for each gap in its numbers, up to `ranges`.

    Parameters
    ----------
    producer : str, Column, or several
        Who numbers the records; the types are as for an ID of `dedup_by_id`.
    sequence : str or Column
        An integer: 0 for a producer's first record, one more for each record after it. After
        2^31 - 1 it may start again at 0 or count on: only its remainder by 2^31 counts.
    expire_after : str or timedelta
        The operator forgets a producer that is silent for longer. Without `timestamp` this is time
        in which the query runs: downtime does not count.
    epoch : str or Column, optional
        An integer >= 0 that a producer raises when it starts again at sequence 0. Records of
        earlier epochs are then fenced. Default: there is one epoch.
    partition : str, Column, or several
        What a producer numbers its records within (Kafka: topic and partition). Default: it numbers
        all of them together.
    timestamp : str or Column, optional
        A record's time, used only for `expire_after`. Default: processing time. Then a query that
        runs in single micro-batches (`availableNow`) never forgets a producer.
    source_partition, idle_timeout, max_future, null_timestamps, accept_clock_jump
        As in `dedup_by_id`; the first four need `timestamp`.
    gaps : {"emit", "drop", "error"}
        What becomes of new records that are out of order: earlier ones are missing, or they were
        missing themselves. ``"emit"``: they pass. ``"drop"``: they are dropped and not remembered,
        so the producer must send them again, in order, as to a broker; a record that is lost
        forever then blocks the rest of its epoch. ``"error"``: they stop the query.
    unknown : {"emit", "drop", "error"}
        What becomes of records that may be new or not: the first record of an unknown producer if
        it is not number 0, and records older than the memory. ``"emit"`` loses nothing. ``"drop"``
        accepts such a producer from its next record 0 on.
    fenced : {"drop", "emit", "error"}
        What becomes of records of an epoch that a newer one has ended, including those that were
        held back and arrive late. They do not keep their producer alive.
    unnumbered : {"emit", "drop", "error"}
        What becomes of records without a producer, epoch or sequence: null, or below 0. They need
        no timestamp.
    verdict : str, optional
        Name of a string column to add. Every row then passes, marked ``accept``, ``duplicate``,
        ``gap``, ``fenced``, ``unknown``, ``unnumbered`` or ``untimed``.
    ranges : int
        Unbroken ranges of numbers, the newest, to remember per producer: 1 to 255, 16 bytes each. A
        producer needs more than one only while some of its numbers are missing. Numbers below them
        are ``unknown``.
    max_producers : int
        Producers (per partition) that a stream's shard may remember; more stop the query.
    max_shard_batch_bytes : int
        Largest share of a micro-batch that one shard may hold in memory.
    metrics : str
        Name under which `DataFrame.observe` reports. It must be unique in a query, and so must
        the name with ``_pack`` appended.

    Returns
    -------
    SequenceOperator
        A callable from DataFrame to DataFrame.

    Raises
    ------
    ConfigError
        If an option, a column, the session or the query cannot work: here, or when you apply the
        transformation. The tasks stop the query if it started with other columns, or if there are
        more producers than `max_producers`.

    Notes
    -----
    Guarantee, per committed micro-batch, across task retries, executor loss, restarts from the
    checkpoint and rollback: of records with the same producer, partition, epoch and sequence at
    most one passes, except those whose verdict is ``unknown``, and ``fenced``, ``unnumbered`` or
    ``untimed`` if you let them pass. For every record dropped as a duplicate, one passed before.
    With the defaults every other record passes, except those of a fenced epoch.

    The operator remembers the newest `ranges` unbroken ranges of sequences per producer and
    partition, within 2^30 of the newest. With nothing missing that is one range, and it covers all.
    With more gaps at a time the oldest range is dropped, and late records below it are
    ``unknown``. The rule follows Kafka's idempotent producer (KIP-98, KIP-360), which remembers
    five batches.
    """
    return SequenceOperator(SequenceOptions(**locals()))


@dataclass(frozen=True, slots=True)
class SequenceOperator:
    """The transformation from DataFrame to DataFrame that `dedup_by_sequence` returns."""

    options: SequenceOptions

    def __repr__(self) -> str:
        return self.options.as_call("dedup_by_sequence")

    def __call__(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame de-duplicated; ConfigError if it cannot work."""
        options = self.options
        resolver = build.user_columns(df, options.verdict)
        checks.check_workers(df.sparkSession)
        if df.isStreaming:
            build.check_session(df, resolver, "dedup_by_sequence")
        plan = _plan(df, options, resolver)
        output = build.with_verdict(df, options.verdict, plan.emitted, plan.verdicts)
        return build.assemble(resolver.input(), plan, options.metrics, output=output, group=_GROUP)


_GROUP = build.GroupPass(
    sequence_stream, sequence_batch, SEQUENCE_OUTPUT_SCHEMA, sequence_observations
)


def plan_of_sequences(df: DataFrame, options: SequenceOptions) -> Plan:
    """Return the plan for the tasks, without a look at the session; errors as the operator's."""
    return _plan(df, options, build.user_columns(df, options.verdict))


def _plan(df: DataFrame, options: SequenceOptions, resolver: columns.Columns) -> Plan:
    producers = resolver.each(options.producer, "producer", columns.check_id_type)
    partitions = resolver.each(options.partition, "partition", columns.check_id_type)
    sources = resolver.each(options.source_partition, "source_partition", columns.check_id_type)
    check_clusters(df, partition=partitions, source_partition=sources)
    (sequence,) = resolver.each((options.sequence,), "sequence", columns.check_whole)
    epochs = resolver.each(
        () if options.epoch is None else (options.epoch,), "epoch", columns.check_whole
    )
    time = build.time_source(options.timestamp, resolver)
    made_of = [
        *(_made_of("producer", r.definition) for r in producers),
        *(_made_of("partition", r.definition) for r in partitions),
        *([_made_of("epoch", _of_any_width(r.definition)) for r in epochs] or ["no epoch"]),
        _made_of("sequence", _of_any_width(sequence.definition)),
        _made_of("timestamp", time.definition),
    ]
    return build.shared_plan(
        df,
        options,
        resolver,
        options.policy(),
        ids=[*producers, *partitions],
        sources=sources,
        time=time,
        emitted=options.rule().emitted(untimed=options.null_timestamps == "emit"),
        body_columns=len(df.columns),
        # A stream has as many as Spark pinned state partitions at its first start.
        shards=None if df.isStreaming else build.batch_shards(df.sparkSession),
        numbering=Numbering(
            producer_columns=tuple(r.column for r in producers),
            sequence_column=sequence.column,
            epoch_column=epochs[0].column if epochs else None,
            rule=options.rule(),
            made_of=tuple(made_of),
            stateful=df.isStreaming,
        ),
    )


def _made_of(option: str, definition: Definition) -> str:
    """Return an option's text; equal texts make equal values."""
    shown = replace(definition, kind=encoded_kind(definition.kind))
    return f"{option}={shown.text_beside(_NOTHING)}"


def _of_any_width(definition: Definition) -> Definition:
    """Return the definition of a number, which keeps its value in a wider type."""
    return replace(definition, kind="")
