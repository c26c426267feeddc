"""A reader of committed records that reads while they are written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer

from tests.kafka.records import SOON


@contextmanager
def watched(address: str, topic: str) -> Iterator[Counter[bytes]]:
    """Count, while it happens, how often a reader of committed records sees each key."""
    seen: Counter[bytes] = Counter()
    stop = threading.Event()
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"watch-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
        | SOON
    )
    consumer.subscribe([topic])

    def read() -> None:
        while not stop.is_set():
            for message in consumer.consume(1000, 0.1):
                if message.error() is None:
                    seen[message.key() or b""] += 1

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
        consumer.close()
