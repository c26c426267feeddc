"""What Kafka's brokers say of a stream's topics: how many partitions, how long records are kept.

Asked through the Java client that Spark's connector brings; nothing is changed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from dedup.tools.check.facts import FOREVER_MS

#: How long brokers are waited for.
TIMEOUT_MS = 10_000
_PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class Topics:
    """What the brokers say.

    Parameters
    ----------
    names : tuple of str
        Those that were asked for, or match ``subscribePattern``.
    partitions : int
        Of all topics together.
    retention_ms : int
        The longest of them; `FOREVER_MS` where a topic keeps records for ever.
    """

    names: tuple[str, ...]
    partitions: int
    retention_ms: int


def ask_brokers(
    spark: SparkSession, options: Mapping[str, str], topics: tuple[str, ...]
) -> Topics | None:
    """Return what the brokers say of these topics, None where they say nothing.

    Parameters
    ----------
    spark : SparkSession
        A classic one: Connect has no Java client.
    options : mapping of str to str
        Of the source, names in lower case; those that begin with ``kafka.`` are the client's.
    topics : tuple of str
        Empty where ``subscribePattern`` says which.
    """
    try:
        return _ask(spark._jvm, options, topics)
    except Exception:  # no connector, no answer, no such topic, no permission
        return None


def _ask(jvm: Any, options: Mapping[str, str], topics: tuple[str, ...]) -> Topics | None:
    settings = jvm.java.util.Properties()
    for name, value in options.items():
        if name.startswith(_PREFIX):
            settings.setProperty(name.removeprefix(_PREFIX), value)
    for name in ("default.api.timeout.ms", "request.timeout.ms"):
        settings.setProperty(name, str(TIMEOUT_MS))
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        topics = topics or _matching(jvm, admin, options["subscribepattern"])
        if not topics:
            return None
        kinds = getattr(jvm.org.apache.kafka.common.config, "ConfigResource$Type")
        names, resources = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
        for topic in topics:
            names.add(topic)
            resources.add(jvm.org.apache.kafka.common.config.ConfigResource(kinds.TOPIC, topic))
        described = admin.describeTopics(names).allTopicNames().get()
        partitions = sum(described.get(topic).partitions().size() for topic in topics)
        configs = admin.describeConfigs(resources).all().get()
        retentions_ms = [_retention_ms(configs.get(resource)) for resource in resources]
    finally:
        admin.close()
    return Topics(topics, partitions, max(retentions_ms))


def _matching(jvm: Any, admin: Any, pattern: str) -> tuple[str, ...]:
    """Return topics whose whole name Spark's ``subscribePattern`` matches, in Java's sense."""
    matches = jvm.java.util.regex.Pattern.compile(pattern).asMatchPredicate()
    return tuple(sorted(str(t) for t in admin.listTopics().names().get() if matches.test(t)))


def _retention_ms(config: Any) -> int:
    """Return how long a topic keeps records; one that is only compacted keeps each key's newest."""
    retention_ms = int(config.get("retention.ms").value())
    deletes = "delete" in config.get("cleanup.policy").value()
    return retention_ms if deletes and retention_ms >= 0 else FOREVER_MS
