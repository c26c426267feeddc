"""What a sink has published, what holds its readers back, and what a restart would do.

It only reads. What the markers say of each slot is compared with what readers of committed records
see, and with the checkpoint where one is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dedup.core.duration import iso
from dedup.errors import ConfigError
from dedup.sinks.kafka.markers import KafkaMarkers
from dedup.sinks.marker import BATCH_SLOT, NO_RUN, Marker
from dedup.sinks.restart import next_start
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import confluent, consumer_config
from dedup.sources.kafka.cluster import Cluster
from dedup.spark.driver.checkpoint_log import Progress

_PURPOSE = "Looking into a sink"
_READ_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """One slot of a sink.

    Parameters
    ----------
    marker : Marker
        The newest that readers of committed records see.
    attempted : int or None
        A later micro-batch that somebody began to publish here.
    open : bool
        Whether that transaction may still be open; else it was aborted.
    """

    marker: Marker
    attempted: int | None = None
    open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """One sink of one query.

    Parameters
    ----------
    query_id, sink : str
    batch_id : int
        The newest micro-batch of which something is published.
    slots : tuple of SlotState
        In the order of their numbers.
    restart : str
        What the next start of the query would do, as sentences.
    """

    query_id: str
    sink: str
    batch_id: int
    slots: tuple[SlotState, ...]
    restart: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """A partition in which an open transaction holds readers of committed records back.

    Parameters
    ----------
    topic : str
    partition : int
    readable : int
        Its last stable offset: readers get no further.
    end : int
        Its high watermark.
    since_ms : int or None
        Timestamp of the first record that waits.
    """

    topic: str
    partition: int
    readable: int
    end: int
    since_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkInspection:
    """What `inspect_sink` found.

    Parameters
    ----------
    servers, topic, markers : str
    sinks : tuple of SinkState
    held_back : tuple of HeldBack
    max_timeout_ms : int or None
        Longest life of a transaction that the brokers allow; one that is older hangs.
    """

    servers: str
    topic: str
    markers: str
    sinks: tuple[SinkState, ...]
    held_back: tuple[HeldBack, ...]
    max_timeout_ms: int | None

    @property
    def status(self) -> str:
        """``ok``, or ``held back`` where readers cannot read to the end."""
        return "held back" if self.held_back else "ok"

    def to_json(self) -> dict[str, Any]:
        """Return plain values, times as ISO 8601."""
        return {
            "status": self.status,
            "servers": self.servers,
            "topic": self.topic,
            "markers": self.markers,
            "max_timeout_ms": self.max_timeout_ms,
            "sinks": [
                {
                    "query_id": sink.query_id,
                    "sink": sink.sink,
                    "batch_id": sink.batch_id,
                    "restart": sink.restart,
                    "slots": [_slot_json(slot) for slot in sink.slots],
                }
                for sink in self.sinks
            ],
            "held_back": [asdict(held) | {"since": iso(held.since_ms)} for held in self.held_back],
        }


def inspect_sink(
    settings: ClientSettings,
    topic: str,
    *,
    markers: str | None = None,
    query: str | None = None,
    progress: Progress | None = None,
) -> SinkInspection:
    """Return what a sink has published, and what holds its readers back.

    Parameters
    ----------
    settings : ClientSettings
    topic : str
        Topic that the sink writes to.
    markers : str, optional
        Topic of its markers. Default: as the sink's, ``<topic>-markers``.
    query : str, optional
        ID of the only query to be looked at. Default: all, or that of `progress`.
    progress : Progress, optional
        From the query's checkpoint: what a restart would do is then said of it.

    Raises
    ------
    ConfigError
        If the cluster cannot be asked, or lacks one of the topics.
    SinkError
        If a marker is damaged.
    """
    markers = markers or f"{topic}-markers"
    cluster = Cluster(settings, purpose=_PURPOSE)
    broker = cluster.broker_settings(cluster.broker_ids()[0]) or {}
    held = [held for name in (topic, markers) for held in _held_back(cluster, name)]
    log = KafkaMarkers(settings, markers)
    committed, every = log.at_once(committed=True), log.at_once(committed=False)
    if query is None and progress is not None:
        query = progress.query_id
    blocked = {place.partition for place in held if place.topic == markers}
    partitions = log.partitions()
    by_sink: defaultdict[tuple[str, str], list[SlotState]] = defaultdict(list)
    for key, marker in committed.items():
        place = log.partition_of(marker.query_id, marker.sink, marker.slot, partitions)
        last = every[key].batch_id
        attempted = last if last > marker.batch_id else None
        may_be_open = attempted is not None and place in blocked
        by_sink[marker.query_id, marker.sink].append(
            SlotState(marker=marker, attempted=attempted, open=may_be_open)
        )
    longest = broker.get("transaction.max.timeout.ms")
    return SinkInspection(
        servers=settings.servers,
        topic=topic,
        markers=markers,
        sinks=tuple(
            _sink(*name, slots, progress)
            for name, slots in sorted(by_sink.items())
            if query in (None, name[0])
        ),
        held_back=tuple(held),
        max_timeout_ms=int(longest) if longest else None,
    )


def _sink(
    query_id: str, name: str, slots: Sequence[SlotState], progress: Progress | None
) -> SinkState:
    mine = progress if progress is not None and progress.query_id == query_id else None
    markers = [slot.marker for slot in slots]
    return SinkState(
        query_id=query_id,
        sink=name,
        batch_id=max(marker.batch_id for marker in markers),
        slots=tuple(sorted(slots, key=lambda slot: slot.marker.slot)),
        restart=next_start(markers, mine),
    )


def _held_back(cluster: Cluster, name: str) -> list[HeldBack]:
    topic = cluster.topic(name)
    if topic is None:
        raise ConfigError(
            f"Topic {name!r} does not exist at {cluster.settings.servers}, or this user may not "
            "see it. The topic of markers is named by the sink's option markers; give it with "
            "--markers where it is not <topic>-markers."
        )
    # In this order a commit in between makes it look as if nothing was held back.
    ends = cluster.ends(topic, committed=False)
    readable = cluster.ends(topic, committed=True)
    found = {n: (readable[n], end) for n, end in ends.items() if readable[n] < end}
    since = _timestamps(cluster.settings, name, {n: at for n, (at, _) in found.items()})
    return [
        HeldBack(topic=name, partition=n, readable=at, end=end, since_ms=since.get(n))
        for n, (at, end) in sorted(found.items())
    ]


def _timestamps(settings: ClientSettings, topic: str, places: Mapping[int, int]) -> dict[int, int]:
    """Return the timestamps of records at given offsets, of partitions where one can be read."""
    library = confluent(_PURPOSE)
    if not places:
        return {}
    consumer = library.Consumer(consumer_config(settings, committed=False))
    found: dict[int, int] = {}
    try:
        for number, offset in places.items():
            consumer.assign([library.TopicPartition(topic, number, offset)])
            message = consumer.poll(_READ_S)
            if message is not None and message.error() is None:
                found[number] = message.timestamp()[1]
    finally:
        consumer.close()
    return found


def _slot_json(slot: SlotState) -> dict[str, Any]:
    marker = slot.marker
    return {
        "slot": None if marker.slot == BATCH_SLOT else marker.slot,
        "batch_id": marker.batch_id,
        "rows": marker.rows,
        "content": marker.content,
        "run_id": marker.run_id if marker.run_id != NO_RUN else None,
        "writer": marker.writer,
        "time": iso(marker.time_ms),
        "attempted": slot.attempted,
        "open": slot.open,
    }
