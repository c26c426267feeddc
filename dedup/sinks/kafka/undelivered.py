"""Counts and logs the records that a sink in mode ``none`` could not deliver.

No task waits for the brokers in that mode. A thread collects the producer's reports, so that the
log names rejected records even if no further micro-batch comes. If Spark ends the worker, its
records get a last chance. A worker that is killed (SIGKILL) reports nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

from dedup.sinks.kafka.client_errors import describe_message
from dedup.sinks.kafka.records import DeliveryFailure

logger = logging.getLogger("dedup")

#: Interval of the log lines of a producer that keeps losing records.
_LOG_S = 1.0
#: How long a worker that Spark ends waits for the brokers.
_LAST_FLUSH_S = 2.0
#: The objects of this process whose producers may still hold records.
_running: list[Undelivered] = []


class Undelivered(DeliveryFailure):
    """The records of one producer that were not delivered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost = self._logged = self._counted = 0
        self._newest = ""
        self._producer: Any = None

    def on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            return
        with self._lock:
            self._lost += 1
            self._newest = f"{describe_message(message)}: {error.str()}"

    def watch(self, producer: Any) -> None:
        """Report the producer's failures from now on, until this process ends."""
        self._producer = producer
        _running.append(self)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
            signal.signal(signal.SIGHUP, _flush_and_end)
        threading.Thread(target=self._poll, name="dedup-undelivered", daemon=True).start()

    def count(self) -> int:
        """Return how many records were lost since the last call."""
        with self._lock:
            lost, self._counted = self._lost - self._counted, self._lost
        return lost

    def end(self) -> None:
        """Wait a short time for the brokers, and log the records that are lost."""
        left = self._producer.flush(_LAST_FLUSH_S)
        self._log()
        if left:
            logger.warning(
                "%d records were not delivered, because this worker ends and the brokers have not "
                "acknowledged them. Mode none does not send them again.",
                left,
            )

    def _poll(self) -> None:
        while True:
            self._producer.poll(_LOG_S)
            if self._log():
                time.sleep(_LOG_S)

    def _log(self) -> bool:
        with self._lock:
            lost, self._logged = self._lost - self._logged, self._lost
        if lost:
            logger.warning(
                "%d records were not delivered, and mode none does not send them again. The last "
                "one: %s",
                lost,
                self._newest,
            )
        return lost > 0


def _flush_and_end(number: int, frame: FrameType | None) -> None:
    """End this process as the signal would have, after the records had a last chance.

    Spark's daemon sends SIGHUP to its workers when it ends.
    """
    for each in _running:
        with suppress(Exception):
            each.end()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
