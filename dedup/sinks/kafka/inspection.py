"""Report what a Kafka sink has published, and what holds its readers back. Change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dedup.sinks.inspection import SinkInspection, SlotState, sink_states
from dedup.sinks.kafka.markers import KafkaMarkers
from dedup.sinks.kafka.options import KafkaOptions
from dedup.sinks.kafka.preflight import existing
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import confluent, consumer_config
from dedup.sources.kafka.cluster import Cluster
from dedup.spark.driver.checkpoint_log import Progress
from dedup.values.duration import iso

_PURPOSE = "Looking into a sink"
_READ_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """A partition in which an open transaction holds back readers of committed records.

    These readers stop at the last stable offset `readable`, although the partition ends at `end`.
    `since_ms` is the timestamp of the first record that the readers cannot see.
    """

    topic: str
    partition: int
    readable: int
    end: int
    since_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaInspection(SinkInspection):
    """The report that `inspect_kafka` returns.

    `max_timeout_ms` is the longest time limit of a transaction that the brokers allow. It is None
    if the brokers do not show that limit.
    """

    servers: str
    topic: str | None
    markers: str
    held_back: tuple[HeldBack, ...]
    max_timeout_ms: int | None

    @property
    def status(self) -> str:
        """Either ``ok``, or ``held back`` if readers cannot read a partition to its end."""
        return "held back" if self.held_back else "ok"

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "servers": self.servers,
            "topic": self.topic,
            "markers": self.markers,
            "max_timeout_ms": self.max_timeout_ms,
            "sinks": [sink.to_json() for sink in self.sinks],
            "held_back": [asdict(held) | {"since": iso(held.since_ms)} for held in self.held_back],
        }


def inspect_kafka(options: KafkaOptions, progress: Progress | None) -> KafkaInspection:
    """Return what the sink has published, and what holds its readers back."""
    settings, markers = options.clients, options.markers
    cluster = Cluster(settings, purpose=_PURPOSE)
    broker = cluster.settings_of("broker", str(cluster.broker_ids()[0])) or {}
    held = [held for name in (options.topic, markers) if name for held in _held_back(cluster, name)]
    of_query = None if progress is None else progress.query_id
    slots = _slots(KafkaMarkers(settings, markers), held)
    longest = broker.get("transaction.max.timeout.ms")
    return KafkaInspection(
        servers=settings.servers,
        topic=options.topic,
        markers=markers,
        sinks=sink_states((s for s in slots if of_query in (None, s.marker.query_id)), progress),
        held_back=tuple(held),
        max_timeout_ms=int(longest) if longest else None,
    )


def _slots(log: KafkaMarkers, held: list[HeldBack]) -> list[SlotState]:
    committed, every = log.read(wait=False), log.read(committed=False, wait=False)
    blocked = {place.partition for place in held if place.topic == log.topic}
    partitions = log.partitions()
    states = []
    for key, marker in committed.items():
        place = log.partition_of(marker.query_id, marker.sink, marker.slot, partitions)
        last = every[key].batch_id
        attempted = last if last > marker.batch_id else None
        may_be_open = attempted is not None and place in blocked
        states.append(SlotState(marker=marker, attempted=attempted, open=may_be_open))
    return states


def _held_back(cluster: Cluster, name: str) -> list[HeldBack]:
    advice = "Give the topic of markers as the option markers if it is not <topic>-markers."
    topic = existing(cluster, name, advice)
    # Ask for the ends first. If a transaction commits in between, nothing seems held back.
    ends = cluster.ends(topic, committed=False)
    readable = cluster.ends(topic, committed=True)
    gaps = {n: (readable[n], end) for n, end in ends.items() if readable[n] < end}
    since = _timestamps(cluster.settings, name, {n: at for n, (at, _) in gaps.items()})
    return [
        HeldBack(topic=name, partition=n, readable=at, end=end, since_ms=since.get(n))
        for n, (at, end) in sorted(gaps.items())
    ]


def _timestamps(settings: ClientSettings, topic: str, places: Mapping[int, int]) -> dict[int, int]:
    """Return the timestamp of one record per partition. `places` maps partitions to offsets.

    A partition whose record cannot be read is not in the result.
    """
    if not places:
        return {}
    library = confluent(_PURPOSE)
    consumer = library.Consumer(consumer_config(settings, committed=False))
    times_ms: dict[int, int] = {}
    try:
        for number, offset in places.items():
            consumer.assign([library.TopicPartition(topic, number, offset)])
            message = consumer.poll(_READ_S)
            if message is not None and message.error() is None:
                times_ms[number] = message.timestamp()[1]
    finally:
        consumer.close()
    return times_ms
