"""Read the markers of a sink from a compacted topic, up to the topic's real end.

The real end is the high watermark that the brokers return *after* the client has acquired the
slots. A reader of committed records stops at the first open transaction of a partition. If the
reader does not reach the real end in time, the sink raises an error, and never assumes that no
marker exists. After the last marker comes a control record, which readers do not see. So the reader
compares offsets to know whether it has reached the end.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from dedup.errors import SinkError
from dedup.sinks.marker import Marker, marker_key
from dedup.sources.kafka.client_options import ClientSettings
from dedup.sources.kafka.clients import admin_client, confluent, consumer_config, is_passing

T = TypeVar("T")

#: Extra seconds to wait beyond the time limit of a transaction, until the brokers have aborted it.
_MARGIN_S = 30.0
_POLL_S = 0.2
_AT_ONCE = 1_000
#: Seconds to retry while some brokers do not know a new topic yet.
_NEW_TOPIC_S = 10.0


class KafkaMarkers:
    """The markers in one topic.

    The number of a slot decides which partition its markers are in. So a transaction of one slot
    rarely holds back the readers of another slot. `newest` reads only the slot's partition.
    `all_newest` reads all partitions: if somebody has added partitions to the topic, older markers
    of a slot are in another partition.
    """

    def __init__(self, clients: ClientSettings, topic: str) -> None:
        self._clients = clients
        self._library = confluent()
        self.topic = topic
        self._admin = admin_client(clients)
        self._consumers: dict[bool, Any] = {}
        # Several sinks of one process may share a topic of markers, and then share its consumer.
        self._reading = threading.Lock()

    def partitions(self) -> int:
        """Return the number of partitions, or raise SinkError if the topic is gone."""
        timeout_s = self._clients.block_ms / 1000
        partitions = self._ask(
            lambda: (
                self._admin.list_topics(self.topic, timeout=timeout_s).topics[self.topic].partitions
            )
        )
        if not partitions:
            raise SinkError(
                f"The topic of the markers, {self.topic!r}, is gone from "
                f"{self._clients.servers}. Nothing was written.",
                remedy="sink-markers",
            )
        return len(partitions)

    def partition_of(self, query_id: str, sink: str, slot: int, partitions: int) -> int:
        """Return the partition of a slot's markers. Neighbouring slots get different partitions."""
        return (zlib.crc32(f"{query_id}/{sink}".encode()) + slot) % partitions

    def newest(self, query_id: str, sink: str, slot: int) -> Marker | None:
        """Return the newest committed marker of a slot. The caller must own the slot."""
        partition = self.partition_of(query_id, sink, slot, self.partitions())
        key = marker_key(query_id, sink, slot)
        return self.read([partition], {key}).get(key)

    def all_newest(self, query_id: str, sink: str, *, committed: bool = True) -> dict[int, Marker]:
        """Return the newest marker of each slot of a sink.

        If `committed` is false, the result includes markers of open and aborted transactions, and
        the call does not wait until open transactions end.
        """
        return {
            marker.slot: marker
            for marker in self.read(committed=committed).values()
            if (marker.query_id, marker.sink) == (query_id, sink)
        }

    def read(
        self,
        partitions: Iterable[int] | None = None,
        keys: set[bytes] | None = None,
        *,
        committed: bool = True,
        wait: bool = True,
    ) -> dict[bytes, Marker]:
        """Return the newest marker of each key in some partitions, by default in all of them.

        If `wait` is false, this reads what a reader sees now. Use the result only for display: a
        reader does not see committed markers that come after an open transaction.
        """
        newest: dict[bytes, Marker] = {}
        places = list(range(self.partitions()) if partitions is None else partitions)
        with self._reading:
            messages = self._read(places, committed=committed, wait=wait)
            relevant = [message for message in messages if keys is None or message.key() in keys]
        for message in relevant:
            key, value = message.key(), message.value()
            if value is None or not _is_marker(key):
                continue
            where = f"{self.topic}-{message.partition()}, offset {message.offset()}"
            marker = Marker.from_bytes(value, where)
            known = newest.get(key)
            if known is None or marker.batch_id >= known.batch_id:
                newest[key] = marker
        return newest

    def _read(self, partitions: list[int], *, committed: bool, wait: bool) -> Iterator[Any]:
        """Yield the records of partitions from the beginning to the real end of each partition."""
        ends = self._offsets(partitions, latest=True, stable=committed and not wait)
        begins = self._offsets(partitions, latest=False)
        left = {p: end for p, end in ends.items() if end > begins[p]}
        if not left:
            return
        at = self._library.TopicPartition
        consumer = self._consumer(committed)
        consumer.assign([at(self.topic, p, begins[p]) for p in left])
        deadline = time.monotonic() + self._clients.transaction_timeout_ms / 1000 + _MARGIN_S
        try:
            while left:
                # `consume` waits until it has the requested number of messages, or times out.
                first = consumer.poll(_POLL_S)
                rest = [] if first is None else consumer.consume(_AT_ONCE, 0)
                for message in [first, *rest] if first is not None else ():
                    offset, partition = message.offset(), message.partition()
                    if message.error() is None:
                        yield message
                        offset += 1
                    elif message.error().code() != self._library.KafkaError._PARTITION_EOF:
                        if is_passing(message.error()):
                            continue
                        raise self._unreadable(message.error().str())
                    if partition in left and offset >= left[partition]:
                        del left[partition]
                if left and time.monotonic() > deadline:
                    names = ", ".join(f"{self.topic}-{p}" for p in sorted(left))
                    raise SinkError(
                        f"The markers in {names} could not be read to their end, because another "
                        "producer has an open transaction there. Nothing was written. Start the "
                        "query again once the broker has ended it; `dedup sink inspect` shows it."
                    )
        finally:
            consumer.unassign()

    def _offsets(
        self, partitions: list[int], *, latest: bool, stable: bool = False
    ) -> dict[int, int]:
        """Return the first offset of each partition.

        If `latest` is true, return the high watermark instead. If `stable` is true as well, return
        the last stable offset.
        """
        admin = self._library.admin
        at, level = self._library.TopicPartition, self._library.IsolationLevel
        spec = admin.OffsetSpec.latest() if latest else admin.OffsetSpec.earliest()
        wanted = {at(self.topic, p): spec for p in partitions}
        isolation = level.READ_COMMITTED if stable else level.READ_UNCOMMITTED

        def offsets() -> dict[int, int]:
            futures = self._admin.list_offsets(
                wanted, isolation_level=isolation, request_timeout=self._clients.block_ms / 1000
            )
            return {place.partition: future.result().offset for place, future in futures.items()}

        return self._ask(offsets)

    def _ask(self, request: Callable[[], dict[int, T]]) -> dict[int, T]:
        """Return what the brokers know of partitions, by number.

        Repeats the request while a broker does not know the topic.
        """
        deadline = time.monotonic() + _NEW_TOPIC_S
        while True:
            late = time.monotonic() > deadline
            try:
                answer = request()
                if late or answer:
                    return answer
            except self._library.KafkaException as error:
                if late or not is_passing(error.args[0]):
                    raise self._unreadable(error.args[0].str()) from None
            time.sleep(_POLL_S)

    def _consumer(self, committed: bool) -> Any:
        if committed not in self._consumers:
            config = consumer_config(self._clients, group="dedup-markers", committed=committed)
            own = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
            self._consumers[committed] = self._library.Consumer(config | own)
        return self._consumers[committed]

    def _unreadable(self, error: str) -> SinkError:
        return SinkError(
            f"The markers in topic {self.topic!r} cannot be read from {self._clients.servers}: "
            f"{self._clients.without_secrets(error)}. Nothing was written; start the query "
            "again once the brokers answer."
        )


def _is_marker(key: bytes | None) -> bool:
    try:
        return bool(json.loads(key or b"")[0] == "dedup-marker")
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
