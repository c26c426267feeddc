"""`dedup check`: gathers what can be known of a query, and has it judged; rarely needs Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dedup.catalog.certificate import load_certificate, no_catalog
from dedup.catalog.root import Root
from dedup.catalog.timeouts import reach
from dedup.cli.check.command import CheckFlags
from dedup.cli.failures import OK, UNSAFE
from dedup.cli.flags import pairs
from dedup.cli.properties import read_properties
from dedup.cli.run.output_folder import Record, log_of, record_of
from dedup.cli.session import reading_session, stream_settings
from dedup.core.duration import duration_ms
from dedup.core.policy import default_lateness_ms
from dedup.core.sequence_metrics import SequenceMetrics
from dedup.errors import ConfigError, DedupError
from dedup.spark.driver.checkpoint_log import CheckpointLog, read_checkpoint
from dedup.spark.machine import machine_bytes, machine_cores, shuffle_partitions
from dedup.spark.options import BY_ID
from dedup.tools.check.facts import Facts, ProducerFacts, cores_of, retention
from dedup.tools.check.findings import Finding, Level
from dedup.tools.check.rules import advise
from dedup.tools.repair.opening import has_state
from dedup.tools.watch.health import TimedBatch, concerns
from dedup.tools.watch.query_log import QueryLog, read_logs

#: What `dedup run` gives Spark unless it is told otherwise.
_RUN = {"spark.master": "local[*]", "spark.driver.memory": "2g"}
_PARTITIONS = "spark.sql.shuffle.partitions"


def check(given: CheckFlags) -> tuple[int, dict[str, Any], list[Finding]]:
    """Look a query over; return the exit code, what ``--json`` prints, and the findings, in order.

    Raises
    ------
    ConfigError
        If there is no such query, or a flag cannot be read.
    StateError, CatalogError
        If the checkpoint or the certificate is damaged.
    """
    # Flags first: no look into a far-away checkpoint for a slip of the pen.
    facts = _flags(given)
    options = _pairs(given.source_option, "--source-option")
    checkpoint, catalog = given.checkpoint, given.catalog
    output = record_of(checkpoint)
    if output is not None:
        facts = of_run(facts, output)
        checkpoint, catalog = output.options["checkpoint"], catalog or output.options["catalog"]
    log = read_checkpoint(checkpoint)
    name = None
    if given.log is not None:
        logged = _told(log_of(given.log), log.query_id)
        name, facts = logged.name, _of_log(facts, logged)
        if facts.producers is not None:
            _check_flags(given, log.query_id)
    if given.query not in (None, log.query_id, name):
        raise ConfigError(
            f"{checkpoint} is the checkpoint of query {log.query_id}, not of --query {given.query}."
        )
    facts = _of_checkpoint(facts, log, options)
    if catalog is not None:
        facts = _of_catalog(facts, catalog, log, checkpoint)
    findings = advise(facts)
    broken = any(finding.level is Level.BREAKS for finding in findings)
    body = {
        "query_id": log.query_id,
        "name": name,
        "batch_id": log.batch_id,
        "status": "breaks" if broken else "ok",
        "findings": [finding.to_json() for finding in findings],
    }
    return (UNSAFE if broken else OK), body, findings


def _check_flags(given: CheckFlags, query_id: str) -> None:
    for flag in ("catalog", "horizon", "late"):
        if getattr(given, flag) is not None:
            raise ConfigError(
                f"Query {query_id} is one of dedup_by_sequence, which has no {flag}; leave "
                f"--{flag} out."
            )


def _flags(given: CheckFlags) -> Facts:
    settings = {} if given.properties is None else read_properties(given.properties, "--properties")
    conf = _pairs(given.conf, "--conf")
    settings |= conf
    strange = sorted(name for name in conf if not name.startswith("spark."))
    if strange:
        raise ConfigError(
            f"--conf {strange[0]} is no Spark setting; options of the source go to --source-option."
        )
    partitions = settings.get(_PARTITIONS)
    if partitions not in (None, "auto") and shuffle_partitions(partitions) is None:
        raise ConfigError(
            f"{_PARTITIONS}={partitions} is no whole number of at least 1; Spark refuses it."
        )
    retention_ms = None
    if given.kafka_retention is not None:
        retention_ms = retention(given.kafka_retention, option="--kafka-retention")
    return Facts(
        settings=settings,
        complete=given.properties is not None,
        horizon_ms=BY_ID["horizon"].check_flag(given.horizon),
        kafka_retention_ms=retention_ms,
        late=BY_ID["late"].check_flag(given.late),
        sink_options={
            name.lower(): value
            for name, value in _pairs(given.sink_option, "--sink-option").items()
        },
    )


def _pairs(texts: list[str] | None, flag: str) -> dict[str, str]:
    return {name: value.strip() for name, value in pairs(texts, flag).items()}


def of_run(facts: Facts, record: Record) -> Facts:
    """`dedup run` says itself what its options and settings are."""
    horizon_ms = duration_ms(record.rules["horizon"], option="horizon")
    lateness = record.rules["lateness"]
    event_time = record.options["timestamp"] is not None
    # Records of earlier releases lack it.
    stable = record.options.get("stable_timestamps", False)
    lateness_ms = default_lateness_ms(horizon_ms, stable_timestamps=stable) if event_time else 0
    if lateness is not None:
        lateness_ms = duration_ms(lateness, option="lateness")
    return replace(
        facts,
        settings=_RUN | stream_settings(record.shards) | dict(facts.settings),
        complete=True,
        shards=record.shards,
        horizon_ms=facts.horizon_ms or horizon_ms,
        lateness_ms=lateness_ms,
        late=facts.late or record.rules["late"],
        # Records of earlier releases lack it.
        guarantee=record.rules.get("guarantee"),
        event_time=event_time,
        by_source=bool(record.rules.get("source_partition")),
    )


def _told(folder: str, query_id: str) -> QueryLog:
    logs = [log for log in read_logs(folder) if log.query_id == query_id]
    if not logs or not logs[0].batches:
        raise ConfigError(
            f"--log {folder} tells nothing of query {query_id}: give the folder of its "
            "DedupListener(log=...)."
        )
    return logs[0]


def _of_log(facts: Facts, log: QueryLog) -> Facts:
    every = [batch for _, batch in log.batches]
    facts = replace(
        facts,
        shards=every[-1].shards,
        batch_records_max=max(batch.records_in for batch in every),
        batch_took_max_ms=max(batch.batch_ms for batch in every) or None,
        concerns=tuple(concerns([TimedBatch(*timed) for timed in log.batches])),
    )
    newest = every[-1]
    if isinstance(newest, SequenceMetrics):
        producers = ProducerFacts(
            expire_after_ms=newest.expire_after_ms,
            max_producers=newest.max_producers,
            fullest=newest.fullest_shard_producers,
            runs=len({batch.run_id for batch in every}),
            batches=len(every),
        )
        # Before the first timestamp nobody can tell.
        event_time = None if newest.newest_ms is None else not newest.by_query_time
        return replace(facts, producers=producers, event_time=event_time)
    batches = [batch for _, batch in log.of_ids]
    last = batches[-1]
    named = [name for batch in batches for name, _, _ in batch.slowest_sources]
    return replace(
        facts,
        horizon_ms=facts.horizon_ms or last.horizon_ms,
        lateness_ms=last.lateness_ms,
        # One clock for all has no name.
        by_source=any(named) if named else None,
        # Most micro-batches may not show it.
        guarantee=facts.guarantee
        or next((batch.guarantee for batch in reversed(batches) if batch.guarantee), None),
        event_time=True if named else None,
    )


def _of_checkpoint(facts: Facts, log: CheckpointLog, options: Mapping[str, str]) -> Facts:
    given = {name.lower(): value for name, value in options.items()}
    sources = log.sources and tuple(
        replace(source, options={**source.options, **given}) for source in log.sources
    )
    settings = facts.settings
    return replace(
        facts,
        pinned=log.pinned,
        state_partitions=log.state_partitions,
        checkpoint_format=log.checkpoint_format,
        kafka_sinks=log.kafka_sinks,
        sources=sources,
        cores=cores_of(settings, machine_cores()),
        machine_bytes=machine_bytes(),
    )


def _of_catalog(facts: Facts, where: str, log: CheckpointLog, checkpoint: str) -> Facts:
    root = Root(where)
    certificate = reach(root, lambda: load_certificate(root, log.query_id))
    # Micro-batches without records make no catalog, and no state either.
    if certificate is None and log.committed and _has_state(checkpoint):
        raise no_catalog(root, log.query_id)
    place = root.local_path("catalog.json")
    facts = replace(facts, catalog_local=None if place is None else str(place.parent))
    if certificate is None:
        return facts
    return replace(
        facts,
        shards=certificate.shards,
        event_time=certificate.timestamp_source != "processing time",
    )


def _has_state(checkpoint: str) -> bool:
    try:
        with reading_session() as session:
            return has_state(session, checkpoint)
    except DedupError:
        return True
