"""`check_query`: a query's options and settings looked over before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession

from dedup.errors import ConfigError
from dedup.spark.driver.build import Operator, plan_of, with_verdict
from dedup.spark.driver.checks import local_cores
from dedup.spark.driver.sequence_operator import SequenceOperator, plan_of_sequences
from dedup.spark.driver.stream_sources import stream_sources_of
from dedup.spark.machine import machine_bytes
from dedup.spark.options import SequenceOptions
from dedup.spark.stream_source import Source
from dedup.tools.check.facts import Facts, ProducerFacts, cores_of, retention
from dedup.tools.check.findings import Finding, Level, in_order
from dedup.tools.check.kafka_topics import ask_brokers
from dedup.tools.check.resume import check_going_on
from dedup.tools.check.rules import advise


def check_query(
    df: DataFrame,
    operator: Operator | SequenceOperator,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    kafka_retention: str | timedelta | None = None,
    sink: tuple[str, Mapping[str, object]] | Callable[[DataFrame, int], None] | None = None,
    written: DataFrame | None = None,
) -> list[Finding]:
    """Return what breaks the guarantee or costs speed in a query that is about to start.

    ``check_query(events, dedup_by_id(...))`` says of each setting whether it is right, and if not,
    what to change. It starts nothing, and writes nothing. With `checkpoint` it also refuses, before
    the start, what would stop the query in its first micro-batch: another ID, timestamp or number
    of shards than it was born with, or a catalog that is not there. Some other settings stay those
    of a query's first start; ``dedup check CHECKPOINT`` knows these.

    Parameters
    ----------
    df : DataFrame
        The stream that the operator is to be applied to.
    operator : Operator or SequenceOperator
        What `dedup_by_id` or `dedup_by_sequence` returned.
    checkpoint : str or PathLike, optional
        What the query's option ``checkpointLocation`` will name: a local path, or a URI that
        `pyarrow.fs` knows. Of `dedup_by_sequence` a finding says that it cannot be read here.
    kafka_retention : str or timedelta, optional
        How long Kafka keeps the topic's records (``retention.ms``), such as ``"7 days"``;
        ``"forever"`` for -1. Default: the brokers are asked, for ten seconds at most.
    sink : tuple of str and mapping, or callable, optional
        A format of this package and its options, such as ``("dedup_files", {"path": "orders"})``,
        or what a function such as `postgres_sink` returned. Its options, the columns, and its
        server or folder are then checked as they would be after ``start()``, which may make an
        empty folder, or a table or topic of the sink. `checkpoint` stands in for the option
        ``checkpointLocation``.
    written : DataFrame, optional
        What goes to `sink`, where the query changes columns behind the operator. Default: what the
        operator returns.

    Returns
    -------
    list of Finding
        Those that matter most first. Each has `level`, `rule`, `evidence` and, where something is
        to be changed, `change` and `takes`.

    Raises
    ------
    ConfigError
        If `kafka_retention` cannot be read, the operator is another one, or the query does not fit
        its checkpoint or its sink.
    CatalogError
        If the checkpoint has a memory whose catalog is missing or damaged.

    Notes
    -----
    On Spark Connect the sources' options are unknown, and findings say so.
    """
    if not isinstance(operator, (Operator, SequenceOperator)):
        raise ConfigError(
            f"{operator!r:.80} is no operator: give what dedup_by_id or dedup_by_sequence returned."
        )
    if sink is not None:
        # That module imports every format; this one imports none.
        from dedup.sinks.formats import check_sink

        output = with_verdict(df, operator.options.verdict, (), ())
        check_sink(sink, output if written is None else written.schema, checkpoint)
    spark = df.sparkSession
    options, policy = operator.options, operator.options.policy()
    settings = _Settings(spark)
    cores = cores_of(settings, local_cores(spark))
    retention_ms = None
    if kafka_retention is not None:
        retention_ms = retention(kafka_retention, option="kafka_retention")
    sources = stream_sources_of(df)
    if sources is not None:
        sources, broker_retention_ms = _completed(spark, sources)
        retention_ms = retention_ms or broker_retention_ms
    facts = Facts(
        settings=settings,
        complete=True,
        spark_version=spark.version,
        cores=cores,
        machine_bytes=machine_bytes(),
        max_shard_batch_bytes=options.max_shard_batch_bytes,
        sources=sources,
        kafka_retention_ms=retention_ms,
        horizon_ms=policy.horizon_ms,
        lateness_ms=policy.lateness_ms,
        late=policy.late,
        guarantee=policy.guarantee,
        event_time=policy.event_time,
        by_source=bool(options.source_partition),
        does_not_last=_does_not_last(df, operator),
    )
    if isinstance(operator, SequenceOperator):
        return _of_sequences(facts, operator.options, checkpoint)
    options = operator.options
    place = None if options.root is None else options.root.local_path("catalog.json")
    findings = advise(
        replace(
            facts,
            shards=options.shards or facts.partitions,
            shared_local=options.shared_local,
            catalog_local=None if place is None else str(place.parent),
        )
    )
    if checkpoint is not None:
        findings.append(check_going_on(df, operator, os.fspath(checkpoint)))
    return findings


def _of_sequences(
    facts: Facts, options: SequenceOptions, checkpoint: str | os.PathLike[str] | None
) -> list[Finding]:
    producers = ProducerFacts(
        expire_after_ms=options.policy().horizon_ms, max_producers=options.max_producers
    )
    findings = advise(replace(facts, producers=producers))
    if checkpoint is not None:
        evidence = (
            "With which producer, partition, epoch, sequence and timestamp this checkpoint was "
            "begun is in its state, which is not read here. The tasks of the first micro-batch "
            "refuse others, and nothing is taken or lost then."
        )
        findings.append(Finding(rule="checkpoint", level=Level.UNKNOWN, evidence=evidence))
    return in_order(findings)


def _does_not_last(df: DataFrame, operator: Operator | SequenceOperator) -> str | None:
    try:
        if isinstance(operator, SequenceOperator):
            plan_of_sequences(df, operator.options)
        else:
            plan_of(df, operator.options)
    except ConfigError as error:
        # What else is wrong is told when the operator is applied.
        return error.text if error.remedy == "unstable-id" else None
    return None


def _completed(
    spark: SparkSession, sources: tuple[Source, ...]
) -> tuple[tuple[Source, ...], int | None]:
    """Return the sources with what Kafka's brokers say of them, and the longest retention."""
    completed, retentions_ms = [], []
    for source in sources:
        if source.kind == "kafka" and (answer := ask_brokers(spark, source.options, source.topics)):
            partitions = source.partitions or answer.partitions
            source = replace(source, topics=answer.names, partitions=partitions)
            retentions_ms.append(answer.retention_ms)
        completed.append(source)
    return tuple(completed), max(retentions_ms, default=None)


class _Settings(Mapping[str, str]):
    """The session's settings, those of the cluster among them, with Spark's defaults."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getitem__(self, name: str) -> str:
        try:
            value = self._spark.conf.get(name)
        except Exception:  # Connect and classic raise different classes
            raise KeyError(name) from None
        if value is None:
            raise KeyError(name)
        return str(value)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
