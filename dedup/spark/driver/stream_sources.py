"""Finds a stream's sources, and checks that IDs do not mix up the records of two Kafka clusters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from pyspark.sql import DataFrame

from dedup.errors import ConfigError
from dedup.spark.driver.checkpoint_log import Source
from dedup.spark.driver.columns import Resolved
from dedup.spark.driver.expression import class_name, each
from dedup.spark.driver.plan_steps import steps

_RELATIONS = ("StreamingRelation", "StreamingRelationV2")
#: Columns with a record's place in Kafka. Records of two clusters may have the same place.
_PLACE = frozenset(("topic", "partition", "offset"))
#: Key of the metadata that marks a column computed from a record's place in Kafka.
PLACE_IN_KAFKA = "dedup.place_in_kafka"


def check_clusters(df: DataFrame, **options: Iterable[Resolved]) -> None:
    """Reject options that would mix up the records of two Kafka clusters.

    An option is rejected if it names only a record's place in Kafka, and the stream is a union of
    two clusters that may have topics of the same name. Topic, partition and offset do not identify
    the cluster, and Spark has no column for the cluster. Spark Connect hides the sources, so
    nothing is rejected there.
    """
    place = _PLACE | {f.name.lower() for f in df.schema.fields if PLACE_IN_KAFKA in f.metadata}
    for option, columns in options.items():
        made_of = [[n for n, _ in one.definition.inputs] or [one.name] for one in columns]
        read = {name.lower() for names in made_of for name in names}
        if not read or not read <= place or (clusters := _alike(df)) is None:
            continue
        raise ConfigError(
            f"The stream reads two Kafka clusters ({clusters[0]} and {clusters[1]}), and {option}= "
            "does not distinguish them: topics of the same name would count as one, so records of "
            "one cluster would be dropped as duplicates, or be late by the other's clock. "
            "Before the union, add a column to each stream that names its cluster, such as "
            f".withColumn('cluster', F.lit('one')), and add it to the option: {option}=['cluster', "
            "...]. If both are one cluster, give both streams the same kafka.bootstrap.servers."
        )


def _alike(df: DataFrame) -> tuple[str, str] | None:
    """Return the servers of two clusters that may both have a topic of one name, or None."""
    if "Union" not in steps(df):
        return None
    kafka = [source for source in stream_sources_of(df) or () if source.kind == "kafka"]
    for one, other in combinations(kafka, 2):
        servers = [source.options.get("kafka.bootstrap.servers", "") for source in (one, other)]
        if _hosts(servers[0]) & _hosts(servers[1]):
            continue
        if not (one.topics and other.topics) or set(one.topics) & set(other.topics):
            return servers[0], servers[1]
    return None


def _hosts(servers: str) -> set[str]:
    return {server.rpartition("//")[2].strip().lower() for server in servers.split(",")}


def stream_sources_of(df: DataFrame) -> tuple[Source, ...] | None:
    """Return the stream's sources and their options, or None if they cannot be found.

    The sources are in the plan in the JVM, which is not a public interface of Spark.
    """
    try:
        leaves = each(df._jdf.queryExecution().analyzed().collectLeaves())
        return tuple(_source(plan) for plan in leaves if class_name(plan) in _RELATIONS) or None
    except Exception:  # Connect, or another Spark
        return None


def _source(plan: Any) -> Source:
    name = str(plan.sourceName())
    if class_name(plan) == "StreamingRelationV2":
        entries = plan.extraOptions().asCaseSensitiveMap().entrySet()
        options = {str(e.getKey()).lower(): str(e.getValue()) for e in entries}
    else:
        pairs = each(plan.dataSource().options().toSeq())
        options = {str(pair._1()).lower(): str(pair._2()) for pair in pairs}
    if name.startswith("FileSource"):
        return Source(kind="file", options=options, complete=True)
    topics, partitions = _topics(options) if name == "kafka" else ((), None)
    return Source(kind=name, options=options, complete=True, topics=topics, partitions=partitions)


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], int | None]:
    if "subscribe" in options:
        return tuple(topic.strip() for topic in options["subscribe"].split(",")), None
    if "assign" in options:
        assigned = json.loads(options["assign"])
        return tuple(assigned), sum(len(partitions) for partitions in assigned.values())
    return (), None
