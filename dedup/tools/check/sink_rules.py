"""Rules about a Kafka sink that publishes in transactions: its readers, its markers, its time."""

from __future__ import annotations

from dedup.core.duration import format_ms
from dedup.tools.check.facts import Facts, whole_number
from dedup.tools.check.findings import Assessment, Takes, costs, fine, unknown

_TIMEOUT = "kafka.transaction.timeout.ms"
#: Kafka's default.
_TIMEOUT_MS = 60_000
#: The default of the brokers' transaction.max.timeout.ms.
_LONGEST_MS = 900_000


def sink_readers(facts: Facts) -> Assessment | None:
    """Readers of uncommitted records also see those of aborted transactions."""
    if not facts.kafka_sinks:
        return None
    return unknown(
        f"The query writes to Kafka in transactions (sink {', '.join(facts.kafka_sinks)}). Who "
        "reads the topic must read committed records alone, or sees records of aborted "
        "transactions as well, and records twice. The Java client, and so Spark's own source, "
        "reads uncommitted ones unless told otherwise; librdkafka reads committed ones. Whether "
        "yours do cannot be told from here.",
        "isolation.level=read_committed",
        Takes.OUTSIDE,
    )


def sink_markers(facts: Facts) -> Assessment | None:
    """The markers record what is published; they must never be deleted."""
    if not facts.kafka_sinks:
        return None
    topic = facts.sink_option("topic") or "TOPIC"
    markers = facts.sink_option("markers") or f"{topic}-markers"
    return unknown(
        f"Topic {markers} holds the markers that tell what is published. It must be compacted and "
        "nothing else (cleanup.policy=compact): where Kafka deletes from it, a restart is refused. "
        "The brokers are not asked here.",
        "kafka-configs.sh --bootstrap-server HOST:9092 --entity-type topics --entity-name "
        f"{markers} --describe --all",
        Takes.OUTSIDE,
    )


def sink_timeout(facts: Facts) -> Assessment | None:
    """A task that outlives its transaction is retried, and may never succeed."""
    if not facts.kafka_sinks:
        return None
    given = whole_number(facts.sink_option(_TIMEOUT))
    timeout_ms = given or _TIMEOUT_MS
    limit = f"{_TIMEOUT} is {format_ms(timeout_ms)}"
    if given is None:
        limit += f" (taken to be; else give --sink-option {_TIMEOUT}=MILLISECONDS)"
    took_ms = facts.batch_took_max_ms
    if took_ms is None:
        return unknown(
            f"{limit}; a task must be done within it. How long micro-batches take is not known. "
            "Give --log, the folder of DedupListener(log=...)."
        )
    took = f"the longest of the recent micro-batches took {took_ms / 1000:,.1f} s"
    if 2 * took_ms < timeout_ms:
        return fine(f"{limit}, and {took}: its transactions ended in time.")
    # Whole minutes, four times what was seen.
    wanted_ms = -(-4 * took_ms // 60_000) * 60_000
    change = f'.option("{_TIMEOUT}", {wanted_ms})'
    if wanted_ms > _LONGEST_MS:
        change += f"\n# and transaction.max.timeout.ms={wanted_ms} on every broker"
    return costs(
        f"{limit}, and {took}, more than half of it. A transaction is no longer than its "
        "micro-batch, but one that runs into the limit is aborted and its task starts again, so "
        "that a large micro-batch may never get through. Nothing is lost. Raise the limit, or make "
        "micro-batches smaller.",
        change,
    )
