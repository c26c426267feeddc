"""Ask Kafka's brokers for partitions and retention of a stream's topics.

The requests go through the Java client in Spark's Kafka connector, and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from dedup.tools.check.facts import FOREVER_MS

TIMEOUT_MS = 10_000
_PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class Topics:
    """The brokers' answer: topics, the sum of their partitions, and the longest retention."""

    names: tuple[str, ...]
    partitions: int
    retention_ms: int


def ask_brokers(
    spark: SparkSession, options: Mapping[str, str], topics: tuple[str, ...]
) -> Topics | None:
    """Return the brokers' answer about these topics, or None if there is no answer.

    `options` are the options of the source. `topics` is empty if ``subscribePattern`` selects the
    topics. On Spark Connect there is no answer, because Python cannot reach the Java client.
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
    matches = jvm.java.util.regex.Pattern.compile(pattern).asMatchPredicate()
    return tuple(sorted(str(t) for t in admin.listTopics().names().get() if matches.test(t)))


def _retention_ms(config: Any) -> int:
    """Return a topic's retention, or `FOREVER_MS` if Kafka only compacts the topic."""
    retention_ms = int(config.get("retention.ms").value())
    deletes = "delete" in config.get("cleanup.policy").value()
    return retention_ms if deletes and retention_ms >= 0 else FOREVER_MS
