"""`dedup_by_sequence`: the operator for producers that number their records."""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from dedup.catalog.certificate import SECRET_BYTES
from dedup.catalog.compatibility import Accepted
from dedup.catalog.definition import Definition, encoded_kind
from dedup.core.sequence import RANGES, SEQUENCE_VERDICTS, Handling
from dedup.spark.driver import build, checks, columns
from dedup.spark.driver.derived_id import ColumnOrName, ColumnsOption
from dedup.spark.driver.stream_sources import check_clusters
from dedup.spark.executor.group import STATE_SCHEMA
from dedup.spark.executor.pack import pack
from dedup.spark.executor.sequence_group import (
    SEQUENCE_OUTPUT_SCHEMA,
    sequence_batch,
    sequence_stream,
)
from dedup.spark.executor.unpack import unpack
from dedup.spark.options import Duration, SequenceOptions
from dedup.spark.plan import Numbering, Plan
from dedup.spark.sequence_observations import sequence_observations

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
    """A transformation that lets each numbered record of a producer pass once.

    Use it as ``events.transform(dedup_by_sequence("device", "n", expire_after="7 days"))``, on a
    stream or a batch DataFrame. The result has the same columns, types and rows, without
    duplicates. There is no catalog: what is remembered of a producer is in Spark state, some 60
    bytes however many records it has sent, and 16 for each hole in its numbers, up to `ranges`.

    Parameters
    ----------
    producer : str, Column, or several
        Who numbers the records: types as of an ID of `dedup_by_id`.
    sequence : str or Column
        An integer: 0 for a producer's first record, one more for each record after it. After
        2^31 - 1 it may begin again at 0, or count on: its remainder by 2^31 is what counts.
    expire_after : str or timedelta
        A producer that nothing was heard of for longer than this is forgotten. Without `timestamp`
        it is time in which the query runs: downtime does not count.
    epoch : str or Column, optional
        An integer from 0 on that a producer raises when it begins anew, at sequence 0. Records of
        earlier epochs are then fenced. Default: there is one epoch.
    partition : str, Column, or several
        What a producer numbers its records within (Kafka: topic and partition). Default: it numbers
        all of them together.
    timestamp : str or Column, optional
        A record's time, for `expire_after` alone. Default: processing time, by which a query that
        runs in single micro-batches (`availableNow`) forgets nobody.
    source_partition, idle_timeout, max_future, null_timestamps, accept_clock_jump
        As in `dedup_by_id`; the first four with `timestamp` alone.
    gaps : {"emit", "drop", "error"}
        What becomes of new records that are out of order: some before them are missing, or they are
        such as were missing. ``"emit"``: they go on. ``"drop"``: they do not, and are not
        remembered, so that the producer has to send them again, in order, as to a broker; the first
        record that is lost for ever then ends what goes on of its epoch. ``"error"``: they stop the
        query.
    unknown : {"emit", "drop", "error"}
        What becomes of records that may be new or not: the first of a producer that nothing is
        known of, where it is not number 0, and records older than what is remembered. ``"emit"``
        loses nothing. ``"drop"``: such a producer is taken from its next record 0 on.
    fenced : {"drop", "emit", "error"}
        What becomes of records of an epoch that a newer one has ended, such as were held back
        and come late among them. They are not signs of life of their producer.
    unnumbered : {"emit", "drop", "error"}
        What becomes of records without a producer, epoch or sequence: null, or below 0. They need
        no timestamp.
    verdict : str, optional
        Name of a string column to add; then every row goes on, marked ``accept``, ``duplicate``,
        ``gap``, ``fenced``, ``unknown``, ``unnumbered`` or ``untimed``.
    ranges : int
        Unbroken ranges of numbers, the newest, that are remembered of a producer: 1 to 255, 16
        bytes each. A producer needs more than one only while some of its numbers are missing. What
        lies below them is ``unknown``.
    max_producers : int
        Producers (of a partition each) that a stream's shard may remember; more stop the query.
    max_shard_batch_bytes : int
        Largest share of a micro-batch that one shard may hold in memory.
    metrics : str
        Name under which `DataFrame.observe` reports; unique in a query, as is this name with
        ``_pack`` behind it.

    Returns
    -------
    SequenceOperator
        A callable from DataFrame to DataFrame.

    Raises
    ------
    ConfigError
        If an option, a column, the session or the query cannot work: here, or when the
        transformation is applied. Other columns than the query was begun with, and more producers
        than `max_producers`, stop the query.

    Notes
    -----
    Guarantee, per committed micro-batch, across task retries, executor loss, restarts from the
    checkpoint and rollback: of records with the same producer, partition, epoch and sequence at
    most one goes on, but for those whose verdict is ``unknown``, and ``fenced``, ``unnumbered`` or
    ``untimed`` where you let them go on; every record dropped as a duplicate has one that went on
    before it; and with the options' defaults every other record goes on, but for those of a fenced
    epoch.

    Of each producer and partition the newest `ranges` unbroken ranges of sequences are remembered,
    within 2^30 of the newest: with nothing missing that is one range, and covers all. With more
    holes at a time the oldest range gives way, and what comes late below it is ``unknown``. It
    follows the idempotent producer's rule of Kafka (KIP-98, KIP-360), which remembers five batches.
    """
    return SequenceOperator(SequenceOptions(**locals()))


@dataclass(frozen=True, slots=True)
class SequenceOperator:
    """A transformation from DataFrame to DataFrame, as `dedup_by_sequence` makes it."""

    options: SequenceOptions

    def __repr__(self) -> str:
        return self.options.as_call("dedup_by_sequence")

    def __call__(self, df: DataFrame) -> DataFrame:
        """Return the DataFrame de-duplicated.

        Raises
        ------
        ConfigError
            If a column, the session or the query cannot work.
        """
        options = self.options
        resolver = build.user_columns(df, options.verdict)
        checks.check_workers(df.sparkSession)
        if df.isStreaming:
            build.check_session(df, resolver, "dedup_by_sequence")
        plan = _plan(df, options, resolver)
        output = build.with_verdict(df, options.verdict, plan.emitted, SEQUENCE_VERDICTS)
        return build.assemble(
            resolver.input(),
            plan,
            options.metrics,
            output=output,
            first=pack,
            last=unpack,
            group=_GROUP,
        )


_GROUP = build.GroupPass(
    stream=sequence_stream,
    batch=sequence_batch,
    output=SEQUENCE_OUTPUT_SCHEMA,
    state=STATE_SCHEMA,
    observations=sequence_observations,
)


def plan_of_sequences(df: DataFrame, options: SequenceOptions) -> Plan:
    """Return the plan for the tasks, without a look at the session; errors as the operator's."""
    return _plan(df, options, build.user_columns(df, options.verdict))


def _plan(df: DataFrame, options: SequenceOptions, resolver: columns.Columns) -> Plan:
    body_columns = len(df.columns)
    producers = [resolver.resolve(column, "producer") for column in options.producer]
    partitions = [resolver.resolve(column, "partition") for column in options.partition]
    sources = [resolver.resolve(column, "source_partition") for column in options.source_partition]
    for option, found in (
        ("producer", producers), ("partition", partitions), ("source_partition", sources),
    ):  # fmt: skip
        for resolved in found:
            columns.check_id_type(resolved, option)
    check_clusters(df, partition=partitions, source_partition=sources)
    sequence = resolver.resolve(options.sequence, "sequence")
    epoch = None if options.epoch is None else resolver.resolve(options.epoch, "epoch")
    columns.check_whole(sequence, "sequence")
    if epoch is not None:
        columns.check_whole(epoch, "epoch")
    ids = [*producers, *partitions]
    time = build.time_source(options.timestamp, resolver, ids)
    policy = options.policy()
    numbering = Numbering(
        producer_columns=tuple(r.column for r in producers),
        sequence_column=sequence.column,
        epoch_column=None if epoch is None else epoch.column,
        rule=options.rule(),
        made_of=(
            *(_made_of("producer", r.definition) for r in producers),
            *(_made_of("partition", r.definition) for r in partitions),
            "no epoch" if epoch is None else _made_of("epoch", _of_any_width(epoch.definition)),
            _made_of("sequence", _of_any_width(sequence.definition)),
            _made_of("timestamp", time.definition or Definition(expression=time.text, kind="")),
        ),
        stateful=df.isStreaming,
    )
    spark = df.sparkSession
    return Plan(
        id_columns=tuple((r.column, r.name, r.kind.simpleString()) for r in ids),
        id_definitions=tuple(r.definition for r in ids),
        time_column=time.column,
        time_source=time.text,
        time_definition=time.definition or Definition(expression=time.text, kind=""),
        accepted=Accepted(),
        id_time=None,
        now_column=resolver.add(F.current_timestamp()) if policy.event_time else None,
        source_columns=tuple(r.column for r in sources),
        order_columns=(),
        user_columns=len(df.columns),
        body_columns=body_columns,
        handling=options.handling,
        emitted=options.rule().emitted(untimed=options.null_timestamps == "emit"),
        max_future_ms=options.max_future_ms,
        # A stream's are as many as Spark pinned state partitions at its birth.
        shards=None if df.isStreaming else build.batch_shards(spark),
        policy=replace(policy, source_columns=tuple(r.name for r in sources)),
        root=None,
        cache_dir=None,
        cache_bytes=0,
        max_shard_batch_bytes=options.max_shard_batch_bytes,
        start_id=str(uuid.uuid4()),
        secret=secrets.token_bytes(SECRET_BYTES),
        bodies=build.who_writes_bodies(df),
        numbering=numbering,
    )


def _made_of(option: str, definition: Definition) -> str:
    """Return an option in words that are the same wherever it makes the same values."""
    shown = replace(definition, kind=encoded_kind(definition.kind))
    return f"{option}={shown.text_beside(_NOTHING)}"


def _of_any_width(definition: Definition) -> Definition:
    """Return the definition of a number, which is the same in a wider type."""
    return replace(definition, kind="")
