"""Where a query that has no checkpoint yet begins to read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dedup.errors import ConfigError
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import confluent, consumer_config
from dedup.sources.kafka.cluster import timeout_s
from dedup.sources.kafka.topics import no_answer

if TYPE_CHECKING:
    from confluent_kafka import Consumer

#: Either end of a partition.
End: TypeAlias = Literal["earliest", "latest"]
ENDS = ("earliest", "latest")
#: Spark's words for them in its JSON of offsets.
_SPARK_END = {"earliest": -2, "latest": -1}


@dataclass(frozen=True, slots=True)
class FromGroup:
    """Begin where a consumer group stands: at the offsets that it has committed.

    Parameters
    ----------
    group : str
    otherwise : {"earliest", "latest"}
        Where to begin in partitions of which the group has committed none.
    """

    group: str
    otherwise: End = "earliest"


@dataclass(frozen=True, slots=True)
class FromOffsets:
    """Begin at given offsets.

    Parameters
    ----------
    offsets : mapping of str to mapping of int to int
        By topic and partition: the offset of the first record to read.
    otherwise : {"earliest", "latest"}
        Where to begin in partitions that are not listed.
    """

    offsets: Mapping[str, Mapping[int, int]]
    otherwise: End = "earliest"


#: What `kafka_records` takes as ``start``.
Start: TypeAlias = str | datetime | FromGroup | FromOffsets
#: Topics with the numbers of their partitions.
Partitions: TypeAlias = Mapping[str, Sequence[int]]


def check_start(start: Start) -> None:
    """Refuse what is no start.

    Raises
    ------
    ConfigError
        Saying what is one.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(
                f"start={start!r} has no time zone: give one, such as "
                "datetime(2024, 5, 1, tzinfo=UTC)."
            )
        return
    if (
        isinstance(start, FromGroup) and not (start.group or "").strip()
    ):  # librdkafka would end Python
        raise ConfigError("The group has no name: give one, such as FromGroup('old-consumer').")
    ends = [start.otherwise] if isinstance(start, (FromGroup, FromOffsets)) else [start]
    if ends[0] not in ENDS:
        raise ConfigError(
            f"start={start!r} is unknown: give 'earliest', 'latest', a datetime, FromGroup(...) or "
            "FromOffsets(...); otherwise= is 'earliest' or 'latest'."
        )


def start_options(start: Start, partitions: Partitions, settings: ClientSettings) -> dict[str, str]:
    """Return the options of Spark's source that say where to begin.

    Parameters
    ----------
    start : Start
    partitions : mapping
        All that is read.
    settings : ClientSettings

    Raises
    ------
    ConfigError
        If an offset is not to be had, or there is no such partition.
    SourceError
        If the brokers do not answer.
    """
    if isinstance(start, datetime):
        return {
            # Kafka has no records before 1970: negative numbers mean other things to it.
            "startingTimestamp": str(max(0, int(start.timestamp() * 1000))),
            # A partition without a record that late begins with the next that comes.
            "startingOffsetsByTimestampStrategy": "latest",
        }
    if isinstance(start, str):
        return {"startingOffsets": start}
    # librdkafka reads offsets of the group that it is given; none is joined.
    wait_s = timeout_s(settings)
    group = start.group if isinstance(start, FromGroup) else "dedup"
    consumer = confluent("Reading from Kafka").Consumer(consumer_config(settings, group=group))
    try:
        if isinstance(start, FromGroup):
            wanted, named = _committed(consumer, group, partitions, wait_s), f"Group {group}"
        else:
            wanted, named = _listed(start.offsets, partitions), "start"
        _check_kept(consumer, wanted, named, wait_s)
    finally:
        consumer.close()
    otherwise = _SPARK_END[start.otherwise]
    begin = {
        topic: {str(n): wanted.get(topic, {}).get(n, otherwise) for n in numbers}
        for topic, numbers in partitions.items()
    }
    return {"startingOffsets": json.dumps(begin)}


def matching(pattern: str, topics: Sequence[str]) -> tuple[str, ...]:
    """Return the topics whose whole name a pattern matches.

    Raises
    ------
    ConfigError
        If it is no regular expression. Spark's is Java's; what differs from Python's is rare.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern={pattern!r} is no regular expression: {error}.") from None
    return tuple(sorted(topic for topic in topics if compiled.fullmatch(topic)))


def _committed(
    consumer: Consumer, group: str, partitions: Partitions, wait_s: float
) -> dict[str, dict[int, int]]:
    library = confluent("Reading from Kafka")
    asked = [library.TopicPartition(t, n) for t, ns in partitions.items() for n in ns]
    with no_answer(f"for the offsets of group {group}"):
        found = consumer.committed(asked, timeout=wait_s)
    offsets: dict[str, dict[int, int]] = {}
    for one in found:
        if one.error is not None:
            raise ConfigError(
                f"The offset of group {group} for {one.topic}-{one.partition} cannot be read: "
                f"{one.error.str()}."
            )
        if one.offset >= 0:
            offsets.setdefault(one.topic, {})[one.partition] = one.offset
    return offsets


def _listed(
    offsets: Mapping[str, Mapping[int, int]], partitions: Partitions
) -> dict[str, dict[int, int]]:
    for topic, numbers in offsets.items():
        for number, offset in numbers.items():
            if number not in partitions.get(topic, ()):
                raise ConfigError(
                    f"start has an offset of {topic}-{number}, which is not read: there is no such "
                    "partition, or topics= or pattern= leaves it out."
                )
            if type(offset) is not int or offset < 0:
                raise ConfigError(
                    f"start has the offset {offset!r} of {topic}-{number}; give a whole number "
                    "that is not negative. Partitions that are not listed begin at otherwise=."
                )
    return {topic: dict(numbers) for topic, numbers in offsets.items()}


def _check_kept(
    consumer: Any, wanted: Mapping[str, Mapping[int, int]], named: str, wait_s: float
) -> None:
    """Refuse offsets whose records Kafka has deleted, or that it has not reached."""
    library = confluent("Reading from Kafka")
    for topic, numbers in wanted.items():
        for number, offset in numbers.items():
            with no_answer(f"for the offsets of {topic}-{number}"):
                first, end = consumer.get_watermark_offsets(
                    library.TopicPartition(topic, number), timeout=wait_s
                )
            if first <= offset <= end:
                continue
            why = (
                "those before are deleted by now"
                if offset < first
                else "the topic was made anew, or its end was cut off"
            )
            raise ConfigError(
                f"{named} begins {topic}-{number} at offset {offset}, but Kafka has offsets "
                f"{first} to {end} of it: {why}. Give FromOffsets with an offset that is there."
            )
