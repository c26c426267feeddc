"""`dedup check`: collects facts about a query and judges them, usually without starting Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rich.text import Text

from dedup.catalog.certificate import load_certificate, no_catalog
from dedup.cli.commands import Done
from dedup.cli.failures import OK, UNSAFE
from dedup.cli.findings import WIDTH, findings_lines, summary_line
from dedup.cli.flags import CheckFlags, pairs, read_properties
from dedup.cli.run.record import Record, log_of, record_of
from dedup.cli.session import reading_session, stream_settings
from dedup.cli.terminal import lines_width
from dedup.core.policy import default_lateness_ms
from dedup.core.sequence_metrics import SequenceMetrics
from dedup.errors import ConfigError, DedupError, StateError
from dedup.spark.driver.checkpoint_log import CheckpointLog, read_checkpoint
from dedup.spark.machine import machine_bytes, shuffle_partitions
from dedup.spark.options import BY_ID
from dedup.storage.root import Root
from dedup.storage.timeouts import reach
from dedup.tools.check.facts import Facts, cores_of, retention
from dedup.tools.check.findings import Level
from dedup.tools.check.rules import advise
from dedup.tools.repair.opening import has_state
from dedup.tools.watch.health import concerns
from dedup.tools.watch.query_log import QueryLog, read_logs
from dedup.values.duration import duration_ms

#: Settings that `dedup run` gives Spark by default.
_RUN = {"spark.master": "local[*]", "spark.driver.memory": "2g"}
_PARTITIONS = "spark.sql.shuffle.partitions"


def check(flags: CheckFlags) -> Done:
    # Check the flags first, to report a typo before a remote checkpoint is read.
    facts, options = _from_flags(flags), pairs(flags.source_option, "--source-option")
    checkpoint, catalog = flags.checkpoint, flags.catalog
    record = record_of(checkpoint)
    if record is not None:
        facts = of_run(facts, record)
        checkpoint, catalog = record.options["checkpoint"], catalog or record.options["catalog"]
    log, name = read_checkpoint(checkpoint), None
    if flags.log is not None:
        logs = [one for one in read_logs(log_of(flags.log)) if one.query_id == log.query_id]
        if not logs or not logs[0].batches:
            raise ConfigError(
                f"--log {flags.log} has no micro-batch of query {log.query_id}: give the folder of "
                "its DedupListener(log=...)."
            )
        name, facts = logs[0].name, _with_log(facts, logs[0], flags)
        if record is not None:  # the command itself chooses the size of its batches
            facts = replace(facts, row_bytes=0)
    if flags.query not in (None, log.query_id, name):
        raise ConfigError(
            f"{checkpoint} is the checkpoint of query {log.query_id}, not of --query {flags.query}."
        )
    facts = _with_checkpoint(facts, log, options)
    if catalog is not None:
        facts = _with_catalog(facts, catalog, log, checkpoint)
    findings = advise(facts)
    broken = any(finding.level is Level.BREAKS for finding in findings)
    body = {
        "query_id": log.query_id,
        "name": name,
        "batch_id": log.batch_id,
        "status": "breaks" if broken else "ok",
        "findings": [finding.to_json() for finding in findings],
    }
    since = "not started yet" if log.batch_id is None else f"as of micro-batch {log.batch_id}"
    lines: list[str | Text] = [
        f"query {log.query_id}{f' ({name})' if name else ''}, {since}",
        *findings_lines(findings, lines_width(WIDTH), fold=not flags.every),
        summary_line(findings),
    ]
    return Done(UNSAFE if broken else OK, body, lines)


def _from_flags(flags: CheckFlags) -> Facts:
    settings = {} if flags.properties is None else read_properties(flags.properties)
    for name, value in pairs(flags.conf, "--conf").items():
        if not name.startswith("spark."):
            raise ConfigError(
                f"--conf {name} is not a Spark setting; options of the source go to "
                "--source-option."
            )
        settings[name] = value.strip()
    partitions = settings.get(_PARTITIONS)
    if partitions not in (None, "auto") and shuffle_partitions(partitions) is None:
        raise ConfigError(f"{_PARTITIONS}={partitions} must be a positive integer.")
    keep, sink_options = flags.kafka_retention, pairs(flags.sink_option, "--sink-option")
    return Facts(
        settings=settings,
        complete=flags.properties is not None,
        horizon_ms=BY_ID["horizon"].check_flag(flags.horizon),
        kafka_retention_ms=None if keep is None else retention(keep, option="--kafka-retention"),
        late=BY_ID["late"].check_flag(flags.late),
        sink_options={name.lower(): value.strip() for name, value in sink_options.items()},
    )


def of_run(facts: Facts, record: Record) -> Facts:
    """Return the facts with the options and settings that `dedup run` recorded in its output."""
    horizon_ms = duration_ms(record.rules["horizon"], option="horizon")
    lateness = record.rules["lateness"]
    event_time = record.options["timestamp"] is not None
    # Records of earlier releases lack stable_timestamps, guarantee and source_partition.
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
        guarantee=record.rules.get("guarantee"),
        event_time=event_time,
        by_source=bool(record.rules.get("source_partition")),
    )


def _with_log(facts: Facts, log: QueryLog, flags: CheckFlags) -> Facts:
    every = [batch for _, batch in log.batches]
    newest = every[-1]
    facts = replace(
        facts,
        shards=newest.shards,
        batch_records_max=max(batch.records_in for batch in every),
        row_bytes=max(batch.row_bytes for batch in every),
        concerns=tuple(concerns(log.batches)),
        fallbacks=tuple(newest.fallbacks()),
    )
    if isinstance(newest, SequenceMetrics):
        for flag in ("catalog", "horizon", "late"):
            if getattr(flags, flag) is not None:
                raise ConfigError(
                    f"Query {log.query_id} uses dedup_by_sequence, which has no {flag}; leave "
                    f"--{flag} out."
                )
        return replace(
            facts,
            expire_after_ms=newest.expire_after_ms,
            runs=len({batch.run_id for batch in every}),
            batches=len(every),
            # Before the first timestamp we cannot tell event time from processing time.
            event_time=None if newest.newest_ms is None else not newest.by_query_time,
        )
    batches = [batch for _, batch in log.of_ids]
    last = batches[-1]
    sources = [name for batch in batches for name, _, _ in batch.slowest_sources]
    guarantees = [batch.guarantee for batch in reversed(batches) if batch.guarantee]
    return replace(
        facts,
        horizon_ms=facts.horizon_ms or last.horizon_ms,
        lateness_ms=last.lateness_ms,
        # If all records share one clock, the name of the source partition is empty.
        by_source=any(sources) if sources else None,
        # Many micro-batches do not show the guarantee, so take the first that does.
        guarantee=facts.guarantee or next(iter(guarantees), None),
        event_time=True if sources else None,
    )


def _with_checkpoint(facts: Facts, log: CheckpointLog, options: Mapping[str, str]) -> Facts:
    overrides = {name.lower(): value.strip() for name, value in options.items()}
    sources = log.sources and tuple(
        replace(source, options={**source.options, **overrides}) for source in log.sources
    )
    return replace(
        facts,
        pinned=log.pinned,
        state_partitions=log.state_partitions,
        kafka_sinks=log.kafka_sinks,
        sources=sources,
        cores=cores_of(facts.settings),
        machine_bytes=machine_bytes(),
    )


def _with_catalog(facts: Facts, where: str, log: CheckpointLog, checkpoint: str) -> Facts:
    root = Root(where)
    certificate = reach(root, lambda: load_certificate(root, log.query_id))
    # Micro-batches without records create neither a catalog nor state.
    if certificate is None and log.committed and _has_state(checkpoint):
        raise no_catalog(root, log.query_id)
    place = root.local_path("certificate.json")
    facts = replace(facts, catalog_local=None if place is None else str(place.parent))
    if certificate is None:
        return facts
    event_time = certificate.timestamp_source != "processing time"
    return replace(facts, shards=certificate.shards, event_time=event_time)


def _has_state(checkpoint: str) -> bool:
    try:
        with reading_session() as session:
            return has_state(session, checkpoint)
    except StateError:
        raise
    except DedupError:
        return True
