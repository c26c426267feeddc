"""Check the cluster before a sink writes anything, so that the start already shows problems."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dedup.errors import ConfigError
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import check_known
from dedup.sources.kafka.cluster import Cluster, Topic

logger = logging.getLogger("dedup")

#: Settings of a topic of markers. Compaction keeps the newest marker of each slot permanently. The
#: segments are small, so that Kafka compacts them soon and the log stays short.
MARKER_SETTINGS = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "segment.bytes": str(16 << 20),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
#: Number of partitions of a new marker topic. If two slots share a partition, a transaction of one
#: slot holds back readers of the other. With this number slots rarely share a partition.
MARKER_PARTITIONS = 32
_INSYNC = "min.insync.replicas"


def check_topics(
    settings: ClientSettings, topics: Iterable[str], marker_topic: str | None = None
) -> None:
    """Check a sink's topics, and create the topic of its markers if it is missing.

    `topics` is empty if a column names the topic of each record. `marker_topic` is None for a sink
    without transactions. Logs a warning of what this function could not check.
    """
    check_known(settings, transactional=marker_topic is not None)
    cluster = Cluster(settings)
    cluster.broker_ids()
    targets = [existing(cluster, name) for name in topics]
    if marker_topic is not None:
        markers = cluster.topic(marker_topic) or _make_markers(cluster, marker_topic, targets)
        _check_markers(cluster, markers)


def existing(cluster: Cluster, name: str, advice: str = "") -> Topic:
    topic = cluster.topic(name)
    if topic is None:
        create = (
            "Create it: kafka-topics.sh --bootstrap-server HOST:9092 --create --topic "
            f"{name} --partitions N --replication-factor 3"
        )
        raise ConfigError(
            f"Topic {name!r} does not exist at {cluster.settings.servers}, or this user may not "
            f"see it. {advice or create}"
        )
    return topic


def _make_markers(cluster: Cluster, name: str, targets: list[Topic]) -> Topic:
    """Create the topic of markers, with the number of replicas that the safest target topic has."""
    replicas = max((topic.replicas for topic in targets), default=-1)  # -1: the cluster's default
    configs = [cluster.settings_of("topic", topic.name) for topic in targets]
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


def _check_markers(cluster: Cluster, topic: Topic) -> None:
    name, config = topic.name, cluster.settings_of("topic", topic.name)
    if config is None:
        logger.warning(
            "The broker does not let this user read the settings of topic %r. Its cleanup.policy "
            "must be compact, or Kafka deletes markers after some time.",
            name,
        )
    elif config["cleanup.policy"] != "compact":
        raise ConfigError(
            f"The topic of markers {name!r} has cleanup.policy={config['cleanup.policy']}: Kafka "
            "would delete markers after some time, and the sink could not know what is published. "
            "Markers need their own topic, which is only compacted: kafka-configs.sh "
            f"--bootstrap-server HOST:9092 --alter --entity-type topics --entity-name {name} "
            "--add-config cleanup.policy=compact"
        )
