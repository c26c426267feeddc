"""The compacted topic of markers, read to its real end.

The real end is the high watermark, which a client asks for *after* it owns the slots. A reader of
committed records stops at the first open transaction of a partition. If the reader does not reach
the real end in time, the sink raises an error and never assumes that no marker exists. Offsets
decide whether the end is reached, because a control record, which no reader sees, follows the last
marker.
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

#: Extra time beyond the time limit of transactions, in which brokers abort abandoned ones.
_MARGIN_S = 30.0
_POLL_S = 0.2
_AT_ONCE = 1_000
#: How long to retry for a new topic, of which brokers learn one after another.
_NEW_TOPIC_S = 10.0


class KafkaMarkers:
    """The markers in one topic.

    A slot's marker goes to one partition, by the slot's number, so that a transaction of one slot
    does not hold back the readers of another. `newest` reads only that partition. `all_newest`
    reads all of them, because an older marker is in another partition if the topic has got more
    partitions since.
    """

    def __init__(self, clients: ClientSettings, topic: str) -> None:
        self._clients = clients
        self._library = confluent()
        self.topic = topic
        self._admin = admin_client(clients)
        self._consumers: dict[bool, Any] = {}
        # Several sinks of one process may share a topic of markers, and so a consumer.
        self._reading = threading.Lock()

    def partitions(self) -> int:
        """Return the number of partitions, or raise SinkError if the topic is gone."""
        found = self._ask(
            lambda: self._admin.list_topics(self.topic, timeout=self._clients.block_ms / 1000),
            lambda metadata: metadata.topics[self.topic].partitions,
        )
        partitions = len(found.topics[self.topic].partitions)
        if not partitions:
            raise SinkError(
                f"The topic of the markers, {self.topic!r}, is gone from "
                f"{self._clients.servers}. Nothing was written.",
                remedy="sink-markers",
            )
        return partitions

    def partition_of(self, query_id: str, sink: str, slot: int, partitions: int) -> int:
        """Return the partition of a slot's markers. Neighbouring slots have neighbouring ones."""
        return (zlib.crc32(f"{query_id}/{sink}".encode()) + slot) % partitions

    def newest(self, query_id: str, sink: str, slot: int) -> Marker | None:
        """Return the newest committed marker of a slot that the caller owns."""
        partition = self.partition_of(query_id, sink, slot, self.partitions())
        key = marker_key(query_id, sink, slot)
        return self._newest([partition], {key}, committed=True).get(key)

    def all_newest(self, query_id: str, sink: str, *, committed: bool = True) -> dict[int, Marker]:
        """Return the newest marker of each slot of a sink.

        With ``committed=False`` markers of open and aborted transactions count too, and the call
        does not wait for open transactions to end.
        """
        found = self._newest(range(self.partitions()), None, committed=committed)
        return {
            marker.slot: marker
            for marker in found.values()
            if (marker.query_id, marker.sink) == (query_id, sink)
        }

    def at_once(self, *, committed: bool) -> dict[bytes, Marker]:
        """Return the newest marker of every slot as a reader sees it now, without waiting.

        Only for display: committed markers behind an open transaction may be missing.
        """
        return self._newest(range(self.partitions()), None, committed=committed, wait=False)

    def _newest(
        self,
        partitions: Iterable[int],
        keys: set[bytes] | None,
        *,
        committed: bool,
        wait: bool = True,
    ) -> dict[bytes, Marker]:
        newest: dict[bytes, Marker] = {}
        with self._reading:
            messages = self._read(list(partitions), committed=committed, wait=wait)
            found = [message for message in messages if keys is None or message.key() in keys]
        for message in found:
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
        """Yield the records of partitions from their beginning to their real end."""
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
                # `consume` waits until it has as many messages as asked for, or its time is over.
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
        """Return first offsets, with `latest` high watermarks, or with both last stable offsets."""
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

    def _ask(self, request: Callable[[], T], is_complete: Callable[[T], object] = bool) -> T:
        """Return the brokers' answer. Asks again while some brokers do not know a new topic yet."""
        deadline = time.monotonic() + _NEW_TOPIC_S
        while True:
            late = time.monotonic() > deadline
            try:
                answer = request()
                if late or is_complete(answer):
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
