"""A reader of committed records that judges each of them at the moment in which it sees it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable

from confluent_kafka import Consumer

from tests.kafka.records import SOON, Record


class Seen:
    """Orders that somebody saw, one after another, each judged by those before it.

    Attributes
    ----------
    ids : set of str
        Of all orders.
    places : set of tuple of int
        Partition and offset of each record.
    twice : list of str
        IDs that were there already when they were seen.
    misplaced : list of str
        IDs that did not follow the order before them of the same customer.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.ids: set[str] = set()
        self.places: set[tuple[int, int]] = set()
        self.twice: list[str] = []
        self.misplaced: list[str] = []
        self._next: dict[bytes | None, int] = {}
        for record in records:
            self.see(record.key, record.value or b"", (record.partition, record.offset))

    def see(self, key: bytes | None, value: bytes, place: tuple[int, int]) -> None:
        """Judge a record."""
        order = json.loads(value)
        self.places.add(place)
        if order["id"] in self.ids:
            self.twice.append(order["id"])
            return
        self.ids.add(order["id"])
        # The orders of a customer are numbered without gaps, so each has one place.
        if order["number"] != self._next.get(key, 0):
            self.misplaced.append(order["id"])
        self._next[key] = order["number"] + 1


class Reader:
    """Reads a topic while others write to it, in a thread; used as a context manager.

    Parameters
    ----------
    address : str
        Of the broker.
    topic : str

    Attributes
    ----------
    seen : Seen
    error : Exception or None
        What has stopped it.
    """

    def __init__(self, address: str, topic: str) -> None:
        self.seen = Seen()
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"reader-of-{topic}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
            | SOON
        )
        self._consumer.subscribe([topic])

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        try:
            while not self._stop.is_set():
                for message in self._consumer.consume(2000, 0.1):
                    if message.error() is None:
                        place = message.partition() or 0, message.offset() or 0
                        self.seen.see(message.key(), message.value() or b"", place)
        except Exception as error:  # told with the figures
            self.error = error
