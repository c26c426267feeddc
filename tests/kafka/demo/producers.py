"""Producers that retry: each sends orders of its customers, some batches more than once."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from confluent_kafka import KafkaError, Producer

from tests.kafka.records import SOON

#: Of the batches, in each stretch.
_RETRIED_AT_ONCE, _RETRIED_LATER = 0.2, 0.1
_TIMEOUT_S = 30.0
_TEXT = "x" * 200

Batch = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the producers send."""

    #: Parts of the stream; each begins when the query is started once more.
    stretches: int
    #: Of each producer in each stretch, retries apart.
    batches: int
    producers: int = 3
    #: Records of a batch.
    batch: int = 500
    #: Keys of a producer, which no other producer sends.
    customers: int = 100
    #: Between batches.
    pause_s: float = 0.4
    seed: int = 7

    @property
    def distinct(self) -> int:
        return self.producers * self.stretches * self.batches * self.batch

    @property
    def keys(self) -> int:
        return self.producers * self.customers


class Producers:
    """Threads that send within a ``with`` block. `go_on` opens the next stretch."""

    def __init__(self, address: str, topic: str, load: Load) -> None:
        self._address, self._topic, self._load = address, topic, load
        self._open, self._is_closed = 0, False
        self._change = threading.Condition()
        self._pool = ThreadPoolExecutor(load.producers)
        self._sending: list[Future[int]] = []

    def __enter__(self) -> None:
        numbers = range(self._load.producers)
        self._sending = [self._pool.submit(self._send_stretches, number) for number in numbers]

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        self._pool.shutdown()

    def go_on(self) -> None:
        with self._change:
            self._open += 1
            self._change.notify_all()

    @property
    def done(self) -> bool:
        return all(sending.done() for sending in self._sending)

    @property
    def sent(self) -> int:
        """Records that brokers have acknowledged, retries among them; raises what went wrong."""
        return sum(sending.result() for sending in self._sending)

    def _send_stretches(self, number: int) -> int:
        load, rng = self._load, random.Random(self._load.seed + number)
        settings = {"bootstrap.servers": self._address, "acks": "all", "linger.ms": 5}
        producer = Producer(settings | {"log_level": 0} | SOON)
        made, sent = batches(load, number), 0
        for stretch in range(load.stretches):
            with self._change:
                self._change.wait_for(lambda now=stretch: self._is_closed or self._open > now)  # type: ignore[misc]
            first = stretch * load.batches
            for position in range(first, first + load.batches):
                if self._is_closed:
                    return sent
                # The first batch after a kill comes with a retry of the last one before it.
                again = [position - 1] if position == first and position else []
                again += [position] if rng.random() < _RETRIED_AT_ONCE else []
                if rng.random() < _RETRIED_LATER:
                    again.append(rng.randrange(position + 1))
                for one in (position, *again):
                    self._send(producer, made[one])
                    sent += load.batch
                time.sleep(load.pause_s)
        return sent

    def _send(self, producer: Producer, batch: Batch) -> None:
        """Send a batch as an application does that heard nothing of it: Kafka takes it as new."""
        failed: list[str] = []

        def told(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(str(error))

        for key, value in batch:
            producer.produce(self._topic, value, key, on_delivery=told)
        if producer.flush(_TIMEOUT_S) or failed:
            raise OSError(f"The broker did not take a batch: {failed[:1]}")


def batches(load: Load, number: int) -> Sequence[Batch]:
    """Return all batches of a producer; each customer's orders are numbered from 0."""
    rng = random.Random(load.seed * 1000 + number)
    numbers = [0] * load.customers
    made: list[Batch] = []
    for _ in range(load.stretches * load.batches):
        batch: Batch = []
        for _ in range(load.batch):
            customer = rng.randrange(load.customers)
            key = f"customer-{number}-{customer}"
            order = {"id": f"{key}/{numbers[customer]}", "number": numbers[customer], "text": _TEXT}
            numbers[customer] += 1
            batch.append((key.encode(), json.dumps(order).encode()))
        made.append(batch)
    return made
