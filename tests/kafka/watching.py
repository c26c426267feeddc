"""A reader of committed records that reads while they are written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from confluent_kafka import Consumer

from tests.kafka.records import SOON, Record, record_of


@contextmanager
def reading(address: str, topic: str, see: Callable[[Record], None]) -> Iterator[None]:
    """Call a function with each record of a topic as soon as a reader of committed ones gets it."""
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
            for message in consumer.consume(2000, 0.1):
                if message.error() is None:
                    see(record_of(message))

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(read)
        try:
            yield
        finally:
            stop.set()
            done.result()  # raises what stopped it
            consumer.close()


@contextmanager
def watched(address: str, topic: str) -> Iterator[Counter[bytes]]:
    """Count, while it happens, how often a reader of committed records sees each key."""
    seen: Counter[bytes] = Counter()
    with reading(address, topic, lambda record: seen.update([record.key or b""])):
        yield seen
