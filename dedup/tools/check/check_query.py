"""Check the options and settings of a query before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.catalog.certificate import has_learned, load_certificate
from dedup.catalog.compatibility import check_fit
from dedup.catalog.layout import certificate_path
from dedup.catalog.similar_queries import similar_queries, similar_query_warning
from dedup.catalog.successor import refuse_closed
from dedup.errors import ConfigError
from dedup.spark.driver.build import Operator
from dedup.spark.driver.checkpoint_log import Source, find_checkpoint
from dedup.spark.driver.checks import a_stream_needs_a_catalog
from dedup.spark.driver.plans import plan_of, user_columns
from dedup.spark.driver.stream_sources import stream_sources_of
from dedup.spark.executor.layout import missing_catalog, of_plan
from dedup.spark.machine import machine_bytes
from dedup.spark.options import Options, SequenceOptions
from dedup.spark.plan import Plan
from dedup.storage.root import Root
from dedup.storage.timeouts import reach
from dedup.tools.check.facts import Facts, cores_of, retention
from dedup.tools.check.findings import Finding, Level, in_order
from dedup.tools.check.kafka_topics import ask_brokers
from dedup.tools.check.rules import advise
from dedup.tools.repair.opening import has_state


def check_query(
    df: DataFrame,
    operator: Operator[Options] | Operator[SequenceOptions],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    kafka_retention: str | timedelta | None = None,
    sink: tuple[str, Mapping[str, object]] | Callable[[DataFrame, int], None] | None = None,
    written: DataFrame | None = None,
) -> list[Finding]:
    """Return what breaks the guarantee or costs speed in a query that is about to start.

    ``check_query(events, dedup_by_id(...))`` says for each setting whether it is right, and if not,
    what to change. The function starts and writes nothing. With `checkpoint` it also raises the
    errors that would stop the query in its first micro-batch: the ID, timestamp or number of shards
    differs from the query's first start, or the catalog is missing. A checkpoint also keeps other
    settings from the first start, which ``dedup check CHECKPOINT`` reports.

    Parameters
    ----------
    df : DataFrame
        The stream that the operator will be applied to.
    operator : Operator
        Result of `dedup_by_id` or `dedup_by_sequence`.
    checkpoint : str or PathLike, optional
        Value of the query's option ``checkpointLocation``: a local path, or a URI that `pyarrow.fs`
        knows. For `dedup_by_sequence` a finding says that its state is not read here.
    kafka_retention : str or timedelta, optional
        Time that Kafka keeps the topic's records (``retention.ms``), such as ``"7 days"``, or
        ``"forever"`` for -1. Default: the brokers' answer, if it comes within ten seconds.
    sink : tuple of str and mapping, or callable, optional
        A format of this package and its options, such as ``("dedup_files", {"path": "orders"})``,
        or the result of a function such as `postgres_sink`. Like ``start()``, the check covers the
        sink's options, columns, and server or folder. It may create an empty folder, or a table or
        topic of the sink. `checkpoint` replaces the option ``checkpointLocation``.
    written : DataFrame, optional
        Input of `sink`, if the query changes columns after the operator. Default: the operator's
        output.

    Returns
    -------
    list of Finding
        Findings, the worst first, with `level`, `rule` and `evidence`. If something should be
        changed, `change` says what, and `takes` says when the change takes effect.

    Raises
    ------
    ConfigError
        If `kafka_retention` is invalid, `operator` is not an operator, or the query does not fit
        its checkpoint or its sink.
    CatalogError
        If the checkpoint has a state and its catalog is missing or damaged.

    Notes
    -----
    On Spark Connect the sources' options are unknown, and the findings state that.
    """
    if not isinstance(operator, Operator):
        raise ConfigError(
            f"{operator!r:.80} is not an operator. Give the result of dedup_by_id or "
            "dedup_by_sequence."
        )
    crash_risk = None
    if sink is not None:
        # Import late, because `dedup.sinks.formats` imports every format.
        from dedup.sinks.formats import prepared_sink

        verdict = operator.options.verdict
        more = [] if verdict is None else [T.StructField(verdict, T.StringType(), False)]
        output = T.StructType([*df.schema.fields, *more]) if written is None else written.schema
        crash_risk = prepared_sink(sink, output, checkpoint).crash_risk
    spark = df.sparkSession
    options, policy = operator.options, operator.options.policy()
    settings = {name: value for name, value, *_ in spark.sql("SET").collect()}
    cores = cores_of(settings)
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
        max_shard_batch_bytes=options.checked("max_shard_batch_bytes"),
        sources=sources,
        kafka_retention_ms=retention_ms,
        horizon_ms=policy.horizon_ms,
        lateness_ms=policy.lateness_ms,
        late=policy.late,
        guarantee=policy.guarantee,
        event_time=policy.event_time,
        by_source=bool(options.source_partition),
        window_delay_ms=policy.window_delay_ms,
        unstable_id=_unstable_id(df, options),
        crash_risk=crash_risk,
    )
    if isinstance(options, SequenceOptions):
        return _of_sequences(facts, options, checkpoint)
    place = None if options.root is None else options.root.local_path("certificate.json")
    findings = advise(
        replace(
            facts,
            shards=options.shards or facts.partitions,
            shared_local=options.shared_local,
            catalog_local=None if place is None else str(place.parent),
        )
    )
    if checkpoint is not None:
        findings.append(check_resume(df, options, os.fspath(checkpoint)))
    return in_order(findings)


def check_resume(df: DataFrame, options: Options, checkpoint: str) -> Finding:
    """Return where the query resumes. The driver makes the checks that tasks would make.

    Raises ConfigError if the catalog was made with another ID, timestamp or number of shards, or if
    the checkpoint belongs to another kind of query. Raises CatalogError if the checkpoint has a
    state and the catalog is missing or damaged.
    """
    root = options.root
    if root is None:
        raise a_stream_needs_a_catalog()
    plan = plan_of(user_columns(df, options), options)
    log = find_checkpoint(checkpoint)
    if log is None:
        return _first_start(root, plan, checkpoint)
    certificate = reach(root, lambda: load_certificate(root, log.query_id))
    refuse_closed(root, log.query_id)
    if certificate is None:
        # The first micro-batch with records writes state and catalog. Empty ones write neither.
        begun = log.committed and has_state(df.sparkSession, checkpoint)
        if begun or has_learned(log.query_id):
            raise missing_catalog(root, log.query_id)
        return _first_start(root, plan, checkpoint)
    planned = replace(certificate, **of_plan(plan), shards=plan.shards or certificate.shards)
    where = root.url(certificate_path(log.query_id))
    check_fit(certificate, planned, where=where, accepted=plan.accepted)
    begins = "begins" if log.batch_id is None else f"resumes after micro-batch {log.batch_id}"
    return Finding(
        rule="checkpoint",
        level=Level.FINE,
        evidence=f"Query {log.query_id} {begins}. Its catalog was made with the same ID, timestamp "
        "and shards.",
    )


def _first_start(root: Root, plan: Plan, checkpoint: str) -> Finding:
    evidence = f"{checkpoint} has no state yet: this is a first start, and no ID is known."
    id_columns = of_plan(plan)["id_columns"]
    others = reach(root, lambda: similar_queries(root, id_columns))
    if others:
        evidence = f"{evidence} {similar_query_warning(root, id_columns, others)}"
    level = Level.UNKNOWN if others else Level.FINE
    return Finding(rule="checkpoint", level=level, evidence=evidence)


def _of_sequences(
    facts: Facts, options: SequenceOptions, checkpoint: str | os.PathLike[str] | None
) -> list[Finding]:
    findings = advise(replace(facts, expire_after_ms=options.policy().horizon_ms))
    if checkpoint is not None:
        evidence = (
            "The checkpoint's state keeps the names of producer, partition, epoch, sequence and "
            "timestamp. This check does not read the state. If they differ, the tasks of the first "
            "micro-batch stop the query, and nothing is lost."
        )
        findings.append(Finding(rule="checkpoint", level=Level.UNKNOWN, evidence=evidence))
    return in_order(findings)


def _unstable_id(df: DataFrame, options: Options | SequenceOptions) -> str | None:
    try:
        plan_of(user_columns(df, options), options)
    except ConfigError as error:
        # Spark or the operator raises any other error when the caller applies the operator.
        return error.text if error.remedy == "unstable-id" else None
    return None


def _completed(
    spark: SparkSession, sources: tuple[Source, ...]
) -> tuple[tuple[Source, ...], int | None]:
    """Ask Kafka's brokers about the sources, and return completed sources and longest retention."""
    completed, retentions_ms = [], []
    for source in sources:
        if source.kind == "kafka" and (answer := ask_brokers(spark, source)):
            source, retention_ms = answer
            retentions_ms.append(retention_ms)
        completed.append(source)
    return tuple(completed), max(retentions_ms, default=None)
