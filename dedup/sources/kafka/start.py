"""Chooses the offsets at which a query without a checkpoint begins to read Kafka."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from dedup.errors import ConfigError
from dedup.sources.kafka.cluster import Cluster, Topic
from dedup.sources.kafka.topic_ids import Checkpoint
from dedup.spark.driver.checkpoint_log import committed_offsets, kafka_offsets

#: The two ends of a partition. In Spark's JSON of offsets, negative numbers mean the ends.
End: TypeAlias = Literal["earliest", "latest"]
_SPARK_END = {"earliest": -2, "latest": -1}


@dataclass(frozen=True, slots=True)
class FromGroup:
    """Begin at the offsets that a consumer group has committed.

    Parameters
    ----------
    group : str
    otherwise : {"earliest", "latest"}
        Where to begin in partitions without a committed offset.
    """

    group: str
    otherwise: End = "earliest"


@dataclass(frozen=True, slots=True)
class FromOffsets:
    """Begin at given offsets.

    Parameters
    ----------
    offsets : mapping of str to mapping of int to int
        Offset of the first record to read, by topic and partition.
    otherwise : "earliest", "latest" or FromGroup
        Where to begin in partitions that are not listed. ``FromGroup(...)`` begins at the offsets
        that the group has committed there.
    """

    offsets: Mapping[str, Mapping[int, int]]
    otherwise: End | FromGroup = "earliest"


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    """Begin where a stopped query stopped, such as one that was rebuilt.

    Parameters
    ----------
    checkpoint : str or path
        That query's checkpoint: a path, or a URI that pyarrow knows. It is read at each start,
        unless `kafka_records` gets the parameter ``checkpoint`` and the query has offsets.
    otherwise : {"earliest", "latest"}
        Where to begin in partitions that the query had not read.
    """

    checkpoint: str | os.PathLike[str]
    otherwise: End = "earliest"


#: Values of the parameter ``start`` of `kafka_records`.
Start: TypeAlias = str | datetime | FromCheckpoint | FromGroup | FromOffsets


def check_start(start: Start) -> None:
    """Raise ConfigError if `kafka_records` does not take this value as ``start``."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(
                f"start={start!r} has no time zone. Give one, such as "
                "datetime(2024, 5, 1, tzinfo=UTC)."
            )
        return
    rest = start.otherwise if isinstance(start, FromCheckpoint | FromOffsets) else start
    end = rest.otherwise if isinstance(rest, FromGroup) else rest
    if end not in _SPARK_END:
        raise ConfigError(
            f"start={start!r} is unknown. Give 'earliest', 'latest', a datetime, FromGroup(...), "
            "FromOffsets(...) or FromCheckpoint(...). otherwise= is 'earliest' or 'latest', and of "
            "FromOffsets also FromGroup(...)."
        )


def start_options(start: Start, topics: Mapping[str, Topic], cluster: Cluster) -> dict[str, str]:
    """Return the options by which Spark's source begins at `start`, or raise ConfigError."""
    if isinstance(start, datetime):
        return {
            # Kafka has no records before 1970, and negative times are codes.
            "startingTimestamp": str(max(0, int(start.timestamp() * 1000))),
            # A partition with no record at or after that time starts at its end.
            "startingOffsetsByTimestampStrategy": "latest",
        }
    if isinstance(start, str):
        return {"startingOffsets": start}
    if isinstance(start, FromCheckpoint):
        Checkpoint(os.fspath(start.checkpoint)).compare(topics, topics, store=False)
        start = FromOffsets(_offsets_after(start.checkpoint, topics), start.otherwise)
    by_topic = start.offsets if isinstance(start, FromOffsets) else {}
    for name, offsets in by_topic.items():
        _check_offsets(offsets, name, topics.get(name), cluster, "start")
    wanted = {name: dict(offsets) for name, offsets in by_topic.items()}
    rest = start.otherwise if isinstance(start, FromOffsets) else start
    if isinstance(rest, FromGroup):
        for name, committed in cluster.group_offsets(rest.group, topics.values()).items():
            listed = wanted.setdefault(name, {})
            others = {n: offset for n, offset in committed.items() if n not in listed}
            _check_offsets(others, name, topics[name], cluster, f"Group {rest.group}")
            listed |= others
    otherwise = _SPARK_END[rest.otherwise if isinstance(rest, FromGroup) else rest]
    begin = {
        name: {str(n): wanted.get(name, {}).get(n, otherwise) for n in range(topic.partitions)}
        for name, topic in topics.items()
    }
    return {"startingOffsets": json.dumps(begin)}


def _offsets_after(
    checkpoint: str | os.PathLike[str], topics: Iterable[str]
) -> dict[str, dict[int, int]]:
    found = map(kafka_offsets, committed_offsets(os.fspath(checkpoint)))
    sources = [by_topic for by_topic in found if not by_topic.keys().isdisjoint(topics)]
    if len(sources) != 1:
        raise ConfigError(
            f"start=FromCheckpoint({str(checkpoint)!r}): that query reads these topics from "
            f"{len(sources)} sources. Give FromOffsets with its offsets."
        )
    return sources[0]


def matching(pattern: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topics whose whole name matches a pattern, in sorted order.

    Spark uses Java's regular expressions, which rarely differ from Python's.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern={pattern!r} is not a regular expression: {error}.") from None
    return tuple(sorted(topic for topic in topics if compiled.fullmatch(topic)))


def _check_offsets(
    wanted: Mapping[int, int], name: str, topic: Topic | None, cluster: Cluster, origin: str
) -> None:
    begins = {} if topic is None else cluster.begins(topic)
    ends = {} if topic is None else cluster.ends(topic, committed=False)
    for number, offset in wanted.items():
        if number not in begins:
            raise ConfigError(
                f"{origin} has an offset of {name}-{number}, which is not read. Either the "
                "partition does not exist, or topics= or pattern= leaves it out."
            )
        if begins[number] <= offset <= ends[number]:
            continue
        why = (
            "Kafka has deleted the records before"
            if offset < begins[number]
            else "the topic was deleted and created again, or its end was cut off"
        )
        raise ConfigError(
            f"{origin} begins {name}-{number} at offset {offset}, but Kafka has offsets "
            f"{begins[number]} to {ends[number]} of it: {why}. Give FromOffsets with an offset "
            "that Kafka has."
        )
