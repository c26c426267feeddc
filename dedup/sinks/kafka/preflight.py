"""What the driver asks the cluster before a sink writes anything, so that bad news come at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dedup.errors import ConfigError
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import check_known
from dedup.sources.kafka.cluster import Cluster, Topic, may, missing_rights

#: Settings of a topic of markers. Compaction keeps the newest marker of each slot for ever; small
#: segments are compacted soon, so that the log stays short to read.
MARKER_SETTINGS = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "segment.bytes": str(16 << 20),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
#: Enough that the transactions of different slots rarely hold back each other's readers.
MARKER_PARTITIONS = 32
_INSYNC = "min.insync.replicas"
_MAX_TIMEOUT = "transaction.max.timeout.ms"
_MAX_BYTES = "max.message.bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the cluster told before the start.

    Parameters
    ----------
    partitions : mapping of str to int
        Of each topic that is written to.
    max_message_bytes : mapping of str to int
        Largest record that each of these topics takes, where the user may know.
    marker_partitions : int or None
        Of the topic of markers; None where there is none.
    made_markers : bool
        Whether that topic was made now.
    max_timeout_ms : int or None
        The longest ``transaction.timeout.ms`` that the brokers take; None where it is not known.
    notes : tuple of str
        What could not be checked, and why that may matter, as sentences.
    """

    partitions: Mapping[str, int]
    max_message_bytes: Mapping[str, int]
    marker_partitions: int | None = None
    made_markers: bool = False
    max_timeout_ms: int | None = None
    notes: tuple[str, ...] = ()


def check_sink(
    settings: ClientSettings,
    topics: Iterable[str],
    marker_topic: str | None = None,
    transaction_timeout_ms: int | None = None,
) -> Preflight:
    """Return what the cluster tells of a sink's topics, and make the topic of its markers.

    Parameters
    ----------
    settings : ClientSettings
    topics : iterable of str
        Topics that are known before the start; none where a column of each record names its topic.
    marker_topic : str, optional
        Made where it is not there. None for a sink without transactions.
    transaction_timeout_ms : int, optional
        Default: the option's, where there are markers.

    Raises
    ------
    ConfigError
        If librdkafka does not take the options, no server answers, credentials are refused, a
        topic is missing or may not be written to, the topic of markers could lose them, or
        transactions may not last as long as they are asked to; each with what to do.
    MissingExtraError
        If confluent-kafka is not installed.
    """
    check_known(settings, transactional=marker_topic is not None)
    cluster = Cluster(settings)
    broker_id = cluster.broker_ids()[0]
    targets = [_target(cluster, name) for name in topics]
    sizes = {topic.name: cluster.topic_settings(topic.name) for topic in targets}
    found = Preflight(
        partitions={topic.name: topic.partitions for topic in targets},
        max_message_bytes={
            name: int(config[_MAX_BYTES]) for name, config in sizes.items() if config is not None
        },
    )
    if marker_topic is None:
        return found
    notes: list[str] = []
    max_timeout_ms = _max_timeout(
        cluster, broker_id, transaction_timeout_ms or settings.transaction_timeout_ms, notes
    )
    markers, made = _markers(cluster, marker_topic, targets, notes)
    return replace(
        found,
        marker_partitions=markers.partitions,
        made_markers=made,
        max_timeout_ms=max_timeout_ms,
        notes=tuple(notes),
    )


def _target(cluster: Cluster, name: str) -> Topic:
    """Return a topic that is there and may be written to."""
    found = cluster.topic(name)
    if found is None:
        raise ConfigError(
            f"There is no topic {name!r} at {cluster.settings.servers}, or this user may not see "
            "it. Make it: kafka-topics.sh --bootstrap-server HOST:9092 --create --topic "
            f"{name} --partitions N --replication-factor 3"
        )
    _check_rights(found, "WRITE")
    return found


def _check_rights(topic: Topic, *wanted: str) -> None:
    missing = missing_rights(topic, wanted)
    if missing:
        raise ConfigError(
            f"This user may not {' and '.join(o.lower() for o in missing)} topic {topic.name!r}: "
            f"{may(topic.name, *missing)}"
        )


def _max_timeout(cluster: Cluster, broker_id: int, timeout_ms: int, notes: list[str]) -> int | None:
    config = cluster.broker_settings(broker_id)
    if config is None or _MAX_TIMEOUT not in config:
        notes.append(
            f"The brokers do not tell this user their {_MAX_TIMEOUT}; where it is below "
            f"kafka.transaction.timeout.ms={timeout_ms}, the first task fails and says so."
        )
        return None
    longest_ms = int(config[_MAX_TIMEOUT])
    if timeout_ms > longest_ms:
        raise ConfigError(
            f"Option {cluster.settings.option('transaction.timeout.ms')}={timeout_ms} is above "
            f"what the brokers allow, {_MAX_TIMEOUT}={longest_ms}. Lower it, or raise that in the "
            "server.properties of every broker."
        )
    return longest_ms


def _markers(
    cluster: Cluster, name: str, targets: list[Topic], notes: list[str]
) -> tuple[Topic, bool]:
    """Return the topic of markers, and whether it was made now."""
    found = cluster.topic(name)
    made = found is None
    if found is None:
        # As safe as the records themselves; -1 is the cluster's default (KIP-464).
        replicas = max((topic.replicas for topic in targets), default=-1)
        settings = MARKER_SETTINGS | _insync(cluster, targets)
        refused = cluster.make_topic(
            name, partitions=MARKER_PARTITIONS, replicas=replicas, settings=settings
        )
        found = cluster.topic(name)
        if found is None:
            raise ConfigError(
                f"The topic of markers {name!r} is not there and could not be made"
                f"{f': {refused}' if refused else ''}. Make it as a user who may: "
                f"{creation(name, settings)}"
            )
    _check_rights(found, "READ", "WRITE")
    config = cluster.topic_settings(name)
    if config is None:
        notes.append(
            f"The broker does not let this user read the settings of topic {name!r}. Its "
            "cleanup.policy must be compact, or markers are lost with time."
        )
    elif config["cleanup.policy"] != "compact":
        raise ConfigError(
            f"The topic of markers {name!r} has cleanup.policy={config['cleanup.policy']}: Kafka "
            "would delete markers with time, and nobody could tell what is published. Markers need "
            "a topic of their own that is compacted and nothing else: kafka-configs.sh "
            f"--bootstrap-server HOST:9092 --alter --entity-type topics --entity-name {name} "
            "--add-config cleanup.policy=compact"
        )
    return found, made


def _insync(cluster: Cluster, targets: list[Topic]) -> dict[str, str]:
    """Return how many copies must take a marker: as many as of the most careful topic's records."""
    wanted = [
        int(config[_INSYNC])
        for topic in targets
        if (config := cluster.topic_settings(topic.name)) is not None
    ]
    return {_INSYNC: str(max(wanted))} if wanted else {}


def creation(name: str, settings: Mapping[str, str] = MARKER_SETTINGS) -> str:
    """Return the command that makes a topic of markers."""
    configs = " ".join(f"--config {key}={value}" for key, value in settings.items())
    return (
        f"kafka-topics.sh --bootstrap-server HOST:9092 --create --topic {name} "
        f"--partitions {MARKER_PARTITIONS} {configs}"
    )
