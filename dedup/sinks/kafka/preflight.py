"""Questions to the cluster before a sink writes anything, so that problems show at the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dedup.errors import ConfigError
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import check_known
from dedup.sources.kafka.cluster import Cluster, Topic, may, missing_rights

#: Settings of a topic of markers. Compaction keeps the newest marker of each slot permanently.
#: Kafka compacts small segments soon, so the log stays short to read.
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


def check_sink(
    settings: ClientSettings, topics: Iterable[str], marker_topic: str | None = None
) -> list[str]:
    """Check a sink's topics, and create the topic of its markers if it is missing.

    Parameters
    ----------
    settings : ClientSettings
    topics : iterable of str
        Topics that are known before the start; none if a column of each record names its topic.
    marker_topic : str, optional
        None for a sink without transactions.

    Returns
    -------
    list of str
        What could not be checked, and why that may matter, as sentences.

    Raises
    ------
    ConfigError
        If librdkafka rejects the options, no server answers, credentials are wrong, a topic is
        missing or not writable, the topic of markers could lose them, or the brokers do not allow
        transactions as long as the option asks for.
    MissingExtraError
        If confluent-kafka is not installed.
    """
    check_known(settings, transactional=marker_topic is not None)
    cluster = Cluster(settings)
    broker_id = cluster.broker_ids()[0]
    targets = [_target(cluster, name) for name in topics]
    if marker_topic is None:
        return []
    notes = _check_timeout(cluster, cluster.broker_settings(broker_id))
    markers = cluster.topic(marker_topic) or _make_markers(cluster, marker_topic, targets)
    return notes + _check_markers(cluster, markers)


def _target(cluster: Cluster, name: str) -> Topic:
    """Return a topic that exists and is writable."""
    found = cluster.topic(name)
    if found is None:
        raise ConfigError(
            f"Topic {name!r} does not exist at {cluster.settings.servers}, or this user may not "
            "see it. Create it: kafka-topics.sh --bootstrap-server HOST:9092 --create --topic "
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


def _check_timeout(cluster: Cluster, broker: Mapping[str, str] | None) -> list[str]:
    timeout_ms = cluster.settings.transaction_timeout_ms
    option = cluster.settings.option("transaction.timeout.ms")
    if broker is None or _MAX_TIMEOUT not in broker:
        return [
            f"The brokers do not show this user their {_MAX_TIMEOUT}. If it is below "
            f"{option}={timeout_ms}, the first task fails with an error."
        ]
    if timeout_ms > int(broker[_MAX_TIMEOUT]):
        raise ConfigError(
            f"Option {option}={timeout_ms} is above what the brokers allow, "
            f"{_MAX_TIMEOUT}={broker[_MAX_TIMEOUT]}. Lower it, or raise the setting in the "
            "server.properties of every broker."
        )
    return []


def _make_markers(cluster: Cluster, name: str, targets: list[Topic]) -> Topic:
    """Create the topic of markers, as safe as the safest of the sink's topics."""
    replicas = max((topic.replicas for topic in targets), default=-1)  # -1: the cluster's default
    configs = [cluster.topic_settings(topic.name) for topic in targets]
    copies = max((int(config[_INSYNC]) for config in configs if config), default=None)
    settings = MARKER_SETTINGS | ({} if copies is None else {_INSYNC: str(copies)})
    refused = cluster.make_topic(
        name, partitions=MARKER_PARTITIONS, replicas=replicas, settings=settings
    )
    if (made := cluster.topic(name)) is not None:
        return made
    shown = " ".join(f"--config {key}={value}" for key, value in settings.items())
    raise ConfigError(
        f"The topic of markers {name!r} does not exist and could not be created"
        f"{f': {refused}' if refused else ''}. Create it as a user who may: "
        f"kafka-topics.sh --bootstrap-server HOST:9092 --create --topic {name} "
        f"--partitions {MARKER_PARTITIONS} {shown}"
    )


def _check_markers(cluster: Cluster, topic: Topic) -> list[str]:
    name, config = topic.name, cluster.topic_settings(topic.name)
    _check_rights(topic, "READ", "WRITE")
    if config is None:
        return [
            f"The broker does not let this user read the settings of topic {name!r}. Its "
            "cleanup.policy must be compact, or Kafka deletes markers after some time."
        ]
    if config["cleanup.policy"] != "compact":
        raise ConfigError(
            f"The topic of markers {name!r} has cleanup.policy={config['cleanup.policy']}: Kafka "
            "would delete markers after some time, and the sink could not know what is published. "
            "Markers need their own topic, which is only compacted: kafka-configs.sh "
            f"--bootstrap-server HOST:9092 --alter --entity-type topics --entity-name {name} "
            "--add-config cleanup.policy=compact"
        )
    return []
