"""Ask Kafka's brokers for partitions and retention of a stream's topics.

The requests go through the Java client in Spark's Kafka connector, and change nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from dedup.spark.driver.checkpoint_log import Source
from dedup.tools.check.facts import FOREVER_MS

TIMEOUT_MS = 10_000
_PREFIX = "kafka."


def ask_brokers(spark: SparkSession, source: Source) -> tuple[Source, int] | None:
    """Return a source with its topics and partitions, and their longest retention in milliseconds.

    Returns None if there is no answer. On Spark Connect there is none, because Python cannot reach
    the Java client.
    """
    try:
        return _ask(spark._jvm, source)
    except Exception:  # no connector, no answer, no such topic, no permission
        return None


def _ask(jvm: Any, source: Source) -> tuple[Source, int] | None:
    settings = jvm.java.util.Properties()
    for name, value in source.options.items():
        if name.startswith(_PREFIX):
            settings.setProperty(name.removeprefix(_PREFIX), value)
    for name in ("default.api.timeout.ms", "request.timeout.ms"):
        settings.setProperty(name, str(TIMEOUT_MS))
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        # A pattern may select the topics.
        topics = source.topics or _matching(jvm, admin, source.options["subscribepattern"])
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
    known = replace(source, topics=topics, partitions=source.partitions or partitions)
    return known, max(retentions_ms)


def _matching(jvm: Any, admin: Any, pattern: str) -> tuple[str, ...]:
    matches = jvm.java.util.regex.Pattern.compile(pattern).asMatchPredicate()
    return tuple(sorted(str(t) for t in admin.listTopics().names().get() if matches.test(t)))


def _retention_ms(config: Any) -> int:
    """Return a topic's retention, or `FOREVER_MS` if Kafka only compacts the topic."""
    retention_ms = int(config.get("retention.ms").value())
    deletes = "delete" in config.get("cleanup.policy").value()
    return retention_ms if deletes and retention_ms >= 0 else FOREVER_MS
